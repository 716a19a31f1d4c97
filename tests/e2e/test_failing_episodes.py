"""A user's own workflow with a bug, and an own judge that is not there: what the run says, and how it ends."""

from __future__ import annotations

import json
import shutil
import socket
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import free_port, headrace
from test_faults import started, until

pytestmark = pytest.mark.runs
PROJECT = Path(__file__).parent / "own_project"
BUG = """
    from headrace.envs.workflows.single_turn import single_turn


    async def play(problem, env, actors):
        episode = await single_turn(problem, env, actors)
        return {"solver": episode["answer"]}
"""
JUDGE = """
    import socket

    from envs.coins import Coins


    class Remote(Coins):
        def __init__(self, seed, port):
            super().__init__(seed)
            self.port = port

        def score(self, problem, text):
            with socket.create_connection(("127.0.0.1", self.port), timeout=5):
                return super().score(problem, text)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PROJECT, tmp_path / "project"))


def test_a_bug_in_an_own_workflow_is_told_with_its_line_and_ends_the_run_with_exit_code_1(
    project: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    (project / "flow.py").write_text(textwrap.dedent(BUG))
    words = ("up", project / "run.toml", "--set", "workflows.coins.workflow=flow:play", "--data", data, "--plain")
    done = headrace(*words, "--set", "launch.all_failed_limit_s=3", where=tmp_path)
    error = "KeyError: 'answer' at flow.py:7 in play"

    assert done.returncode == 1, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if error in line]
    assert any(f" failed: {error} (solver, turn 1); the first in " in line for line in told)
    assert any("solver gets no episode: all " in line for line in told)
    assert "error: solver gets no episode: all " in done.stderr
    assert error in done.stderr
    assert "(launch.all_failed_limit_s)" in done.stderr
    log = (data / "logs" / "rollout-coins-0.log").read_text()
    lines = [json.loads(line) for line in log.splitlines() if '"episode.failed"' in line]
    assert [line["times"] for line in lines] == [10**power for power in range(len(lines))]
    assert lines[0]["traceback"].rstrip().endswith("KeyError: 'answer'")
    assert not any(line["traceback"] for line in lines[1:])
    status = json.loads(headrace("status", "--data", data, "--json").stdout)
    [one] = status["errors"]
    assert (one["detail"], one["at"]) == ("KeyError: 'answer'", "flow.py:7 in play")
    assert (one["role"], one["turn"]) == ("solver", 1)
    assert one["count"] >= 32
    for command in (("status",), ("discards",), ("lineage", "--group", f"coins:{one['number']}")):
        shown = headrace(*command, "--data", data, COLUMNS="300")
        assert error in shown.stdout, shown.stdout + shown.stderr
    first = f"coins:{lines[0]['number']}"
    group = json.loads(headrace("lineage", "--group", first, "--data", data, "--json").stdout)
    [attempt] = group["policies"]["solver"]["attempts"]
    assert attempt["errors"][0]["episodes"] == 4
    assert "flow.py" in attempt["traceback"]
    seen = headrace("inspect", "--trajectory", f"{first}:0", "--data", data)
    assert seen.returncode == 2
    assert error in " ".join(seen.stderr.split())


@contextmanager
def answering(port: int) -> Iterator[None]:
    """A judge at that port."""
    with socket.create_server(("127.0.0.1", port)) as server:

        def answer() -> None:
            while True:
                try:
                    server.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_judge_that_cannot_be_reached_is_waited_for_and_no_episode_fails(project: Path, tmp_path: Path) -> None:
    data, output, port = tmp_path / "data", tmp_path / "up.txt", free_port()
    (project / "judge.py").write_text(textwrap.dedent(JUDGE))
    words = ("up", project / "run.toml", "--set", f'workflows.coins.env={{use="judge:Remote",port={port}}}')
    words = (*words, "--set", "launch.all_failed_limit_s=1", "--set", "trainer.steps=2", "--data", data, "--plain")
    with started(output, *words) as up:
        until(lambda: "solver waits: its environment cannot be reached (" in output.read_text(), "it is told")
        with answering(port):
            assert up.wait(300) == 0, output.read_text()
    assert "ConnectionRefusedError" in output.read_text()
    status = json.loads(headrace("status", "--data", data, "--json").stdout)
    assert (status["errors"], status["versions"]) == ([], {"solver": 2})
    assert not status["groups"]["discarded"].get("failed")
