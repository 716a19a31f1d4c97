"""Difficulty-targeted selection: prefer problems that the policy solves half the time (DOTS, arXiv 2506.05316)."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from headrace.envs.contract import Problem
from headrace.infra.recipe.ranges import above, at_least, within
from headrace.producers.feed.selectors.draws import HashedDraws
from headrace.producers.feed.selectors.task_memory import REMEMBER, SuccessRates
from headrace.schemas.records import Outcome


@dataclass
class Dots:
    """Takes a share of the offered problems, drawn without replacement with P(q) ~ exp(-|d_q - target| / tau).

    d_q is the task's moving average of success; an unseen task has d = target, so unseen tasks come first. The paper
    predicts d_q by attention over embeddings of a reference set, but the feeder has no model for this.

    The draw is the Gumbel-top-k trick (arXiv 1903.06059): the k largest of -|d_q - target| / tau + Gumbel noise are a
    draw of k without replacement with P, without any exponential, however small tau is. Here k is `share` of the last
    `window` problems offered: a problem is taken if its key is among the k largest of the window that ends with it. So
    each pass offers every problem once, in the data set's order, and no task is taken twice in a row.
    """

    seed: int
    target: float = 0.5
    tau: float = 1e-3
    """Almost greedy; 0.1 is a soft preference."""
    share: float = 0.25
    """Share of the offered problems to roll out."""
    window: int = 256
    """Number of problems with which a problem is compared; the size of the paper's reference set."""
    decay: float = 0.5
    """Decay of the average; lower than in other selectors, because d should describe the current policy."""
    success_above: float = 0.0
    remember: int = REMEMBER
    """Most tasks whose average is kept; a forgotten task counts as unseen."""
    rates: SuccessRates = field(init=False)
    draws: HashedDraws = field(init=False)
    keys: deque[float] = field(init=False)
    """Keys of the last problems offered."""

    def __post_init__(self) -> None:
        within(0, 1, share=self.share)
        above(0, share=self.share, tau=self.tau)
        at_least(1, window=self.window)
        self.rates = SuccessRates(self.decay, self.target, self.success_above, self.remember)
        self.draws = HashedDraws(self.seed, "dots")
        self.keys = deque(maxlen=self.window)

    def select(self, problem: Problem) -> bool:
        """Return whether the problem is among the best of its window."""
        noise = -math.log(-math.log(self.draws.next()))
        key = noise - abs(self.rates.rate(problem.task_id) - self.target) / self.tau
        self.keys.append(key)
        ahead = sum(other > key for other in self.keys)
        return ahead < max(1.0, self.share * len(self.keys))

    def observe(self, outcome: Outcome) -> None:
        """Move the task's average."""
        self.rates.observe(outcome.task_id, outcome)

    def on_version(self, version: int) -> None:
        """Learn nothing: a problem is scored when it is offered."""

    def snapshot(self) -> dict[str, Any]:
        """Return averages, the window and the count of draws."""
        return {"rates": self.rates.snapshot(), "keys": list(self.keys), "draws": self.draws.count}

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state that `snapshot` returned."""
        self.rates.restore(state["rates"])
        self.keys = deque(state["keys"], self.window)
        self.draws.count = state["draws"]
