"""Filter solved: no longer roll out tasks that the policy already solves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.envs.contract import Problem
from headrace.infra.recipe.ranges import within
from headrace.producers.feed.selectors.draws import HashedDraws
from headrace.producers.feed.selectors.task_memory import REMEMBER, SuccessRates
from headrace.schemas.records import Outcome


@dataclass
class FilterSolved:
    """Rejects a task whose average success has reached a threshold, except for an occasional retest.

    s <- decay * s + (1 - decay) * share of rewards above `success_above`, after every finished group of the task;
    roll out while s < threshold. With the defaults a task that is solved every time is dropped after 29 groups
    (1 - 0.9**29 = 0.953): raise the prior or lower the decay for a small run. Source: the curator of that name in
    AstraFlow, where a task never comes back.
    """

    seed: int
    threshold: float = 0.95
    decay: float = 0.9
    prior: float = 0.0
    """Average of a task before its first group."""
    retest: float = 0.05
    """Chance that a solved task is rolled out anyway, because a policy may forget."""
    success_above: float = 0.0
    remember: int = REMEMBER
    """Most tasks whose average is kept; a forgotten task is rolled out again."""
    rates: SuccessRates = field(init=False)
    draws: HashedDraws = field(init=False)

    def __post_init__(self) -> None:
        within(0, 1, threshold=self.threshold, retest=self.retest)
        self.rates = SuccessRates(self.decay, self.prior, self.success_above, self.remember)
        self.draws = HashedDraws(self.seed, "filter_solved")

    def select(self, problem: Problem) -> bool:
        """Return whether the task is unsolved or due for a retest."""
        return self.rates.rate(problem.task_id) < self.threshold or self.draws.next() < self.retest

    def observe(self, outcome: Outcome) -> None:
        """Move the task's average."""
        self.rates.observe(outcome.task_id, outcome)

    def on_version(self, version: int) -> None:
        """Learn nothing: averages outlive versions."""

    def snapshot(self) -> dict[str, Any]:
        """Return averages and count of draws."""
        return {"rates": self.rates.snapshot(), "draws": self.draws.count}

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state that `snapshot` returned."""
        self.rates.restore(state["rates"])
        self.draws.count = state["draws"]
