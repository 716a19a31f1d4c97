"""The source of a stream's problems: an environment, cursors into its tiers and a selector."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from headrace.envs.contract import Environment, HasTiers, Problem, Split
from headrace.envs.payload import check_task_can_hold
from headrace.infra.errors import HeadraceError, Unavailable, UsageError
from headrace.infra.own_frames import locate_error, make_encodable, read_error_text
from headrace.infra.unreachable import is_unreachable
from headrace.producers.feed.selectors.contract import MOST_REJECTIONS, ChoosesTier, KnowsSize, Selector

log = structlog.get_logger()

MOST_UNBUILT = 8
"""The feeder ends after so many training problems in a row cannot be built: then no single problem is at fault."""

LONGEST_REASON = 300
"""Characters of the reason that a snapshot holds."""

OpenEnvironment = Callable[[dict[str, Any]], Environment]
"""Builds the environment of a workflow with settings that override the recipe's."""


class EnvironmentAway(Unavailable):
    """An environment cannot be reached now."""


class EnvironmentFailed(HeadraceError):
    """An environment raised an error instead of giving a problem."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A problem to roll out, and its place in the environment."""

    index: int
    tier: str
    """Tier to which the environment was set; empty for the recipe's tiers."""
    problem: Problem


def refuse_small_held_out(workflow: str, environment: Environment, count: int) -> None:
    """Raise UsageError if an environment holds out fewer problems than an evaluation needs."""
    size = environment.size("held_out")
    if size is not None and size < count:
        found = (
            f"only {size}: set evaluate.problems to at most {size}"
            if size
            else "no problems: set evaluate.every to 0, or let the environment hold out problems (the environment "
            "dataset has the setting held_out = 0.1)"
        )
        raise UsageError(f"evaluate.problems is {count}, but the environment of workflow {workflow} holds out {found}")


