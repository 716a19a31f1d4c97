"""The advantage estimator of a recipe, with its settings; it is tried out before training. No torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.own_frames import describe_with_location
from headrace.infra.recipe.named import check_options, find_named
from headrace.infra.recipe.settings import Recipe, TrainerSettings
from headrace.trainers.advantages import ADVANTAGES, WHOLE_BATCH, Advantages, RewardedSequence, batch_norm

ADVANTAGE_KEY = "trainer.advantage"
COMPARISON = frozenset({"group_by", "weight"})
"""Keys of `[trainer]` that an estimator may take as parameters."""
PROBE_BATCH = tuple(
    RewardedSequence(trajectory, "solver", float(trajectory), length=2, baseline=0.5, group=group)
    for group in range(2)
    for trajectory in range(2)
)
"""A batch that every estimator must accept; its first two sequences are one group."""
PROBE_TOKENS = tuple(
    replace(one, token_rewards=np.frombuffer(np.array([0.0, one.reward]).tobytes())) for one in PROBE_BATCH
)
"""The same batch with read-only token rewards, as real groups have them."""
SINGLES = tuple(RewardedSequence(0, "solver", float(group), length=2, baseline=0.25, group=group) for group in range(2))
"""A batch of two groups of one trajectory each, with rewards 0 and 1."""


class AdvantageError(HeadraceError):
    """An estimator raised an error, or did not return an advantage for every sequence."""


@dataclass(frozen=True, slots=True)
class Estimator:
    """Computes the advantages of a batch's sequences."""

    name: str
    function: Callable[..., Advantages]
    options: Mapping[str, Any]
    normalises: bool
    """Whether advantages are normalised over the batch's tokens at the end."""
    whole_batch: bool
    """Whether a group's advantages depend on the other groups of its batch; always true for users' estimators."""

    def __call__(self, sequences: Sequence[RewardedSequence]) -> Advantages:
        """Return float32[n], or n arrays float32[length].

        Raises RewardError for a group for which no advantage is defined, and AdvantageError if the estimator raised or
        returned something else. All advantages pass through here, so they are finite afterwards.
        """
        try:
            return self.compute(sequences)
        except HeadraceError:
            raise
        except Exception as error:  # whatever one of the user's own raises
            raise AdvantageError(f"the advantage {self.name} failed: {describe_with_location(error)}") from error

    def compute(self, sequences: Sequence[RewardedSequence]) -> Advantages:
        """Return the advantages like a call, but let errors of the estimator through."""
        found = self._read_result(self.function(sequences, **self.options), sequences)
        return batch_norm(found, sequences) if self.normalises else found

    def _read_result(self, found: Any, sequences: Sequence[RewardedSequence]) -> Advantages:
        if len(found) != len(sequences):
            raise AdvantageError(
                f"the advantage {self.name} must return one result per sequence: it returned {len(found)} for "
                f"{len(sequences)} sequences"
            )
        if all(np.ndim(each) == 0 for each in found):
            each_one = np.asarray(found, np.float32)
            if not (finite := np.isfinite(each_one)).all():
                raise AdvantageError(
                    f"the advantage {self.name} must return finite numbers; it returned {each_one[~finite][0]}"
                )
            return each_one
        arrays = [np.asarray(each, np.float32) for each in found]
        for array, sequence in zip(arrays, sequences, strict=True):
            if array.shape != (sequence.length,):
                raise AdvantageError(
                    f"the advantage {self.name} must return one number for each sequence, or one for each generated "
                    f"token: for a sequence of {sequence.length} generated tokens it returned shape {array.shape}"
                )
            if not (finite := np.isfinite(array)).all():
                raise AdvantageError(
                    f"the advantage {self.name} must return finite numbers; it returned {array[~finite][0]}"
                )
        return arrays


@lru_cache(maxsize=64)
def load_estimator(settings: TrainerSettings) -> Estimator:
    """Return the estimator of a trainer's settings after trying it out. Raises UsageError with the choices."""
    named = settings.advantage
    function = find_named(ADVANTAGE_KEY, named.use, ADVANTAGES)
    taken = _select_comparison(settings, function)
    if twice := COMPARISON & named.settings.keys():
        raise UsageError(f"{ADVANTAGE_KEY}: {min(twice)} must not be set here; set trainer.{min(twice)} instead")
    check_options(f"{ADVANTAGE_KEY}, {named.use}", function, named.settings, COMPARISON)
    options = {**taken, **named.settings}
    whole_batch = settings.batch_norm or named.use in WHOLE_BATCH or named.use not in ADVANTAGES
    estimator = Estimator(named.use, function, options, settings.batch_norm, whole_batch)
    for batch, what in (
        (PROBE_BATCH, "a test batch of two groups"),
        (PROBE_BATCH[:2], "one group alone"),
        (PROBE_TOKENS, "two groups with token rewards (read-only: copy them before you change them)"),
    ):
        try:
            estimator.compute(batch)
        except Exception as error:  # whatever one of the user's own raises
            if named.use in ADVANTAGES and isinstance(error, ValueError):  # a shipped one refuses a setting
                raise UsageError(f"{ADVANTAGE_KEY}, {named.use}: {error}") from error
            raise UsageError(
                f"{ADVANTAGE_KEY}: {named.use} failed when Headrace tried it with rewards 0 and 1 on {what}: "
                f"{describe_with_location(error)}"
            ) from error
    return estimator


def _select_comparison(settings: TrainerSettings, function: Callable[..., Advantages]) -> dict[str, str]:
    """Return the keys of the settings that the function takes. Raises UsageError for a key without effect."""
    parameters = inspect.signature(function).parameters.values()
    all_of_them = any(one.kind is one.VAR_KEYWORD for one in parameters)
    takes = COMPARISON if all_of_them else COMPARISON & {one.name for one in parameters}
    for name in sorted(COMPARISON - takes):
        if getattr(settings, name) != TrainerSettings.model_fields[name].default:
            raise UsageError(f"trainer.{name} has no effect on the advantage {settings.advantage.use}: leave it out")
    return {name: getattr(settings, name) for name in takes}


def check_advantage(recipe: Recipe, policy_variant: str) -> None:
    """Raise UsageError for an estimator that a policy's trainer cannot use, or that learns nothing from its groups."""
    estimator = load_estimator(recipe.trainer_of(policy_variant))
    if recipe.rollout.group_size == 1 and not any(np.any(each) for each in estimator(SINGLES)):
        raise UsageError(
            f"{ADVANTAGE_KEY}: {estimator.name} compares the trajectories of a group, and rollout.group_size is 1: "
            "every advantage would be 0. Set rollout.group_size to 2 or more, or take an advantage that does not "
            "compare, such as reinforce_pp or gae"
        )
