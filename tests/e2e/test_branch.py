"""A run that begins with a version of another one, and runs that stop when held-out reward rises no more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import VERSIONS, Finished, headrace

from headrace.infra.run.run import Run
from headrace.ops.lineage.lineage import version_lineage
from headrace.ops.opened_run import open_run
from headrace.trainers.learner.checkpoint import Checkpoint, decode_checkpoint
from headrace.trainers.versions.history import read_history

pytestmark = pytest.mark.runs


def checkpoint(run: Run, version: int) -> Checkpoint:
    claim = read_history(run, "solver").checkpoints[version].checkpoint
    assert claim is not None
    return decode_checkpoint(run.get(claim))


def test_a_branch_begins_with_weights_and_optimizer_of_another_run_and_names_it(
    finished: Finished, rested: Path, tmp_path: Path
) -> None:
    data, summary = tmp_path / "branched", tmp_path / "summary.json"
    words = ("up", "arithmetic", "--plain", "--data", data, "--summary", summary)
    sets = ("trainer.steps=2", "trainer.groups_per_batch=8", "rollout.group_size=4", "evaluate.every=1")
    more = [word for one in ("name=more", *sets, "evaluate.stop_after=9") for word in ("--set", one)]

    done = headrace(*words, "--branch", f"{rested}@{VERSIONS}", *more)

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(summary.read_text())
    assert found["audit"]["ok"]
    assert found["policies"]["solver"]["best"]["version"] in range(3)
    with open_run(None, rested, store=True) as opened:
        parent_id, parent = opened.run.run_id, version_lineage(opened.run, "solver", VERSIONS)
        kept = checkpoint(opened.run, VERSIONS)
    with open_run(None, data, store=True) as opened:
        first = version_lineage(opened.run, "solver", 0)
        begun = checkpoint(opened.run, 0)
    assert first.parent == f"{parent_id} solver@{VERSIONS}"
    assert first.weights_hash == parent.weights_hash
    assert {name: bytes(tensor.data) for name, tensor in begun.tensors.items()} == {
        name: bytes(tensor.data) for name, tensor in kept.tensors.items()
    }
    assert any(name.startswith("exp_avg_sq/") for name in begun.tensors), "the moments of Adam"
    status = headrace("status", "--data", data)
    assert first.parent in status.stdout

    again = headrace(*words, "--branch", f"{rested}@{VERSIONS}", *more)
    assert "is finished" in again.stdout, again.stdout + again.stderr
    other = headrace(*words, "--branch", f"{rested}@0", *more)
    assert other.returncode == 2
    assert f"began with --branch {rested}@{VERSIONS}" in other.stderr
    retrained = headrace("retrain", "--data", data)
    assert retrained.returncode == 0, retrained.stdout + retrained.stderr


def test_a_run_ends_early_and_its_best_version_is_exported(tmp_path: Path) -> None:
    data, summary, out = tmp_path / "data", tmp_path / "summary.json", tmp_path / "best"
    sets = (
        "trainer.steps=60", "trainer.learning_rate=1e-12", "trainer.groups_per_batch=8", "rollout.group_size=4",
        "evaluate.every=1", "evaluate.problems=8", "evaluate.stop_after=2",
    )  # fmt: skip
    words = [word for one in sets for word in ("--set", one)]

    done = headrace("up", "arithmetic", "--plain", "--data", data, "--summary", summary, *words)

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(summary.read_text())
    assert (found["ended"], found["audit"]["ok"]) == ("early_stop", True)
    policy = found["policies"]["solver"]
    assert 2 <= policy["versions"] < 60
    rewards = dict(policy["eval_curve"])
    best = policy["best"]["version"]
    assert policy["best"]["reward"] == pytest.approx(max(rewards.values()), abs=1e-3)
    exported = headrace("weights", "export", out, "--best", "--data", data, "--json")
    assert json.loads(exported.stdout)["version"] == best
    assert (out / "model.safetensors").exists()
