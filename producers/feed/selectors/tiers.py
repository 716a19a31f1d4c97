"""Curriculum: tiers are opened one after the other, easiest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.infra.errors import UsageError
from headrace.infra.recipe.ranges import within
from headrace.producers.feed.selectors.contract import AcceptAll
from headrace.producers.feed.selectors.draws import HashedDraws
from headrace.producers.feed.selectors.task_memory import SuccessRates
from headrace.schemas.records import Outcome


@dataclass
class Tiers(AcceptAll):
    """Chooses the tier of every problem: the newest open tier, and sometimes an earlier tier.

    The next tier opens when the newest tier's moving average of success reaches `threshold`; with the defaults this
    takes at least 16 groups (1 - 0.9**16 = 0.815). Open tiers stay open. `floor` is the share of problems from all
    earlier tiers together. Every problem of the chosen tier is accepted.
    """

    seed: int
    threshold: float = 0.8
    decay: float = 0.9
    floor: float = 0.1
    success_above: float = 0.0
    rates: SuccessRates = field(init=False)
    """Success rates by tier."""
    draws: HashedDraws = field(init=False)
    passed: list[str] = field(init=False, default_factory=list)
    """Tiers that have reached the threshold once."""

    def __post_init__(self) -> None:
        within(0, 1, threshold=self.threshold, floor=self.floor)
        self.rates = SuccessRates(self.decay, 0.0, self.success_above)
        self.draws = HashedDraws(self.seed, "tiers")

    def choose(self, tiers: Sequence[str]) -> str:
        """Return the tier of the next problem. Raises UsageError if the environment has no tiers."""
        if not tiers:
            raise UsageError('feed.selector "tiers" needs an environment that has tiers, such as arithmetic or mixture')
        newest = next((index for index, tier in enumerate(tiers) if tier not in self.passed), len(tiers) - 1)
        if newest and self.draws.next() < self.floor:
            return tiers[int(self.draws.next() * newest)]
        return tiers[newest]

    def observe(self, outcome: Outcome) -> None:
        """Move the average of the group's tier."""
        self.rates.observe(outcome.tier, outcome)
        if self.rates.rate(outcome.tier) >= self.threshold and outcome.tier not in self.passed:
            self.passed.append(outcome.tier)

    def snapshot(self) -> dict[str, Any]:
        """Return averages, passed tiers and the count of draws."""
        return {"rates": self.rates.snapshot(), "passed": list(self.passed), "draws": self.draws.count}

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state that `snapshot` returned."""
        self.rates.restore(state["rates"])
        self.passed = list(state["passed"])
        self.draws.count = state["draws"]
