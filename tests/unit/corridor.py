"""A world for tests, with an action for each way in which a world can break."""

from __future__ import annotations

import os
import threading
from typing import Any, cast

from headrace.envs.contract import Problem
from headrace.envs.worlds.contract import Step

HANGS = 99
"""Index of a problem that never comes."""


class Corridor:
    """A walk to the end of a corridor; each step right earns a third. Other words break it."""

    name = "corridor"

    def act(self, problem: Problem, action: str) -> Any:
        extra = cast("dict[str, Any]", problem.extra)
        extra["at"] += {"right": 1, "left": -1}.get(action, 0)
        broken = {
            "nan": Step("", float("nan")),
            "none": None,
            "bytes": Step(b"x", 0.0),  # type: ignore[arg-type]
            "words": Step("", "much"),  # type: ignore[arg-type]
            "maybe": Step("", 0.0, "yes"),  # type: ignore[arg-type]
        }
        if action in broken:
            return broken[action]
        if action == "hang":
            threading.Event().wait()
        if action == "die":
            os.kill(os.getpid(), 9)
        if action == "raise":
            raise KeyError(action)
        if action == "away":
            raise ConnectionError("no server")
        earned = 1 / 3 if action == "right" else None
        return Step(f"at {extra['at']}" + "!" * action.count("!"), earned, extra["at"] == extra["to"])

    def size(self, split: str) -> int | None:
        return {"train": None, "held_out": 4}.get(split, 0)

    def problem(self, split: str, index: int) -> Problem:
        if index == HANGS:
            threading.Event().wait()
        return Problem(f"{split} {index}", f"{split} {index}\n", extra={"at": 0, "to": 3})

    def score(self, problem: Problem, text: str) -> float:
        raise AssertionError("a world is not scored")

    def solve(self, problem: Problem) -> list[str]:
        return ["right"] * problem.extra["to"]
