"""`rollout.group_size = 1`: trained where the advantage compares nothing, refused at the start where it does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_groups import group

from headrace.consumers.algorithms.contract import Candidate, Drop, Keep
from headrace.consumers.algorithms.drop_zero_variance import DropZeroVariance
from headrace.consumers.algorithms.validate import Validate
from headrace.infra.errors import UsageError
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.ops.preflight.table import check_names
from headrace.trainers.advantages import ADVANTAGES

COMPARE_NOTHING = {"gae", "given", "rae", "reinforce_pp"}


@pytest.mark.parametrize("algorithm", [Validate(), DropZeroVariance()])
def test_a_group_asked_for_as_one_trajectory_is_kept_and_one_survivor_of_several_is_dropped(
    algorithm: Validate | DropZeroVariance,
) -> None:
    single = replace(group([1.0]), n_asked=1)
    survivor = replace(group([1.0]), n_asked=4)

    [kept], [dropped] = (algorithm.process(Candidate.of(one), 3) for one in (single, survivor))
    assert isinstance(kept, Keep)
    assert isinstance(dropped, Drop)


def test_an_advantage_that_compares_a_group_is_refused_for_groups_of_one() -> None:
    refused = {}
    for name in ADVANTAGES:
        recipe = load_recipe("arithmetic", ["rollout.group_size=1", f"trainer.advantage={name}"])
        try:
            check_names(recipe)
        except UsageError as error:
            refused[name] = str(error)
    assert all("rollout.group_size is 1" in why for why in refused.values())
    assert refused.keys() == ADVANTAGES.keys() - COMPARE_NOTHING


@pytest.mark.parametrize("key", ["evaluate.temperature=0.001", "rollout.temperature=0.005", "rollout.temperature=101"])
def test_a_temperature_that_engines_refuse_is_refused_at_the_start(key: str) -> None:
    with pytest.raises(UsageError, match=rf"`{key.partition('=')[0]}` must be .*(0\.01|100)"):
        load_recipe("arithmetic", [key])
    check_names(load_recipe("arithmetic", ["evaluate.temperature=0"]))
