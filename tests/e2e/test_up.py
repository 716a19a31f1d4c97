"""`headrace up` as a user meets it: begun, interrupted, gone on with, finished, looked at, removed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

STEPS = 6
QUICK = (
    f"trainer.steps={STEPS}",
    "trainer.checkpoint_every=2",
    "policies.solver.warm_start.reward_low=0.05",
    "policies.solver.warm_start.held_out=64",
    "evaluate.problems=16",
)
KEYS = {
    "run", "versions", "wall_s", "reward_first", "reward_last", "eval_first", "eval_last", "groups", "audit",
    "log_share", "log_cpu_share", "tokens_per_s", "samples_per_s",
}  # fmt: skip


def headrace(*words: str) -> list[str]:
    return [sys.executable, "-m", "infra.cli", *words]


def run(*words: str, timeout_s: float = 200) -> subprocess.CompletedProcess[str]:
    return subprocess.run(headrace(*words), check=False, capture_output=True, text=True, timeout=timeout_s)


def up(folder: Path, *more: str) -> list[str]:
    sets = [word for change in QUICK for word in ("--set", change)]
    return ["up", "arithmetic", *sets, "--data", str(folder), "--plain", *more]


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return processes that work for a data folder: its servers, by their folder, and components, by its address."""
    notes = json.loads((folder / "run.json").read_text())
    marks = (str(folder), f"kafka://{notes['bootstrap']}/")
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and any(mark in word for word in process.cmdline() for mark in marks):
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_until_trained(folder: Path, launcher: subprocess.Popen[str], version: int) -> None:
    """Wait for a version in the trainer's log; a log is what an operator would look at, too."""
    log = folder / "logs" / "train-solver.log"
    end = time.monotonic() + 150
    while not (log.exists() and f'"version": {version}, ' in log.read_text()):
        assert launcher.poll() is None, "up ended before its time"
        assert time.monotonic() < end, f"version {version} did not come"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, float, int]:
    """Return a run that was interrupted after its first version: folder, what `up` said, seconds, exit code."""
    folder = tmp_path_factory.mktemp("up") / "run"
    with subprocess.Popen(
        headrace(*up(folder)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as launcher:
        wait_until_trained(folder, launcher, 1)
        began = time.monotonic()
        launcher.send_signal(signal.SIGINT)
        said, _ = launcher.communicate(timeout=30)
        return folder, said, time.monotonic() - began, launcher.returncode


@pytest.fixture(scope="module")
def finished(interrupted: tuple[Path, str, float, int]) -> tuple[Path, dict[str, Any], str]:
    """Return the same run, gone on with until its end: folder, summary, what `up` said."""
    folder = interrupted[0]
    summary = folder.parent / "summary.json"
    done = run(*up(folder, "--summary", str(summary)))
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, json.loads(summary.read_text()), done.stdout


def test_ctrl_c_stops_everything_within_ten_seconds_and_tells_how_to_go_on(
    interrupted: tuple[Path, str, float, int],
) -> None:
    folder, said, seconds, code = interrupted

    assert code == 130
    assert seconds < 10.5
    assert f"up arithmetic --set trainer.steps={STEPS}" in said
    assert not processes_of(folder)


def test_the_same_command_goes_on_to_the_end_and_the_audit_closes(finished: tuple[Path, dict[str, Any], str]) -> None:
    folder, summary, said = finished

    assert summary.keys() >= KEYS
    assert summary["versions"] == STEPS
    assert summary["audit"] == {"ok": True, "lost": 0, "doubled": 0}
    groups = summary["groups"]
    assert groups["issued"] == groups["trained"] + sum(groups["discarded"].values()) + groups["dead"]
    assert groups["in_flight"] == 0
    assert groups["trained"] == STEPS * 32
    assert summary["eval_first"] is not None
    assert 0 < summary["log_share"] < 1
    assert 0 < summary["log_cpu_share"] < 1
    assert "Try next" in said
    assert not processes_of(folder)


def test_a_finished_run_says_so_and_gives_the_same_summary(finished: tuple[Path, dict[str, Any], str]) -> None:
    folder, before, _ = finished
    summary = folder.parent / "again.json"

    done = run(*up(folder, "--summary", str(summary)))

    assert done.returncode == 0
    assert "is finished" in done.stdout
    after = json.loads(summary.read_text())
    assert {**after, "data": None} == {**before, "data": None}


def test_a_changed_recipe_needs_to_be_asked_for(finished: tuple[Path, dict[str, Any], str]) -> None:
    done = run(*up(finished[0], "--set", f"trainer.steps={STEPS + 1}"))

    assert done.returncode == 2
    assert f"trainer.steps: {STEPS} -> {STEPS + 1}" in done.stderr
    assert "--new-recipe" in done.stderr


def test_status_and_audit_of_a_run_that_rests_start_its_broker_and_stop_it(
    finished: tuple[Path, dict[str, Any], str],
) -> None:
    folder, summary, _ = finished

    status = run("status", "--data", str(folder), "--json")
    audit = run("audit", "--data", str(folder), "--json")

    assert status.returncode == audit.returncode == 0
    told = json.loads(status.stdout)
    assert (told["run"], told["state"], told["versions"]) == ("arithmetic", "finished", {"solver": STEPS})
    assert told.keys() >= {"run", "state", "versions", "groups", "lag", "workers"}
    assert told["groups"] == summary["groups"]
    assert json.loads(audit.stdout)["ok"] is True
    assert not processes_of(folder)
