"""A user's own workflow with a bug: what the run says, and how it ends."""

from __future__ import annotations

import json
import shutil
import textwrap
from pathlib import Path

import pytest
from command import headrace

pytestmark = pytest.mark.runs
PROJECT = Path(__file__).parent / "own_project"
BUG = """
    from headrace.envs.workflows.single_turn import single_turn


    async def play(problem, env, actors):
        episode = await single_turn(problem, env, actors)
        return {"solver": episode["answer"]}
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
    assert any(f" failed: {error} (solver, turn 1); " in line and " in task " in line for line in told)
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
