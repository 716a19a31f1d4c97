"""Servers that are away or answer errors: waited for, said once, gone on with."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from made_run import make_run, tiny_recipe
from patience import PATIENCE_S
from stoppable import until
from tcp_proxy import Mode, TcpProxy

from headrace.infra.process.child_life import Child
from headrace.infra.process.patience import SERVER_AWAY, Patience
from headrace.infra.process.supervisor import Supervisor
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import ObjectStore, StoreAddress


@pytest.fixture
def between(store_address: StoreAddress) -> Iterator[TcpProxy]:
    with TcpProxy(store_address.endpoint) as proxy:
        yield proxy


@pytest.fixture
def run(bootstrap: str, store_address: StoreAddress, between: TcpProxy, run_name: str) -> Iterator[Run]:
    """A run whose store is behind the proxy."""
    address = replace(store_address, prefix=f"{run_name}/", endpoint=between.address)
    with ObjectStore(address) as store:
        yield make_run(bootstrap, store, tiny_recipe(run_name))


@pytest.mark.parametrize("mode", ["cut", "503", "hole"])
def test_an_upload_waits_for_a_store_that_fails_and_says_so_once(run: Run, between: TcpProxy, mode: Mode) -> None:
    stored: list[bytes] = []
    with structlog.testing.capture_logs() as logs:
        with between.failing(mode):
            upload = threading.Thread(target=lambda: stored.append(run.get(run.put(b"weights", "weights"))))
            upload.start()
            until(lambda: any("store" in line["event"] for line in logs) or not upload.is_alive(), "the wait is said")
            assert upload.is_alive(), "it waits"
            asked = between.connections
            until(lambda: between.connections > asked, "the store is asked again")
            assert not stored
        upload.join(PATIENCE_S)

    assert stored == [b"weights"]
    assert [line["event"] for line in logs if line["event"].startswith("store.")] == ["store.waiting", "store.resumed"]


@pytest.mark.servers
def test_a_component_that_a_server_left_stuck_is_started_again_however_often(tmp_path: Path) -> None:
    haste = Patience(first_pause_s=0.01, longest_pause_s=0.01, most_short_lives=2)
    child = Child("stuck", [sys.executable, "-c", f"raise SystemExit({SERVER_AWAY})"])
    supervisor = Supervisor([child], tmp_path, os.environ, patience=haste, is_over=bool)
    supervisor.start()
    try:
        until(lambda: supervisor.states()["stuck"].starts > 4, "it is started again")
        supervisor.raise_failure()
    finally:
        supervisor.stop()
