"""Where a stream's problems come from: an environment, a cursor into it and a selector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from envs.contract import Environment, HasTiers, Problem, Split
from infra.errors import HeadraceError, UsageError
from producers.selectors import MOST_REJECTIONS, Selector

log = structlog.get_logger()

OpenEnvironment = Callable[[dict[str, Any]], Environment]
"""Builds the environment of a workflow with settings that win over the recipe's."""


class EnvironmentFailed(HeadraceError):
    """An environment raised when it was asked for a problem."""


class TaskSource:
    """Draws problems in order, over and over when they come to an end.

    Args:
        workflow: Its name, for messages.
        open_environment: Builds the environment.
        selector: Says which problems are worth a rollout.
    """

    def __init__(self, workflow: str, open_environment: OpenEnvironment, selector: Selector) -> None:
        self.workflow = workflow
        self.selector = selector
        self.tier = ""
        """Tier that the feeder raised the environment to; empty for the recipe's own."""
        self.forced = 0
        """Problems taken against the selector."""
        self._open = open_environment
        self._environments: dict[str, Environment] = {"": open_environment({})}
        self._cursor = 0

    @property
    def environment(self) -> Environment:
        """The environment with the recipe's own settings."""
        return self._environments[""]

    def draw(self) -> tuple[int, Problem]:
        """Return the next problem that the selector wants, with its index; after 256 rejections the next one anyway."""
        for _ in range(MOST_REJECTIONS):
            index, problem = self._next()
            if self.selector.select(problem):
                return index, problem
        self.forced += 1
        return self._next()

    def problem(self, index: int, tier: str) -> Problem:
        """Return a problem that was drawn before."""
        return self._ask("train", index, tier)

    def held_out(self, count: int) -> list[Problem]:
        """Return the first held-out problems, in the recipe's own tiers. Raises UsageError when there are fewer."""
        size = self.environment.size("held_out")
        if size is not None and size < count:
            raise UsageError(
                f"evaluate.problems is {count}, and the environment of workflow {self.workflow} holds out {size}: set "
                f"evaluate.problems to at most {size}"
            )
        return [self._ask("held_out", index, "") for index in range(count)]

    def raise_tier(self) -> bool:
        """Go on to the next harder tier; False when there is none.

        Such an environment takes the tiers that it is to ask as the setting `tiers`, and asks several in turn.
        """
        environment = self.environment
        if not isinstance(environment, HasTiers):
            return False
        order = environment.tiers()
        asked = {self.tier} if self.tier else {self.problem(index, "").tier for index in range(len(order))}
        hardest = max((order.index(tier) for tier in asked if tier in order), default=len(order))
        after = order[hardest + 1 :]
        if after:
            self.tier = after[0]
        return bool(after)

    def _next(self) -> tuple[int, Problem]:
        index = self._index(self._cursor)
        self._cursor += 1
        return index, self._ask("train", index, self.tier)

    def _index(self, cursor: int) -> int:
        size = self._environment(self.tier).size("train")
        if size == 0:
            raise UsageError(f"the environment of workflow {self.workflow} has no training problem: check its settings")
        return cursor if size is None else cursor % size

    def _ask(self, split: Split, index: int, tier: str) -> Problem:
        environment = self._environment(tier)
        try:
            return environment.problem(split, index)
        except Exception as error:
            raise EnvironmentFailed(
                f"environment {environment.name!r} of workflow {self.workflow} gave no problem {index} of {split}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _environment(self, tier: str) -> Environment:
        if tier not in self._environments:
            self._environments[tier] = self._open({"tiers": [tier]})
        return self._environments[tier]

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON has it."""
        state = {"cursor": self._cursor, "tier": self.tier, "forced": self.forced}
        return state | {"selector": self.selector.snapshot()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state that `snapshot` returned."""
        self._cursor, self.tier, self.forced = state["cursor"], state["tier"], state["forced"]
        self.selector.restore(state["selector"])
