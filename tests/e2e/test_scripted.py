"""The recipes whose policy plays by script, compared as a user compares them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import headrace

SWEEP = """
name = "orders"
seeds = [3]
set = ["trainer.steps=6", "evaluate.every=3", "rollout.engine.seconds_per_token=0.001"]

[[variants]]
recipe = "efficient-data/edf"

[[variants]]
recipe = "efficient-data/fifo"
"""


def test_runs_by_script_train_every_version_and_answer_alike(tmp_path: Path) -> None:
    file = tmp_path / "orders.toml"
    file.write_text(SWEEP)

    done = headrace("compare", file, "--data", tmp_path / "data", "--json")

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    edf, fifo = (run["summary"] for run in found["runs"].values())
    for summary in (edf, fifo):
        assert summary["audit"]["ok"]
        assert summary["versions"] == 6
    curves = [summary["policies"]["solver"]["eval_curve"] for summary in (edf, fifo)]
    assert curves[0] == curves[1], "the same tasks at the same versions"
    assert [version for version, _ in curves[0]] == [0, 3, 6]
    assert curves[0][0][1] == pytest.approx(0.4, abs=0.2), "3/4 sigma(0) + 1/4 sigma(-2)"
    for variant in found["variants"].values():
        solver = variant["policies"]["solver"]
        assert solver["trained_share"]["mean"] + solver["discarded_share"]["mean"] == pytest.approx(1)
        assert 4 < solver["length_trained"]["mean"] < 40
        assert solver["length_bias"]["n"] == 1
