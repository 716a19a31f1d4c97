"""GRESO: skip tasks whose groups had equal rewards several times in a row (arXiv 2506.02177)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.envs.contract import Problem
from headrace.infra.recipe.ranges import at_least, within
from headrace.producers.feed.selectors.draws import HashedDraws
from headrace.producers.feed.selectors.task_memory import REMEMBER, TaskMemory, list_finite_rewards
from headrace.schemas.records import Outcome
from headrace.schemas.rewards import EQUAL


@dataclass(slots=True)
class ResultCounts:
    """Counts since the last version: all results, and results with equal rewards by kind."""

    easy: int = 0
    hard: int = 0
    total: int = 0


@dataclass(slots=True)
class Arming:
    """Counts the pass after which the controller starts."""

    length: int | None
    """Results in a pass; None while unknown."""
    begun: bool = False
    """Whether a version above 0 was seen."""
    observed: int = 0
    """Results of the pass so far."""
    armed: bool = False

    def observe(self) -> None:
        """Count a result."""
        if self.begun and not self.armed and self.length is not None:
            self.observed += 1
            self.armed = self.observed >= self.length


@dataclass
class Greso:
    """Rejects a task with a probability that grows with its streak z of groups with equal rewards.

    A streak is of one kind: easy if the mean reward is above `easy_above`, else hard; a result of the other kind begins
    a new one, a result with variance ends it. P(roll out) = max(p_kind**z, floor_kind), and 1 for z = 0.

    The controller acts once per new version, however far the version jumps. p_kind falls by `step` when the share of
    that kind among the results since the last version is at least `target_kind`; else it rises by `step`, within
    [p_min, p_max]. It starts after one pass: as many results as the data set has problems, counted after the first
    version above 0. Skipping acts from the start. Groups of fewer than two members have no variance and are ignored.

    Floors are those of AstraFlow's recipes; its class has 0.10 and 0.40. The authors' code has one floor of 0.01.
    """

    seed: int
    p_easy: float = 0.5
    p_hard: float = 0.5
    target_easy: float = 0.25 / 3
    target_hard: float = 0.5 / 3
    step: float = 0.01
    p_min: float = 0.01
    p_max: float = 0.99
    floor_easy: float = 0.05
    floor_hard: float = 0.30
    easy_above: float = 0.5
    pass_size: int | None = None
    """Results after which the controller starts; by default the size of the data set. Never for endless data."""
    remember: int = REMEMBER
    """Most tasks whose streak is kept; tasks without one take no room."""
    streaks: TaskMemory = field(init=False)
    """Task to z: positive for easy, negative for hard."""
    draws: HashedDraws = field(init=False)
    arming: Arming = field(init=False)
    counts: ResultCounts = field(init=False, default_factory=ResultCounts)

    def __post_init__(self) -> None:
        shares = ("p_easy", "p_hard", "target_easy", "target_hard", "p_min", "p_max", "floor_easy", "floor_hard")
        within(0, 1, **{name: getattr(self, name) for name in shares})
        if not (self.p_min <= min(self.p_easy, self.p_hard) and max(self.p_easy, self.p_hard) <= self.p_max):
            raise ValueError(
                f"p_easy and p_hard must be from p_min ({self.p_min}) to p_max ({self.p_max}); got {self.p_easy} and "
                f"{self.p_hard}"
            )
        at_least(0, step=self.step)
        if self.pass_size is not None:
            at_least(1, pass_size=self.pass_size)
        self.streaks = TaskMemory(self.remember)
        self.draws = HashedDraws(self.seed, "greso")
        self.arming = Arming(self.pass_size)

    def chance(self, task_id: str) -> float:
        """Return the probability that a task is rolled out."""
        streak = int(self.streaks.get(task_id, 0))
        if not streak:
            return 1.0
        p, floor = (self.p_easy, self.floor_easy) if streak > 0 else (self.p_hard, self.floor_hard)
        return max(p ** abs(streak), floor)

    def select(self, problem: Problem) -> bool:
        """Draw whether a task with a streak is rolled out."""
        chance = self.chance(problem.task_id)
        return chance >= 1 or self.draws.next() < chance

    def observe(self, outcome: Outcome) -> None:
        """Lengthen or end the task's streak."""
        rewards = list_finite_rewards(outcome)
        if len(rewards) < 2:
            return
        self.counts.total += 1
        self.arming.observe()
        if max(rewards) - min(rewards) > EQUAL:
            self.streaks.forget(outcome.task_id)
            return
        is_easy = rewards[0] > self.easy_above  # all are equal, so each is the mean
        before = int(self.streaks.get(outcome.task_id, 0))
        self.counts.easy += is_easy
        self.counts.hard += not is_easy
        longer = max(before, 0) + 1 if is_easy else min(before, 0) - 1
        self.streaks.note(outcome.task_id, longer)

    def on_size(self, size: int | None) -> None:
        """Take in the length of a pass."""
        self.arming.length = self.pass_size or size

    def on_version(self, version: int) -> None:
        """Move p if the controller has started, and set the counts to 0."""
        counts, self.counts = self.counts, ResultCounts()
        if self.arming.armed and counts.total:
            self.p_easy = self._move(self.p_easy, falls=counts.easy >= self.target_easy * counts.total)
            self.p_hard = self._move(self.p_hard, falls=counts.hard >= self.target_hard * counts.total)
        self.arming.begun = self.arming.begun or version > 0

    def _move(self, p: float, *, falls: bool) -> float:
        return max(self.p_min, p - self.step) if falls else min(self.p_max, p + self.step)

    def snapshot(self) -> dict[str, Any]:
        """Return streaks, chances, counts and the draws made."""
        return {
            "p_easy": self.p_easy,
            "p_hard": self.p_hard,
            "begun": self.arming.begun,
            "observed": self.arming.observed,
            "armed": self.arming.armed,
            "counts": [self.counts.easy, self.counts.hard, self.counts.total],
            "draws": self.draws.count,
            "streaks": self.streaks.snapshot(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state that `snapshot` returned."""
        self.p_easy, self.p_hard = state["p_easy"], state["p_hard"]
        self.arming.begun, self.arming.observed, self.arming.armed = state["begun"], state["observed"], state["armed"]
        self.counts = ResultCounts(*state["counts"])
        self.draws.count = state["draws"]
        self.streaks.restore(state["streaks"])
