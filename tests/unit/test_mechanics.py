"""What selection, filters, replay and order do to a run, by the recipes that are shipped and a policy by script.

Who is right by chance is a function of a task's seed, so every figure here is the same in every run of the tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from logical_run import LogicalRun

from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.settings import Recipe
from headrace.infra.recipe.table import Named
from headrace.ops.discards import summarize_fates

SMALL = (
    "trainer.steps=30",
    "trainer.groups_per_batch=8",
    "rollout.group_size=2",
    "evaluate.every=0",
)
VERSION_S = 0.15
"""A hard task of the recipe takes four versions then, an easy one half of one."""


def by_fate(run: LogicalRun) -> Mapping[str, int]:
    counts = Counter[str]()
    for (fate, _), count in run.fates.items():
        counts[fate] += count
    return counts


def scripted(other: str, tasks: int = 64, **engine: object) -> Recipe:
    """Return the scripted recipe with chain and selector of another one, and settings of its engine."""
    own, named = load_recipe("efficient-data/scripted", SMALL), load_recipe(f"efficient-data/{other}")
    settings = {**own.rollout.engine.settings, **engine}
    levels = list(range(len(settings["tokens"])))
    workflow = own.workflows["sums"].model_copy(update={"env": Named(use="scripted", levels=levels, tasks=tasks)})
    rollout = own.rollout.model_copy(update={"engine": Named(use="scripted", **settings)})
    update = {"curate": named.curate, "feed": named.feed, "workflows": {"sums": workflow}, "rollout": rollout}
    return own.model_copy(update=update)


def test_first_come_first_served_loses_long_tasks_where_the_earliest_deadline_first_loses_none() -> None:
    edf, fifo = (LogicalRun(load_recipe(f"efficient-data/{order}", SMALL), VERSION_S) for order in ("edf", "fifo"))
    edf.play()
    fifo.play()
    assert by_fate(edf) == {"trained": 240}
    assert edf.fates["trained", "level1"] == 60, "one in four, as they are asked"
    assert by_fate(fifo)["expired"] > 40
    assert fifo.fates["expired", "level0"] == 0
    assert fifo.fates["trained", "level1"] < 20
    found = summarize_fates(fifo.ledger)
    assert found.discarded["expired"].length == 40
    assert found.bias is not None
    assert found.bias.low > 4
    assert summarize_fates(edf.ledger).trained.length == pytest.approx(13), "(3 x 4 + 40) / 4"


def test_where_hard_tasks_take_no_longer_than_a_version_the_order_costs_nothing() -> None:
    for order in ("edf", "fifo"):
        assert by_fate(LogicalRun(load_recipe(f"efficient-data/{order}", SMALL), 1.0).play()) == {"trained": 240}


def test_dynamic_sampling_rejects_what_has_equal_rewards_and_the_feeder_asks_for_more() -> None:
    run = LogicalRun(scripted("ds", rate=0.0, difficulties=[0.0, -99.0], tokens=[4, 4]), VERSION_S).play()
    assert run.fates["trained", "level0"] == 240
    assert run.fates["trained", "level1"] == 0
    rejected, kept = run.fates["zero_variance", "level0"], run.fates["trained", "level0"]
    assert rejected / (rejected + kept) == pytest.approx(0.5, abs=0.08), "of two that are right by chance"
    assert run.fates["zero_variance", "level1"] == pytest.approx(rejected + kept, abs=100)
