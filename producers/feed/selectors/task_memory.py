"""Bounded memory of selectors about tasks, and the success rates that they compute from finished groups."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from statistics import fmean

from headrace.infra.recipe.ranges import within
from headrace.schemas.records import Outcome

REMEMBER = 16_384
"""Tasks that a selector remembers by default. All of them make a snapshot of 0.4 to 0.7 MB, written in 6 to 20 ms with
every turn that issues tasks, ten a second at the most."""
LONGEST_ID = 32
"""Most characters of a task id that is stored unchanged."""


class TaskMemory:
    """A number per task. Beyond `most` tasks, the task noted longest ago is forgotten and counts as unseen.

    A task id over 32 characters is kept as a hash of 16, so an entry takes at most some 60 bytes of a snapshot.
    """

    def __init__(self, most: int = REMEMBER) -> None:
        if most < 1:
            raise ValueError(f"`remember` (a number of tasks) must be at least 1; got {most}")
        self._most = most
        self._numbers: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def get(self, task_id: str, unseen: float) -> float:
        """Return a task's number, or `unseen`."""
        return self._numbers.get(_shorten_task_id(task_id), unseen)

    def note(self, task_id: str, number: float) -> None:
        """Remember a number as the newest."""
        key = _shorten_task_id(task_id)
        self._numbers.pop(key, None)  # a key that is set again would keep its old position in the order
        self._numbers[key] = number
        self._forget_oldest()

    def forget(self, task_id: str) -> None:
        """Forget a task."""
        self._numbers.pop(_shorten_task_id(task_id), None)

    def snapshot(self) -> dict[str, float]:
        """Return the numbers by key, noted longest ago first."""
        return dict(self._numbers)

    def restore(self, numbers: Mapping[str, float]) -> None:
        """Take what `snapshot` returned; if it has too many entries, keep the newest."""
        self._numbers = dict(numbers)
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        while len(self._numbers) > self._most:
            del self._numbers[next(iter(self._numbers))]


class SuccessRates:
    """Moving averages s <- decay * s + (1 - decay) * share of rewards above `success_above`, by task or by tier.

    Raises ValueError for a decay outside 0 <= decay < 1.
    """

    def __init__(self, decay: float, prior: float, success_above: float, remember: int = REMEMBER) -> None:
        if not 0 <= decay < 1:
            raise ValueError(
                f"decay, the weight of the old value in a moving average, must be from 0 to below 1; got {decay}"
            )
        within(0, 1, prior=prior)
        self._decay, self._prior, self._above = decay, prior, success_above
        self._rates = TaskMemory(remember)

    def rate(self, name: str) -> float:
        """Return an average in [0, 1]; the prior for an unseen name."""
        return self._rates.get(name, self._prior)

    def observe(self, name: str, outcome: Outcome) -> None:
        """Take in a group; ignore a group without rewards."""
        rewards = list_finite_rewards(outcome)
        if rewards:
            success = fmean(float(reward > self._above) for reward in rewards)
            self._rates.note(name, self._decay * self.rate(name) + (1 - self._decay) * success)

    def snapshot(self) -> dict[str, float]:
        """Return the averages by name."""
        return self._rates.snapshot()

    def restore(self, rates: Mapping[str, float]) -> None:
        """Take what `snapshot` returned."""
        self._rates.restore(rates)


def list_finite_rewards(outcome: Outcome) -> tuple[float, ...]:
    """Return the members' finite rewards from before any filter."""
    return tuple(reward for reward in outcome.rewards if math.isfinite(reward))


def _shorten_task_id(task_id: str) -> str:
    if len(task_id) <= LONGEST_ID:
        return task_id
    return hashlib.blake2b(task_id.encode(), digest_size=8).hexdigest()
