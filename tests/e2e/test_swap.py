"""A run whose chain is swapped twice while it goes on, its curator killed: everything that looks at a run agrees."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from command import UNLEARNED, command, headrace, processes_of, wait_for_version, words_of

STEPS = 80
"""Enough that the run still goes on when commands beside it have been answered: a version takes a third of a second."""
WORDS = (
    *("up", "arithmetic", "--plain", *UNLEARNED, "--set", f"trainer.steps={STEPS}", "--set", "evaluate.every=0"),
    *("--set", "trainer.groups_per_batch=16"),
)
REPLAYING = """
[[curate.chain]]
use = "validate"
[[curate.chain]]
use = "replay_latest"
ratio = 0.5
max_uses = 2
"""
SAMPLING = """
[[curate.chain]]
use = "max_staleness"
[[curate.chain]]
use = "pods"
m = 4
"""


def swap(data: Path, chain: str, *more: str) -> dict[str, Any]:
    file = data.parent / "chain.toml"
    file.write_text(chain)
    done = headrace("swap", file, "--data", data, "--json", *more)
    found: dict[str, Any] = json.loads(done.stdout)
    return {"code": done.returncode, **found}


def kill_curator(data: Path) -> None:
    """Kill the curator, waiting for it where it was killed just before."""
    end = time.monotonic() + 60
    while not (curators := [process for process in processes_of(data) if "curate" in words_of(process)]):
        assert time.monotonic() < end, "there is no curator"
        time.sleep(0.05)
    for process in curators:
        process.kill()


def asked(*words: str | Path) -> Any:
    done = headrace(*words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.runs
def test_a_run_goes_on_through_two_swaps_and_its_audit_archive_and_retraining_agree(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with subprocess.Popen(
        command(*WORDS, "--data", data), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as launcher:
        wait_for_version(data, launcher, 2)
        first = swap(data, REPLAYING)
        assert (first["before"], first["revision"], first["swapped"]) == (0, 1, True), first
        wrong = swap(data, '[[curate.chain]]\nuse = "pod"\nm = 4\n')
        assert (wrong["code"], "pods" in wrong["error"]) == (2, True), "the nearest name is told"
        kill_curator(data)  # it is restarted, whichever chains it had then
        wait_for_version(data, launcher, 5)
        kill_curator(data)
        wait_for_version(data, launcher, 8)
        launcher.send_signal(signal.SIGINT)
        told, _ = launcher.communicate(timeout=300)
    assert "recipe revision 1 is in force from task sums:" in told
    assert "on: chain validate → replay_latest ratio=0.5 max_uses=2\n" in told
    assert " replayed=" in told

    assert swap(data, SAMPLING, "--dry-run")["swapped"] is False
    assert swap(data, REPLAYING)["swapped"] is False, "it has this chain already"
    second = swap(data, SAMPLING)
    assert (second["before"], second["revision"], second["swapped"]) == (1, 2, True), "a run that rests is swapped too"
    done = headrace(*WORDS, "--data", data)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "recipe revision 2 is in force from task sums:" in done.stdout
    assert "revision 1 is in force" not in done.stdout, "that was told before"
    assert "replays, " in done.stdout.partition("training reward")[2], "the closing page tells of them"
    ended = swap(data, REPLAYING)
    assert ended["code"] == 1
    assert "has ended" in ended["error"]

    status = asked("status", "--data", data)
    assert [one["revision"] for one in status["revisions"]] == [0, 1, 2]
    assert all(one["groups"] for one in status["revisions"]), "groups went through each chain"
    assert status["revisions"][1]["chain"] == first["chain"], "in the same words"
    assert status["revisions"][2]["chain"] == ["max_staleness", "pods m=4"]
    assert [one["in_force"] for one in status["revisions"]] == [False, False, True]
    audit = asked("audit", "--data", data, "--deep")
    assert audit["ok"], audit["problems"]
    begins = audit["revisions"]["sums"]
    assert [revision for revision, _ in begins] == [0, 1, 2]
    assert [first for _, first in begins] == sorted({first for _, first in begins}), "each has numbers of its own"
    assert [first for _, first in begins] == [one["begins"]["sums"] for one in status["revisions"]]
    assert audit["policies"]["solver"]["replayed"] > 0
    archive, tried_archive = tmp_path / "run.archive", tmp_path / "tried.archive"
    asked("archive", "--data", data, "--out", archive)
    curated = asked("offline", "curate", "--from", archive, "--out", tried_archive)
    assert (curated["kept"], curated["sha256"]) == (
        audit["curated"]["solver"]["n"],
        audit["curated"]["solver"]["sha256"],
    )
    retrained = asked("retrain", "--data", data)
    assert retrained["ok"]
    assert len(retrained["versions"]) == STEPS
