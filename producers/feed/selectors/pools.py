"""Difficulty pools: a task's last group puts it into one of three pools, and each pool has a weight."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from headrace.envs.contract import Problem
from headrace.producers.feed.selectors.draws import HashedDraws
from headrace.producers.feed.selectors.task_memory import REMEMBER, TaskMemory, list_finite_rewards
from headrace.schemas.records import Outcome


@dataclass
class Pools:
    """Rolls a task out with probability weight / largest weight, so that rollouts are in proportion to the weights.

    A task is hard up to a mean reward of `hard_up_to` (inclusive), normal up to `normal_up_to` (inclusive), and easy
    above. Source: prime-rl's difficulty pools.
    """

    seed: int
    hard: float = 0.2
    normal: float = 1.0
    easy: float = 0.2
    unseen: float = 1.0
    hard_up_to: float = 0.25
    normal_up_to: float = 0.75
    remember: int = REMEMBER
    """Most tasks whose mean is kept; a forgotten task counts as unseen."""
    means: TaskMemory = field(init=False)
    """Task to the mean reward of its last group."""
    draws: HashedDraws = field(init=False)

    def __post_init__(self) -> None:
        pools = (self.hard, self.normal, self.easy)
        if min(*pools, self.unseen) < 0 or not max(pools) > 0:
            raise ValueError(
                "hard, normal, easy and unseen must be 0 or more, and one of hard, normal and easy above 0; got "
                f"{self.hard}, {self.normal}, {self.easy} and {self.unseen}"
            )
        if not self.hard_up_to < self.normal_up_to:
            raise ValueError(f"hard_up_to ({self.hard_up_to}) must be below normal_up_to ({self.normal_up_to})")
        self.means = TaskMemory(self.remember)
        self.draws = HashedDraws(self.seed, "pools")

    def weight(self, task_id: str) -> float:
        """Return the weight of a task's pool."""
        mean = self.means.get(task_id, float("nan"))
        if mean != mean:  # noqa: PLR0124 - unseen
            return self.unseen
        return self.hard if mean <= self.hard_up_to else self.normal if mean <= self.normal_up_to else self.easy

    def select(self, problem: Problem) -> bool:
        """Draw with the probability of the task's pool."""
        largest = max(self.hard, self.normal, self.easy, self.unseen)
        return self.draws.next() * largest < self.weight(problem.task_id)

    def observe(self, outcome: Outcome) -> None:
        """Put the task into the pool of this group."""
        rewards = list_finite_rewards(outcome)
        if rewards:
            self.means.note(outcome.task_id, fmean(rewards))

    def on_version(self, version: int) -> None:
        """Learn nothing."""

    def snapshot(self) -> dict[str, Any]:
        """Return the means and the count of draws."""
        return {"means": self.means.snapshot(), "draws": self.draws.count}

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state that `snapshot` returned."""
        self.means.restore(state["means"])
        self.draws.count = state["draws"]
