"""Harbor tasks in real boxes: made tasks are right, and nothing that an agent does reaches the grade."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from users import ROOT, skip_without

from headrace.app.cli.main import app
from headrace.envs.contract import Score
from headrace.envs.harbor.boxes import TaskFailed, grade_task, open_task
from headrace.envs.harbor.errands import COMMANDS, Errands
from headrace.envs.harbor.task import read_task
from headrace.envs.harbor.writing import build_task, write_files
from headrace.envs.terminal.commands import Limits
from headrace.envs.terminal.solutions import play_and_grade, play_commands

pytestmark = pytest.mark.sandbox
EASY = build_task("easy", {"a": "1\n"}, ['[ "$(cat a)" = 2 ]'])


@pytest.fixture(autouse=True)
def skip_without_boxes() -> None:
    skip_without("unshare")


def play(folder: Path, *commands: str, **changed: str) -> Score:
    """Return the score of a task after commands; `changed` has other contents for test or Dockerfile."""
    names = {"test": "tests/test.sh", "dockerfile": "environment/Dockerfile", "task": "task.toml"}
    write_files(folder / "task", EASY | {names[key]: text for key, text in changed.items()})
    task = read_task("task", folder / "task")

    async def run() -> Score:
        opened = await open_task(task)
        try:
            for command in commands:
                await opened.box.exec(command, cwd=opened.folder)
            return await grade_task(task, opened.box)
        finally:
            await opened.box.stop()

    return asyncio.run(run())


def check(folder: Path) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(app, ["check-tasks", str(folder), "--json"])
    return done.exit_code, {row["task"]: row for row in json.loads(done.stdout)}


def test_the_made_tasks_of_five_kinds_are_right(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "examples" / "terminal_tasks.py"), str(tmp_path / "tasks")], check=True)
    code, rows = check(tmp_path / "tasks")
    assert (code, len(rows)) == (0, 20)
    assert {(row["solution"], row["nothing"], row["fault"]) for row in rows.values()} == {(1.0, 0.0, "")}
    shown = CliRunner().invoke(app, ["check-tasks", str(tmp_path / "tasks" / "count-1")])
    assert "1 of 1 task right" in shown.stdout


def test_a_wrong_task_is_a_row_with_its_reason(tmp_path: Path) -> None:
    for name, changes, why in (
        ("unreadable", {"environment/Dockerfile": "FROM x\nUSER me\n"}, "Dockerfile:2: `USER me` is refused"),
        ("unsolved", {}, "it has no solution/solve.sh"),
        (
            "wrong",
            {"solution/solve.sh": "echo no; echo 3 > a"},
            "its solution gets a reward of 0, not 1; it printed: no",
        ),
        ("easy", {"solution/solve.sh": "true", "environment/given/a": "2"}, "doing nothing gets a reward of 1"),
        ("mute", {"solution/solve.sh": "echo 2 > a", "tests/test.sh": "uv run x"}, "uv: command not found"),
    ):
        write_files(tmp_path / name, EASY | changes)
        code, rows = check(tmp_path)
        assert code == 1
        assert why in rows[name]["fault"], rows[name]


def test_forged_rewards_and_other_tests_in_the_agents_box_change_nothing(tmp_path: Path) -> None:
    forge = "mkdir -p /logs/verifier /tests logs/verifier tests; for at in /logs logs ~/logs /tmp/logs; do "
    forge += "mkdir -p $at/verifier; echo 1 | tee $at/verifier/reward.txt > $at/verifier/reward.json; done; "
    forge += "echo 'echo 1 > /logs/verifier/reward.txt' | tee /tests/test.sh > tests/test.sh; "
    forge += "printf '#!/bin/sh\\necho 1' > cat; chmod +x cat; echo 'exit 0' > ~/.bashrc; ln -s /tests/test.sh b; "
    forge += "(while :; do echo 1 > /logs/verifier/reward.txt; sleep 0.01; done) 2> /dev/null &"
    assert play(tmp_path / "forged", forge) == Score(0.0)
    assert play(tmp_path / "right", "echo 2 > a") == Score(1.0)
    assert play(
        tmp_path / "tests", "echo 2 > a", test="echo x > /tests/test.sh; echo 0.5 > /logs/verifier/reward.txt"
    ) == (Score(0.5))
    flooded = "i=0; while [ $i -lt 3000 ]; do : > f$i; i=$((i + 1)); done; ln -s loop loop"
    assert play(tmp_path / "links", "rm a; ln -s /etc/shadow a; mkfifo p; ln -s / all") == Score(0.0)
    assert play(tmp_path / "flooded", flooded).reward == 0


def test_a_task_that_gives_no_reward_or_takes_too_long_is_an_error_and_no_reward_of_0(tmp_path: Path) -> None:
    for name, test, why in (
        ("none", "echo broken >&2; exit 1", "wrote nothing to /logs/verifier/reward.txt .exit code 1: broken"),
        ("words", "echo good > /logs/verifier/reward.txt", "has no number"),
        ("infinite", "echo nan > /logs/verifier/reward.txt", "not finite"),
        ("slow", "sleep 9", "took longer than verifier.timeout_sec"),
    ):
        task = EASY["task.toml"].replace("verifier = { timeout_sec = 60 }", "verifier = { timeout_sec = 0.5 }")
        with pytest.raises(TaskFailed, match=why):
            play(tmp_path / name, test=test, task=task if name == "slow" else EASY["task.toml"])
    with pytest.raises(TaskFailed, match=r"Dockerfile:2: `RUN mkdir /data` fails .*Read-only.* to /app"):
        play(tmp_path / "run", dockerfile="FROM x\nRUN mkdir /data\n")


def test_lines_of_a_dockerfile_are_replayed_in_both_boxes(tmp_path: Path) -> None:
    lines = "FROM x\nENV WORD=two PATH=/opt/bin:$PATH\nWORKDIR /srv/app\nCOPY given/a /opt/bin/say\nRUN chmod +x \\\n"
    lines += "  /opt/bin/say && echo $WORD > made\n"
    test = "[ $(cat made) = $WORD ] && [ $PWD = /srv/app ] && [ -x /opt/bin/say ] && echo 1 > /logs/verifier/reward.txt"
    assert play(tmp_path, dockerfile=lines, test=test) == Score(1.0)


def test_an_agent_reaches_the_allowed_hosts_of_its_task_and_the_tests_do_not(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        allowed = f'network_mode = "allowlist", allowed_hosts = ["127.0.0.1:{port}"]'
        task = EASY["task.toml"].replace('network_mode = "no-network"', allowed)
        task = task.replace("verifier = { ", 'verifier = { network_mode = "no-network", ')
        reach = f"(echo > /dev/tcp/127.0.0.1/{port})"
        test = f"{reach} || cp a /logs/verifier/reward.txt"
        assert play(tmp_path, f"{reach} && echo 0.5 > a", task=task, test=test) == Score(0.5)


def test_errands_are_solved_by_their_commands_alone_and_only_in_order() -> None:
    errands, seen = Errands(1), set[str]()
    for index in range(40):
        problem = errands.problem("train", index)
        if problem.tier not in seen:
            seen.add(problem.tier)
            played = asyncio.run(play_commands(errands, problem, Limits()))
            assert (played.reward, played.fault) == (1.0, "")
            commands = errands.list_commands(problem)[::-1]
            _, reward = asyncio.run(play_and_grade(errands, problem, commands, Limits()))
            assert reward < 1, problem.task_id
    assert seen == set(COMMANDS)


def test_try_plays_the_solutions_and_shows_commands_and_output() -> None:
    words = ["try", "terminal", "--tasks", "1", "--set", "rollout.group_size=2"]
    words += [word for answer in ("echo hi", "echo hi", "done", "done") for word in ("--answer", answer)]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "140"})
    assert done.exit_code == 0, done.output
    assert "worked solutions  16 of 16 give a reward of 1" in done.stdout
    assert re.search(r"generated +0 .* echo hi *\n +observation +1 .* hi", done.stdout)
