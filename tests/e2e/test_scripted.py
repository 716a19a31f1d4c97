"""The recipes whose policy plays by script, compared as a user compares them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from command import headrace

from headrace.infra.recipe.recipe_file import load_recipe
from headrace.producers.engines.scripted import ScriptedSettings
from headrace.schemas.ids import derive_seed, derive_task_seed
from headrace.schemas.topics import eval_stream

SWEEP = """
name = "orders"
seeds = [3]
set = ["trainer.steps=6", "evaluate.every=3", "rollout.engine.seconds_per_token=0.001"]

[[variants]]
recipe = "efficient-data/edf"

[[variants]]
recipe = "efficient-data/fifo"
"""


EVALUATIONS = [(0, 0), (1, 3), (2, 6)]
"""(how many were before it, version)"""


def predicted(nth: int, version: int) -> float:
    """Return the reward of an evaluation: who is right follows from the seed of its task alone."""
    recipe = load_recipe("efficient-data/edf")
    script, levels = ScriptedSettings(**recipe.rollout.engine.settings), recipe.workflows["sums"].env.settings["levels"]
    problems, right = recipe.evaluate.problems, 0
    for index in range(problems):
        seed = derive_task_seed(3, eval_stream("sums"), nth * problems + index)
        drawn = random.Random(derive_seed(derive_seed(seed, 0, "solver", "solver"), 0)).random()  # noqa: S311
        right += drawn < script.chance(levels[index % len(levels)], version)
    return right / problems


@pytest.mark.runs
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
    assert curves[0] == [[version, pytest.approx(predicted(nth, version), abs=1e-4)] for nth, version in EVALUATIONS]
    for variant in found["variants"].values():
        solver = variant["policies"]["solver"]
        assert 0 <= solver["discarded_share"]["mean"] < 1
        assert 4 < solver["length_trained"]["mean"] < 40
        assert solver["length_bias"]["n"] <= 1
