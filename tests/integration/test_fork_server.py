"""Components forked from one process: each the launcher's own child, as if it were a program that it had started."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from command import words_of
from test_supervisor import HASTE, gone, wait_for

from headrace.infra.process.child_life import Child
from headrace.infra.process.child_process import wait_without_reaping
from headrace.infra.process.fork_client import ForkedProcess, ForkServer
from headrace.infra.process.fork_server import CannotFork, ForkRequest
from headrace.infra.process.supervisor import Supervisor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")

HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE), "OPENBLAS_NUM_THREADS": "1"}
TOY = (sys.executable, "-m", "forked_toy")
PR_GET_CHILD_SUBREAPER = 37


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[ForkServer]:
    server = ForkServer(ENVIRONMENT, tmp_path / "forks.log")
    server.start()
    yield server
    server.stop()


def toy(folder: Path, *words: str, name: str = "toy") -> ForkRequest:
    return ForkRequest(("colorsys", "numpy.random"), name, (*TOY, *words), str(folder / f"{name}.log"))


def said(folder: Path, name: str = "toy") -> list[dict[str, Any]]:
    path = folder / f"{name}.log"
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")] if path.exists() else []


def ended(process: ForkedProcess) -> int:
    wait_without_reaping(process.pid)
    return process.wait()


def children_of_this() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def adopts_orphans() -> bool:
    answer = ctypes.c_int(-1)
    ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return bool(answer.value)


def test_a_fork_is_what_a_program_would_be_with_its_imports_done(forks: ForkServer, tmp_path: Path) -> None:
    process = forks.fork(toy(tmp_path, "--run", "kafka://127.0.0.1:9092/a", name="train-solver"))
    try:
        wait_for(lambda: said(tmp_path, "train-solver"))
        (told,) = said(tmp_path, "train-solver")
        seen = psutil.Process(process.pid)

        assert told["argv"] == ["--run", "kafka://127.0.0.1:9092/a"]
        assert told["is_main"]
        assert told["pid"] == told["session"] == process.pid
        assert told["parent"] == os.getpid()
        assert told["threads"] == 1
        assert told["was_imported"]
        assert told["stdin"] == ""
        assert told["comm"] == "train-solver"
        assert words_of(seen) == [*TOY, "--run", "kafka://127.0.0.1:9092/a"]
        assert seen.ppid() == os.getpid()
        assert sum(seen.cpu_times()[:2]) < 1.0, "what the imports took is the fork server's"
        assert not adopts_orphans(), "what a component leaves behind is for init to reap"
    finally:
        os.kill(process.pid, signal.SIGKILL)
        assert ended(process) == -signal.SIGKILL


@pytest.mark.servers
@pytest.mark.parametrize(("words", "code", "last"), [(("exit", "75"), 75, ""), (("raise",), 1, "ValueError: no spoon")])
def test_the_end_of_a_fork_is_seen_as_a_programs(
    words: tuple[str, ...], code: int, last: str, forks: ForkServer, tmp_path: Path
) -> None:
    process = forks.fork(toy(tmp_path, *words))

    assert ended(process) == code
    assert last in (tmp_path / "toy.log").read_text().splitlines()[-1]


@pytest.mark.servers
def test_forks_draw_other_random_numbers(forks: ForkServer, tmp_path: Path) -> None:
    for process in [forks.fork(toy(tmp_path, "exit", "0")) for _ in range(2)]:
        ended(process)

    first, second = said(tmp_path)
    assert all(one != other for one, other in zip(first["draws"], second["draws"], strict=True))


@pytest.mark.servers
def test_a_fork_has_the_environment_that_was_known_after_the_imports_began(forks: ForkServer, tmp_path: Path) -> None:
    forks.import_early(["colorsys"])
    forks.prepare({**ENVIRONMENT, "PREPARED": "yes"}, tmp_path / "late.log")

    process = forks.fork(toy(tmp_path))
    wait_for(lambda: said(tmp_path))
    assert words_of(psutil.Process(process.pid)) == [*TOY]
    os.kill(process.pid, signal.SIGKILL)
    ended(process)
    with pytest.raises(CannotFork):
        forks.fork(ForkRequest(("no_such_module",), "toy", (*TOY, "exit", "0"), str(tmp_path / "toy.log")))

    (told,) = said(tmp_path)
    assert told["was_imported"]
    assert told["prepared"] == "yes"
    assert (tmp_path / "late.log").exists()


@pytest.mark.servers
def test_what_cannot_be_imported_early_is_reported_by_the_first_fork(forks: ForkServer, tmp_path: Path) -> None:
    forks.import_early(["no_such_module"])
    wait_for(lambda: forks.pid is None)

    with pytest.raises(CannotFork, match="no fork server"):
        forks.fork(toy(tmp_path))


@pytest.mark.servers
def test_a_process_with_threads_is_not_forked(forks: ForkServer, tmp_path: Path) -> None:
    with pytest.raises(CannotFork, match="threads"):
        forks.fork(ForkRequest(("starts_a_thread",), "toy", (*TOY, "exit", "0"), str(tmp_path / "toy.log")))

    assert said(tmp_path) == []
    with pytest.raises(CannotFork, match="no fork server"):
        forks.fork(toy(tmp_path))


@pytest.mark.servers
def test_what_cannot_be_imported_or_written_is_told_and_nothing_is_left(forks: ForkServer, tmp_path: Path) -> None:
    before = children_of_this()
    with pytest.raises(CannotFork, match="nowhere"):
        forks.fork(ForkRequest((), "toy", TOY, str(tmp_path / "nowhere" / "toy.log")))
    assert children_of_this() == before

    with pytest.raises(CannotFork, match="no_such_module"):
        forks.fork(ForkRequest(("no_such_module",), "toy", TOY, str(tmp_path / "toy.log")))


@pytest.mark.servers
def test_a_server_that_does_not_answer_is_given_up_and_what_it_forks_later_ends(
    forks: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.infra.process.fork_client.IMPORT_S", 0.5)
    server = forks.pid
    assert server is not None
    os.kill(server, signal.SIGSTOP)

    with pytest.raises(CannotFork, match="did not answer"):
        forks.fork(toy(tmp_path))

    assert gone(server)
    assert forks.pid is None
    assert said(tmp_path) == []


# ---------------------------------------------------------------------------------------------------- with a supervisor


@contextmanager
def supervised(folder: Path, *children: Child) -> Iterator[tuple[Supervisor, ForkServer]]:
    server = ForkServer(ENVIRONMENT, folder / "forks.log")
    server.start()
    supervisor = Supervisor(children, folder, ENVIRONMENT, patience=HASTE, is_over=lambda: False, forks=server)
    supervisor.start()
    try:
        yield supervisor, server
    finally:
        supervisor.stop(timeout_s=5)


def child(name: str, *words: str, imports: tuple[str, ...] = ("colorsys",)) -> Child:
    return Child(name, [*TOY, *words], imports=imports)


def pid_of(supervisor: Supervisor, name: str) -> int | None:
    return supervisor.states()[name].pid


def test_a_fork_that_is_killed_is_forked_again_and_the_other_lives_on(tmp_path: Path) -> None:
    with supervised(tmp_path, child("a"), child("b")) as (supervisor, _):
        wait_for(lambda: said(tmp_path, "a") and said(tmp_path, "b"))
        first, other = pid_of(supervisor, "a"), pid_of(supervisor, "b")
        assert first is not None
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: len(said(tmp_path, "a")) == 2)

        assert [told["was_imported"] for told in said(tmp_path, "a")] == [True, True]
        assert pid_of(supervisor, "b") == other
        assert supervisor.states()["a"].exit_code == -signal.SIGKILL
        assert supervisor.cpu_seconds()["a"]["process"] > 0


@pytest.mark.servers
def test_a_fork_server_that_is_killed_costs_nobody_his_life_and_what_follows_is_a_program(tmp_path: Path) -> None:
    with supervised(tmp_path, child("a")) as (supervisor, server):
        wait_for(lambda: said(tmp_path, "a"))
        first, forking = pid_of(supervisor, "a"), server.pid
        assert first is not None
        assert forking is not None
        os.kill(forking, signal.SIGKILL)
        wait_for(lambda: not psutil.pid_exists(forking))  # not as a zombie either
        assert pid_of(supervisor, "a") == first
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: len(said(tmp_path, "a")) == 2)

        assert [told["was_imported"] for told in said(tmp_path, "a")] == [True, False]
        supervisor.raise_failure()


@pytest.mark.servers
def test_stop_leaves_no_fork_and_no_server_behind_even_in_the_middle_of_an_import(tmp_path: Path) -> None:
    before = children_of_this()
    slow = child("slow", imports=("slow_to_import",))
    with supervised(tmp_path, child("a"), slow, child("b"), child("c")) as (supervisor, server):
        wait_for(lambda: said(tmp_path, "a"))
        pids = [pid_of(supervisor, "a"), server.pid]
        began = time.monotonic()

        supervisor.stop(timeout_s=300)

        assert time.monotonic() - began < 60
        assert all(pid is not None and not psutil.pid_exists(pid) for pid in pids)
        assert children_of_this() == before
        assert {state.state for state in supervisor.states().values()} == {"stopped"}
        assert said(tmp_path, "b") == []


def test_a_launcher_that_is_killed_leaves_neither_fork_nor_server_behind(tmp_path: Path) -> None:
    code = f"""
        import os, time
        from pathlib import Path
        from headrace.infra.process.fork_client import ForkServer
        from headrace.infra.process.fork_server import ForkRequest
        server = ForkServer(dict(os.environ), Path({str(tmp_path)!r}) / "forks.log")
        server.start()
        toy = server.fork(ForkRequest((), "toy", {TOY!r}, {str(tmp_path / "toy.log")!r}))
        print(toy.pid, server.pid, flush=True)
        time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT) as launcher:
        try:
            assert launcher.stdout is not None
            pids = [int(word) for word in launcher.stdout.readline().split()]
            wait_for(lambda: said(tmp_path))
        finally:
            launcher.kill()

        assert len(pids) == 2
        wait_for(lambda: all(map(gone, pids)))
