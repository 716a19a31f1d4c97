"""Servers that take connections and are silent, as a frozen one does, and what is said of them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from answering_server import answering_server
from patience import PATIENCE_S

from headrace.infra.embedded import servers
from headrace.infra.embedded.data_folder import DataFolder
from headrace.infra.embedded.server_probe import Ask, ServerProbe, is_kafka_answering, is_store_answering
from headrace.infra.embedded.server_process import ServerError, ServerProcess
from headrace.infra.embedded.servers import LONGEST_PAUSE_S, ServerRestarter, Servers
from headrace.infra.kafka.clients import Connection
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.store.store_address import StoreAddress


@pytest.fixture
def silent() -> Iterator[str]:
    """`host:port` of a server whose connections are taken by the kernel alone."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.timeout(120)  # far from 0.1 s, and far from a question that is not limited
def test_a_server_that_takes_connections_and_says_nothing_does_not_answer(silent: str) -> None:
    assert not is_store_answering(StoreAddress(silent, "bucket"), timeout_s=0.1)
    assert not is_store_answering(StoreAddress(silent, "bucket", secure=True), timeout_s=0.1)
    assert not is_kafka_answering(Connection(silent), timeout_s=0.1)


def test_a_store_that_refuses_answers_and_one_that_is_not_there_does_not() -> None:
    with answering_server(403) as port:
        endpoint = f"127.0.0.1:{port}"
        assert is_store_answering(StoreAddress(endpoint, "bucket"), timeout_s=60)
    assert not is_store_answering(StoreAddress(endpoint, "bucket"), timeout_s=60)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_server_is_silent_after_two_questions_in_a_row_without_an_answer() -> None:
    asked = threading.Semaphore(0)
    answers = iter([False, True, False, False, True])

    def ask() -> bool:
        asked.acquire()
        return next(answers, True)

    probe = ServerProbe(ask, every_s=0.0)
    probe.start()
    asked.release(3)
    until(lambda: asked._value == 0)
    assert probe.silent_since_ms() is None, "one was missed, then one answered, then one was missed"
    asked.release()
    until(lambda: probe.silent_since_ms() is not None)
    asked.release()
    until(lambda: probe.silent_since_ms() is None)
    probe.close()
    asked.release(2)


class Probe:
    """Stands for a probe; the test says whether the server answers."""

    silent: dict[str, int]

    def __init__(self, _ask: Ask) -> None:
        self.since: int | None = None

    def start(self) -> None:
        pass

    def silent_since_ms(self) -> int | None:
        return self.since


class Dead:
    """Stands for a server that starts at the second try."""

    what, folder = "broker", Path()
    tries, alive = 0, False

    def is_alive(self) -> bool:
        return self.alive

    def start(self) -> None:
        self.tries += 1
        self.alive = self.tries == 2
        if not self.alive:
            raise ServerError("no room")


def test_who_revives_servers_learns_whether_one_was_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = [100.0]
    monkeypatch.setattr(servers, "time", SimpleNamespace(monotonic=lambda: clock_s[0]))
    restarter, server = ServerRestarter(lambda _: None), cast("ServerProcess", Dead())
    tried, paused = restarter.revive_if_due(server), restarter.revive_if_due(server)
    clock_s[0] += LONGEST_PAUSE_S
    assert (tried, paused, restarter.revive_if_due(server), restarter.revive_if_due(server)) == (
        True,
        True,
        True,
        False,
    )

    recipe = load_recipe("arithmetic")
    both = Servers(recipe.kafka, recipe.store, DataFolder(tmp_path), lambda _: None)
    monkeypatch.setattr(ServerRestarter, "revive_if_due", lambda _, server: server.what == "broker")
    assert both.revive()
    monkeypatch.setattr(ServerRestarter, "revive_if_due", lambda *_: False)
    assert not both.revive()


@pytest.mark.parametrize(("kafka", "store"), [(True, True), (True, False), (False, True)])
def test_servers_answer_where_both_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, kafka: bool, store: bool
) -> None:
    monkeypatch.setattr(servers, "is_kafka_answering", lambda _: kafka)
    monkeypatch.setattr(servers, "is_store_answering", lambda _: store)
    recipe = load_recipe("arithmetic", ['kafka.bootstrap="k:1"', 'store.endpoint="s:2"'])
    both = Servers(recipe.kafka, recipe.store, DataFolder(tmp_path), lambda _: None)
    assert both.is_answering() is (kafka and store)


def test_a_silence_is_told_once_and_so_is_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "ServerProbe", Probe)
    recipe = load_recipe("arithmetic", ['kafka.bootstrap="k:1"', 'store.endpoint="s:2"'])
    said: list[str] = []
    both = Servers(recipe.kafka, recipe.store, DataFolder(tmp_path), said.append)
    assert both.watch() == ()
    probe: Probe = both._probes["object store"]  # type: ignore[assignment]
    probe.since = 5
    [found] = both.watch()
    assert (found.server, found.since_ms) == ("the object store at s:2", 5)
    both.watch()
    [told] = said
    assert "the object store at s:2 does not answer" in told
    probe.since = None
    assert both.watch() == both.watch() == ()
    assert said[1:] == ["the object store answers again: the run goes on"]
