"""Words of `--set` for an experiment over groups that exist: they may change only trainers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from headrace.infra.errors import UsageError
from headrace.infra.recipe.recipe_file import SET
from headrace.infra.recipe.settings import Recipe

TRAINERS = re.compile(r"((?P<table>policies|shadows)\.(?P<name>[^.=]+)\.)?trainer\.")


def check_trainer_words(sets: Sequence[str]) -> None:
    """Raise UsageError for an `a.b=c` word that changes more than a trainer, as it would need other rollouts."""
    for word in sets:
        if not TRAINERS.match(word):
            raise UsageError(
                f"{SET} {word}: only trainer.KEY, policies.NAME.trainer.KEY and shadows.NAME.trainer.KEY can be set "
                "in this command, because other keys need new rollouts"
            )


def select_trainer_words(recipe: Recipe, sets: Sequence[str]) -> list[str]:
    """Return the words that change a trainer of this recipe: an earlier one may lack policies and shadows."""
    there = {"policies": recipe.policies.keys(), "shadows": recipe.shadows.keys()}
    found = [(word, TRAINERS.match(word)) for word in sets]
    return [word for word, one in found if one is None or one["table"] is None or one["name"] in there[one["table"]]]
