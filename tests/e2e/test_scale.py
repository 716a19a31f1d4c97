"""A run whose workers come and leave while it goes on: nothing is lost, and what was asked holds after a stop."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from command import headrace, words_of
from test_faults import children, started, until

STEPS = 150
"""Enough that the run still goes on when all commands have been answered: it makes up to three versions a second."""
WORDS = (
    *("up", "efficient-data/fifo", "--plain", "--set", f"trainer.steps={STEPS}", "--set", "evaluate.every=0"),
    *("--set", "feed.solved_share=1", "--set", "kafka.partitions=8"),
)

STARVING = """
extends = "efficient-data/scripted"
name = "starving"
workflows.sums.env = { use = "scripted", levels = [0], tasks = 64 }
rollout.engine = { use = "scripted", rate = 0.0, difficulties = [0.0], tokens = [4], seconds_per_token = 0.2 }
rollout.concurrency = 8
curate.chain = ["validate"]
trainer = { steps = 60, groups_per_batch = 2, max_staleness = 2 }
evaluate.every = 0
feed.solved_share = 1
kafka.partitions = 4
"""
"""A worker plays a group a second, and the trainer could take twenty."""


@pytest.mark.runs
def test_a_run_is_scaled_up_and_down_and_resumed_and_its_audit_closes(tmp_path: Path) -> None:
    data, output, again = tmp_path / "data", tmp_path / "up.txt", tmp_path / "again.txt"

    def says(words: str, file: Path = output) -> Callable[[], bool]:
        return lambda: words in file.read_text()

    def scale(*numbers: str) -> list[str]:
        done = headrace("scale", *numbers, "--data", data, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        told: list[str] = json.loads(done.stdout)["sentences"]
        return told

    def workers(up: int) -> dict[str, psutil.Process]:
        found = {" ".join(words_of(one)): one for one in children(up)}
        return {name[0]: one for words, one in found.items() if (name := re.findall(r"--name (\S+)", words))}

    def plays(worker: str) -> Callable[[], bool]:
        log = data / "logs" / f"{worker}.log"
        return lambda: log.exists() and "worker.starting" in log.read_text()

    with started(output, *WORDS, "--data", data) as up:
        until(lambda: bool(re.search(r"version [1-9]", output.read_text())), "versions are made")
        before = workers(up.pid)
        [first] = before
        pool = first.removesuffix("-0")
        eight = {f"{pool}-{n}" for n in range(8)}
        assert scale("rollout=8") == [f"{pool}: 1 -> 8 workers"]
        until(says(f"{pool}: 1 -> 8 workers"), "`up` says what it does")
        until(lambda: workers(up.pid).keys() == eight, "all are there")
        until(plays(f"{pool}-7"), "the eighth begins")
        assert workers(up.pid)[first].pid == before[first].pid, "nothing else is started again"
        scale("rollout=1")
        until(lambda: list(workers(up.pid)) == [first], "the highest numbers leave")
        scale("rollout=2")
        until(says(f"{pool}: 1 -> 2 workers"), "and one comes back")
        up.send_signal(signal.SIGINT)
        assert up.wait(300) == 130, output.read_text()
    assert " died " not in output.read_text(), "who leaves is not dead"

    refused = headrace("scale", "rollout=2", "--data", data)
    assert (refused.returncode, f"no `headrace up` runs the run in {data}" in refused.stderr) == (1, True)
    with started(again, *WORDS, "--data", data) as up:
        until(says(f"as `headrace scale` asked, {pool}: 1 -> 2 workers", again), "what was asked holds")
        until(lambda: workers(up.pid).keys() == {first, f"{pool}-1"}, "both are there")
        assert up.wait(600) == 0, again.read_text()
    audit = headrace("audit", "--data", data)
    assert audit.returncode == 0, audit.stdout + audit.stderr


@pytest.mark.runs
def test_a_starved_trainer_gets_workers_and_each_decision_is_on_the_log(tmp_path: Path) -> None:
    data, output, log = tmp_path / "data", tmp_path / "up.txt", tmp_path / "autoscale.txt"
    recipe = tmp_path / "starving.toml"
    recipe.write_text(STARVING)
    with started(output, "up", recipe, "--plain", "--data", data) as up:
        until(lambda: bool(re.search(r"version [1-9]", output.read_text())), "versions are made")
        with started(log, "autoscale", "--data", data, "--max", "3", "--every", "0.5") as autoscaler:
            until(lambda: "rollout-sums: 1 -> 3 workers" in output.read_text(), "`up` does what was decided")
            found = json.loads(headrace("status", "--data", data, "--json").stdout)
            assert up.wait(600) == 0, output.read_text()
            assert autoscaler.wait(60) == 0, log.read_text()
    events = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    decided = [event for event in events if event["event"] == "scaling.decided"]
    assert [(event["before"], event["after"]) for event in decided] == [(1, 3)], "3 are too few, and no more may be"
    [decision] = found["scaling"]
    assert (decision["before"], decision["after"], decision["policy"]) == (1, 3, "solver")
    assert decision["reason"] == decided[0]["why"]
    assert "waited for groups" in decision["reason"]
    audit = headrace("audit", "--data", data)
    assert audit.returncode == 0, audit.stdout + audit.stderr