class TaskSource:
    """Draws problems in order and repeats after the last one; every tier has its own order and cursor.

    Args:
        workflow: Its name, for messages.
        open_environment: Builds the environment.
        selector: Decides which problems are worth a rollout; it may also choose the tier of the next problem.
    """

    def __init__(self, workflow: str, open_environment: OpenEnvironment, selector: Selector) -> None:
        self.workflow = workflow
        self.selector = selector
        self.tier = ""
        """Tier to which the feeder raised the environment; empty for the recipe's tiers."""
        self.selected = self.rejected = self.forced = 0
        """Counts of problems: accepted by the selector, rejected by it, and taken against its decision."""
        self.skipped = 0
        """Number of problems that the environment could not build."""
        self.skipped_why = ""
        """Reason of the last of them, in one line."""
        self._open = open_environment
        self._environments: dict[str, Environment] = {"": open_environment({})}
        self._cursors: Counter[str] = Counter()
        self._pass_size_on()

    @property
    def environment(self) -> Environment:
        """The environment with the recipe's settings."""
        return self._environments[""]

    def draw(self, *, is_strict: bool = False) -> Drawn:
        """Return the next problem that the selector accepts; after 256 rejections in a row, the next problem anyway.

        Skips problems that the environment cannot build. Raises EnvironmentFailed for eight of them in a row, or for
        the first one if `is_strict`. Skipping depends on the environment and the cursor alone.
        """
        tier = self._choose_tier()
        for _ in range(MOST_REJECTIONS):
            drawn = self._draw_next(tier, is_strict)
            if self.selector.select(drawn.problem):
                self.selected += 1
                return drawn
            self.rejected += 1
        self.forced += 1
        return self._draw_next(tier, is_strict)

    def problem(self, index: int, tier: str) -> Problem:
        """Return a problem that was drawn before."""
        return self._build_problem("train", index, tier)

    def list_held_out(self, count: int) -> list[Problem]:
        """Return the first held-out problems, in the recipe's tiers. Raises UsageError if there are fewer."""
        self._find_size(self.environment, "held_out")
        refuse_small_held_out(self.workflow, self.environment, count)
        return [self.build_held_out_problem(index) for index in range(count)]

    def build_held_out_problem(self, index: int) -> Problem:
        """Return a held-out problem, in the recipe's tiers."""
        return self._build_problem("held_out", index, "")

    def raise_tier(self) -> bool:
        """Go on to the next harder tier; return False if there is none.

        An environment with tiers takes the tiers to use in the setting `tiers`, and alternates between them.
        """
        environment = self.environment
        if not isinstance(environment, HasTiers):
            return False
        order = environment.tiers()
        hardest = self.tier or environment.asked()[-1]
        after = order[order.index(hardest) + 1 :]
        if after:
            self.tier = after[0]
            self._pass_size_on()
        return bool(after)

    def _choose_tier(self) -> str:
        if not isinstance(self.selector, ChoosesTier):
            return self.tier
        environment = self.environment
        return self.selector.choose(environment.asked() if isinstance(environment, HasTiers) else ()) or self.tier

    def _pass_size_on(self) -> None:
        if isinstance(self.selector, KnowsSize):
            self.selector.on_size(self._find_size(self._environment(self.tier), "train"))

    def _draw_next(self, tier: str, is_strict: bool) -> Drawn:
        passed: list[tuple[int, bool, str]] = []
        """Index, whether it is its first time, and the reason of what is passed over if one after it can be built."""
        while True:
            cursor = self._cursors[tier]
            index = self._pick_index(cursor, tier)
            self._cursors[tier] += 1
            try:
                drawn = Drawn(index, tier, self._build_problem("train", index, tier))
            except (EnvironmentFailed, EnvironmentAway) as error:
                if is_strict:
                    raise
                passed.append((index, cursor == index, str(error)))
                if len(passed) == MOST_UNBUILT:
                    why = f"{len(passed)} problems in a row could not be built; the last: {error}"
                    raise type(error)(why) from error
                continue
            self.skipped += len(passed)
            for skipped, is_first, why in passed:
                self.skipped_why = _shorten(why)
                if is_first:
                    # The environment raised, or JSON cannot hold the problem; logged the first time only.
                    log.warning("problem.skipped", workflow=self.workflow, tier=tier, index=skipped, why=why)
            return drawn

    def _pick_index(self, cursor: int, tier: str) -> int:
        size = self._find_size(self._environment(tier), "train")
        if size == 0:
            raise UsageError(
                f"the environment of workflow {self.workflow} has no training problem: check the settings in "
                f"workflows.{self.workflow}.env"
            )
        return cursor if size is None else cursor % size

    def _find_size(self, environment: Environment, split: Split) -> int | None:
        """Return the size of a split. Raises EnvironmentAway if a server that knows it is away."""
        try:
            return environment.size(split)
        except Exception as error:
            if not is_unreachable(error):
                raise
            raise EnvironmentAway(
                f"environment {environment.name!r} of workflow {self.workflow} cannot tell its size: "
                f"{read_error_text(error)}"
            ) from error

    def _build_problem(self, split: Split, index: int, tier: str) -> Problem:
        environment = self._environment(tier)
        try:
            problem = environment.problem(split, index)
            check_task_can_hold(problem)
        except Exception as error:
            kind = EnvironmentAway if is_unreachable(error) else EnvironmentFailed
            raise kind(
                f"environment {environment.name!r} of workflow {self.workflow} failed to build problem {index} of "
                f"split {split}: {type(error).__name__}: {read_error_text(error)} at {locate_error(error)}"
            ) from error
        return problem

    def _environment(self, tier: str) -> Environment:
        if tier not in self._environments:
            self._environments[tier] = self._open({"tiers": [tier]})
        return self._environments[tier]

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON has it."""
        return {
            "cursors": dict(self._cursors),
            "tier": self.tier,
            "selected": self.selected,
            "rejected": self.rejected,
            "forced": self.forced,
            "skipped": self.skipped,
            "skipped_why": self.skipped_why,
            "selector": self.selector.snapshot(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state that `snapshot` returned."""
        self._cursors, self.tier = Counter(state["cursors"]), state["tier"]
        self.selected, self.rejected, self.forced = state["selected"], state["rejected"], state["forced"]
        self.skipped, self.skipped_why = state.get("skipped", 0), state.get("skipped_why", "")
        self._pass_size_on()
        self.selector.restore(state["selector"])


def _shorten(why: str) -> str:
    return make_encodable(" ".join(why.split()))[:LONGEST_REASON]
