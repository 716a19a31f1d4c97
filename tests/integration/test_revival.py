"""An embedded server that dies while a run goes on."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import PATIENCE_S

from headrace.infra.embedded import servers as servers_of_a_run
from headrace.infra.embedded.data_folder import DataFolder
from headrace.infra.embedded.servers import Servers
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.store.object_store import ObjectStore


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def servers(tmp_path: Path, bootstrap: str, said: list[str]) -> Iterator[Servers]:
    recipe = load_recipe("arithmetic", [f"kafka.bootstrap={bootstrap}"])
    servers = Servers(recipe.kafka, recipe.store, DataFolder(tmp_path / "run"), said.append)
    servers.claim()
    servers.start()
    yield servers
    servers.stop()


def kill_store(servers: Servers) -> int:
    """Kill the store, once it is gone; return its port."""
    port = int(servers.store_address.endpoint.rpartition(":")[2])
    os.kill(servers.pids()["store"], signal.SIGKILL)
    end = time.monotonic() + PATIENCE_S
    while "store" in servers.pids():
        assert time.monotonic() < end
        time.sleep(0.02)
    return port


def test_a_server_that_died_is_started_again_with_its_data(servers: Servers, said: list[str]) -> None:
    with ObjectStore(servers.store_address) as store:
        stored = store.put(b"kept", "groups")
        kill_store(servers)

        servers.revive()

        assert "store" in servers.pids()
        assert store.get(stored.key, stored.sha256, stored.size_bytes) == b"kept"
    assert [words.partition(" is")[0] for words in said] == ["the object store died and"]


@pytest.mark.servers
def test_a_full_disk_is_said_once_with_what_to_do(
    servers: Servers, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers_of_a_run, "ROOM_BYTES", 1 << 60)
    with socket.create_server(("127.0.0.1", kill_store(servers))):
        for _ in range(3):
            servers.revive()

    assert len(said) == 1
    assert "its disk is full" in said[0]
    assert "make room there, and the run goes on by itself" in said[0]
