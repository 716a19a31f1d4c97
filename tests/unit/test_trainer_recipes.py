"""What a trainer does when a later recipe is written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from made_recipes import sums_recipe

from headrace.infra.kafka.clients import Connection, Message, RunAddress
from headrace.infra.process.signals import MustRestart
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import Run
from headrace.schemas import codec
from headrace.schemas.records import RecipeRevision
from headrace.trainers.trainer import Trainer

PLAIN = sums_recipe(trainer={"groups_per_batch": 32})
RECIPE = Recipe.from_json(
    Recipe.model_validate({**PLAIN.model_dump(mode="json"), "shadows": {"free": {"trainer": {"steps": 9}}}}).to_json()
)


def changed(**tables: dict[str, Any]) -> Recipe:
    """The recipe with some keys changed."""
    plain = RECIPE.model_dump(mode="json")
    return Recipe.model_validate(
        plain | {name: {**plain[name], **table} if table else {} for name, table in tables.items()}
    )


def follow(recipe: Recipe, revision: int = 1, variant: str = "solver", run_id: str = "one", ended: str = "") -> Trainer:
    """Give a trainer of revision 0 a record of the recipe topic."""
    trainer = Trainer.__new__(Trainer)
    trainer.run = Run(RunAddress(Connection("k:1"), "r"), "one", (RECIPE,), cast("Any", None))
    trainer.policy_variant, trainer.scheduler = variant, cast("Any", SimpleNamespace(ended="steps"))
    written = RecipeRevision(run_id, revision, recipe.to_json(), ended=ended)
    assert list(trainer.follow_recipe(Message("r.recipe", 0, 1, b"", codec.encode(written)))) == []
    return trainer


def test_a_trainer_whose_settings_a_later_recipe_changes_starts_again() -> None:
    """A feeder with a smaller batch would issue too few groups for a trainer that waits for the larger one."""
    for recipe in (
        changed(trainer={"groups_per_batch": 8}),
        changed(evaluate={"every": 7}),
        RECIPE.model_copy(update={"seed": 2}),
    ):
        with pytest.raises(
            MustRestart, match=r"recipe revision 1 changes .* the settings of solver: its trainer starts"
        ):
            follow(recipe)
    with pytest.raises(MustRestart, match=r"the settings of solver\.free"):
        follow(changed(shadows={"free": {"trainer": {"steps": 8}}}), variant="solver.free")


def test_a_trainer_goes_on_if_a_later_recipe_changes_nothing_that_it_uses() -> None:
    smaller = changed(trainer={"groups_per_batch": 8})
    for trainer in (
        follow(changed(curate={"chain": ["validate"]})),
        follow(changed(rollout={"max_tokens": 7})),
        follow(changed(shadows={"free": {"trainer": {"steps": 8}}})),
        follow(changed(shadows={}), variant="solver.free"),  # what it trains is dropped: it ends when it is stopped
        follow(smaller, revision=0),  # a record of its own revision, such as the end of a run
    ):
        assert trainer.scheduler.ended == "", "a run that had ended goes on"
    assert follow(RECIPE, revision=0, ended="tasks").scheduler.ended == "tasks"
    assert follow(smaller, run_id="other").scheduler.ended == "steps"
