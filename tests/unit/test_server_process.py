"""Whether an embedded server runs."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from patience import PATIENCE_S

from headrace.infra.embedded import server_process, servers
from headrace.infra.embedded.jars import JarUnavailable
from headrace.infra.embedded.server_process import ServerCommand, ServerError, ServerProcess
from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.process.child_process import has_ended, wait_without_reaping


class Sleeper(ServerProcess):
    """A server that serves nothing."""

    what = "sleeper"
    port_names = ()

    def _command(self) -> ServerCommand:
        code = "import os, time; open('part', 'w').write(repr(dict(os.environ))); os.rename('part', 'seen'); "
        code += "time.sleep(600)"
        return ServerCommand([sys.executable, "-c", code], logs=())

    def _is_answering(self) -> bool:
        return (self.folder / "seen").exists()


def test_a_server_gets_an_environment_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dof.the=user")
    monkeypatch.setenv("LC_ALL", "C")
    with Sleeper(tmp_path / "Jürgen"):
        seen = (tmp_path / "Jürgen" / "seen").read_text()
    assert "of.the" not in seen
    assert "'LC_ALL': 'C.UTF-8'" in seen


def test_a_server_that_lacks_what_it_starts_with_is_tried_again_as_one_that_does_not_come_up_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: list[HeadraceError] = [JarUnavailable("no network"), UsageError("no folder"), ServerError("torn")]
    said: list[str] = []
    monkeypatch.setattr(servers, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(servers, "LONGEST_PAUSE_S", 0.0)

    def start() -> None:
        if reasons:
            raise reasons.pop(0)

    broker: Any = SimpleNamespace(what="broker", folder=tmp_path, is_alive=lambda: False, start=start)
    restarter = servers.ServerRestarter(said.append)
    for _ in range(4):
        restarter.revive_if_due(broker)
    assert said[1:] == [
        "the broker does not start: no network\nThe run waits, and tries to start the server until it runs",
        "the broker runs again: the run goes on",
    ]


class Forker(Sleeper):
    """A server whose first process has a child and a grandchild, which hold the pipe `alive` open."""

    def _command(self) -> ServerCommand:
        code = (
            "import os, time\n"
            "if not os.path.exists('seen') and os.fork() == 0:\n"
            "    os.open('alive', os.O_WRONLY)\n"
            "    if os.fork() == 0:\n"
            "        os.setpgid(0, 0)\n"
            "        open('seen', 'w').close()\n"
            "time.sleep(600)"
        )
        return ServerCommand([sys.executable, "-c", code], logs=())


@pytest.mark.parametrize("go_on", [Forker.start, Forker.stop])
def test_what_a_dead_server_leaves_running_ends_before_the_server_is_started_again(
    tmp_path: Path, go_on: Callable[[ServerProcess], object]
) -> None:
    os.mkfifo(tmp_path / "alive")
    alive = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    with Forker(tmp_path) as server:
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_without_reaping(pid)
        go_on(server)
        assert select.select([alive], [], [], PATIENCE_S)[0], "one of them still runs"
    os.close(alive)


def test_no_other_process_gets_the_number_of_a_dead_server_before_its_session_is_killed(tmp_path: Path) -> None:
    of_others = threading.enumerate()
    with Sleeper(tmp_path) as server:
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        for thread in threading.enumerate():
            if thread.name == "child-parent" and thread not in of_others:
                thread.join()
        assert not server.is_alive()
        assert os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT), "it is reaped"


def test_a_server_does_not_run_from_the_moment_it_is_dead(tmp_path: Path) -> None:
    with Sleeper(tmp_path) as server:
        for _ in range(20):
            pid = server.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            wait_without_reaping(pid)
            assert not server.is_alive(), "or a second start would do nothing"
            server.start()


class Stubborn(Sleeper):
    """A server that SIGTERM does not end."""

    def _command(self) -> ServerCommand:
        code = (
            "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('seen', 'w').close(); "
            "time.sleep(600)"
        )
        return ServerCommand([sys.executable, "-c", code], logs=())


def test_a_stop_with_little_time_also_ends_the_wait_of_one_that_is_under_way(tmp_path: Path) -> None:
    server = Stubborn(tmp_path).start()
    pid = server.pid
    assert pid is not None
    long, short = (threading.Thread(target=server.stop, args=(limit_s,)) for limit_s in (60.0, 0.01))
    long.start()
    while not server._stopping.locked():
        time.sleep(0.001)
    short.start()
    short.join(60)
    waits = short.is_alive()
    if waits:
        os.kill(pid, signal.SIGKILL)
    for stopping in (long, short):
        stopping.join()
    assert not waits


def test_a_server_that_is_started_again_while_it_is_stopped_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, started = Sleeper(tmp_path).start(), list[int | None]()
    stop_child = server_process._stop_child

    def stop_child_before_a_start(*given: Any) -> bool:
        was_enough = stop_child(*given)
        if not started:
            started.append(server.start().pid)
        return was_enough

    monkeypatch.setattr(server_process, "_stop_child", stop_child_before_a_start)
    server.stop()
    [pid] = started
    assert pid is not None
    is_left = not has_ended(pid)
    if is_left:
        os.kill(pid, signal.SIGKILL)
    assert not is_left


def test_a_server_that_is_reaped_as_it_is_to_be_stopped_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Sleeper(tmp_path).start()

    def look_before_it_is_reaped(_pid: int) -> bool:
        monkeypatch.setattr(server_process, "has_ended", has_ended)
        assert server._process is not None
        server._process.kill()
        server._process.wait()
        return False

    monkeypatch.setattr(server_process, "has_ended", look_before_it_is_reaped)
    server.stop()
    assert not server.is_alive()
