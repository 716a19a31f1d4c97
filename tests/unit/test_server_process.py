"""Whether an embedded server runs."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from headrace.infra.embedded.server_process import ServerCommand, ServerProcess
from headrace.infra.process.child_process import wait_without_reaping


class Sleeper(ServerProcess):
    """A server that serves nothing."""

    what = "sleeper"
    port_names = ()

    def _command(self) -> ServerCommand:
        code = "import os, time; open('seen', 'w').write(repr(dict(os.environ))); time.sleep(600)"
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


def test_a_server_does_not_run_from_the_moment_it_is_dead(tmp_path: Path) -> None:
    with Sleeper(tmp_path) as server:
        for _ in range(20):
            pid = server.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            wait_without_reaping(pid)
            assert not server.is_alive(), "or a second start would do nothing"
            server.start()
