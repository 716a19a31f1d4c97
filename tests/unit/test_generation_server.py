"""The life of a generation server's process."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from patience import PATIENCE_S

from headrace.infra.process.child_process import wait_without_reaping
from headrace.producers.engines.contract import EngineAway
from headrace.producers.engines.served import generation_server
from headrace.producers.engines.served.generation_server import (
    EngineProcess,
    GenerationServer,
    ServedWeights,
    ServerLaunch,
)
from headrace.producers.engines.served.server_api import ServerApi, ServerAway

NEVER_READY = "import time; time.sleep(600)"


class NotReady:
    """The interface of a server that starts."""

    def is_ready(self) -> bool:
        return False

    def close(self) -> None:
        """It has no connections."""


def build(folder: Path, program: str) -> GenerationServer:
    launch = ServerLaunch(
        "server", lambda _weights, _port: [sys.executable, "-c", program], lambda _url: cast(ServerApi, NotReady()), 600
    )
    return GenerationServer("solver-0", launch, EngineProcess(folder / "all" / "solver-0", launch, {}))


def begin_to_serve(server: GenerationServer, weights: ServedWeights, raised: list[EngineAway]) -> threading.Thread:
    """Serve weights in a thread of its own, which notes that the server is away."""

    def serve() -> None:
        try:
            server.serve(weights)
        except EngineAway as error:
            raised.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_a_start_is_given_up_when_its_engine_is_closed(tmp_path: Path) -> None:
    server, raised = build(tmp_path, NEVER_READY), list[EngineAway]()

    starting = begin_to_serve(server, ServedWeights(0, tmp_path), raised)
    while "is being started with version 0 (log: " not in server.trouble:
        time.sleep(0.001)
    server.close()
    starting.join()
    assert "the server is being stopped" in str(raised[0])


class Loading(NotReady):
    """The interface of a server that loads until its process ends."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.process: EngineProcess | None = None

    def is_ready(self) -> bool:
        return True

    def note_started(self, _folder: Path, _version: int) -> None:
        """It has the weights."""

    def read_weight_version(self) -> str:
        return "0"

    def load(self, _folder: Path, _version: int) -> float:
        self.begun.set()
        for _ in range(60_000):
            if self.process is None or not self.process.is_alive():
                raise ServerAway("its process ended")
            time.sleep(0.001)
        return 5.0


def test_a_load_ends_when_its_engine_is_closed_and_the_server_is_not_started_again(tmp_path: Path) -> None:
    api, commands, raised = Loading(), list[int](), list[EngineAway]()

    def build_command(_weights: ServedWeights, port: int) -> list[str]:
        commands.append(port)
        return [sys.executable, "-c", NEVER_READY]

    launch = ServerLaunch("server", build_command, lambda _url: cast(ServerApi, api), 600)
    api.process = EngineProcess(tmp_path / "solver-0", launch, {})
    server = GenerationServer("solver-0", launch, api.process)
    server.serve(ServedWeights(0, tmp_path))

    loading = begin_to_serve(server, ServedWeights(1, tmp_path), raised)
    assert api.begun.wait(PATIENCE_S)
    server.close()
    loading.join()
    assert "failed while it loaded version 1" in str(raised[0])
    with pytest.raises(EngineAway, match="the server is being stopped"):
        server.serve(ServedWeights(1, tmp_path))
    assert len(commands) == 1


SHARING = """
import os, sys, time
from multiprocessing import resource_tracker, shared_memory
shared_memory.SharedMemory.__del__ = lambda self: None
shared = shared_memory.SharedMemory(create=True, size=100)
resource_tracker.unregister(shared._name, "shared_memory")  # as if the tracker were killed, too
print(shared._name, flush=True)
time.sleep(600)
"""


@pytest.fixture
def find_shared(tmp_path: Path) -> Iterator[Callable[[], list[Path]]]:
    """Return what lists the shared memory that servers said they made; what a red test leaves is removed."""

    def find() -> list[Path]:
        log = tmp_path / "solver-0" / "stdout.log"
        return [Path("/dev/shm") / name.strip("/") for name in log.read_text().split()]  # noqa: S108 - Linux's

    yield find
    for path in find():
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("go_on", ["close", "serve"])
def test_shared_memory_of_a_killed_server_is_removed(
    tmp_path: Path, go_on: str, find_shared: Callable[[], list[Path]]
) -> None:
    class Sharing(Loading):
        def is_ready(self) -> bool:
            return len(find_shared()) == starts

    starts = 1
    launch = ServerLaunch(
        "server", lambda _weights, _port: [sys.executable, "-c", SHARING], lambda _url: cast(ServerApi, Sharing()), 600
    )
    process = EngineProcess(tmp_path / "solver-0", launch, {})
    server = GenerationServer("solver-0", launch, process)
    server.serve(ServedWeights(0, tmp_path))
    [shared] = find_shared()
    assert shared.exists()

    pid = process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_without_reaping(pid)
    if go_on == "serve":
        starts = 2
        server.serve(ServedWeights(0, tmp_path))
        assert not shared.exists()
        assert find_shared()[-1].exists(), "the new server has its own"
    server.close()
    assert not [path for path in find_shared() if path.exists()]


def test_shared_memory_of_a_server_that_does_not_start_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, find_shared: Callable[[], list[Path]]
) -> None:
    class NeverReady(Loading):
        def is_ready(self) -> bool:
            process.is_ending = bool(find_shared())
            return False

    monkeypatch.setattr(generation_server, "NOTE_EVERY_S", 0.0)
    launch = ServerLaunch(
        "server",
        lambda _weights, _port: [sys.executable, "-c", SHARING],
        lambda _url: cast(ServerApi, NeverReady()),
        600,
    )
    process = EngineProcess(tmp_path / "solver-0", launch, {})
    server = GenerationServer("solver-0", launch, process)
    with pytest.raises(EngineAway):
        server.serve(ServedWeights(0, tmp_path))
    server.close()
    [shared] = find_shared()
    assert not shared.exists()


def test_a_server_that_exits_says_so_with_the_end_of_its_log(tmp_path: Path) -> None:
    for code, said in (
        ("raise SystemExit('error: no such argument --x')", "no such argument --x"),
        ("print('ValueError: no such layer'); raise SystemExit('all children are ended')", "ValueError: no such layer"),
        ("raise SystemExit('that is all')", "that is all"),
    ):
        server = build(tmp_path, code)
        with pytest.raises(
            EngineAway, match=rf"(?s)solver-0 does not start: .*exited with code 1 while starting: {said} \(log: "
        ):
            server.serve(ServedWeights(0, tmp_path))
        assert "does not start" in server.trouble
        server.close()
