"""Questions for the scripted engine: each contains its difficulty level and its right answer, as `1/17=4?`.

There is nothing to learn. From the level the engine decides whether its answer is right, and how long it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from headrace.envs.contract import Problem, Score, Split

FILLER = "="
"""Filler, repeated before the answer up to the level's length."""
_QUESTION = re.compile(r"(\d+)/(\d+)=(\d)\?")


class Question(NamedTuple):
    """The parts of a prompt."""

    level: int
    number: int
    answer: int
    """One digit."""

    def __str__(self) -> str:
        """Return the question as in a prompt."""
        return f"{self.level}/{self.number}={self.answer}?"


def read_question(text: str) -> Question | None:
    """Return the last question in a text, ignoring spaces; None if there is none."""
    found = _QUESTION.findall(text.replace(" ", ""))
    return Question(*map(int, found[-1])) if found else None


class Scripted:
    """`tasks` problems of each level, alternating between levels; a level listed twice comes twice as often.

    There are as many held-out problems, all different from these, and no worked examples. Raises ValueError for a level
    below 0.
    """

    name = "scripted"

    def __init__(self, seed: int, levels: Sequence[int] = (0, 1), tasks: int = 128) -> None:
        if not isinstance(levels, Sequence) or not levels or any(not _is_count(level) for level in levels):
            raise ValueError(f"levels must be a list of integers, 0 or more, as in [0, 0, 1]; got {levels!r}")
        if not _is_count(tasks) or not tasks:
            raise ValueError(
                f"tasks, the number of problems of each listed level, must be a whole number from 1 on; got {tasks!r}"
            )
        self._seed, self._levels, self._tasks = seed, tuple(levels), tasks

    def size(self, split: Split) -> int:
        """Return the number of problems."""
        return 0 if split == "warm_start" else len(self._levels) * self._tasks

    def problem(self, split: Split, index: int) -> Problem:
        """Return the problem at an index; the order begins again at the end. Raises ValueError for an empty split."""
        size = self.size(split)
        if not size or index < 0:
            raise ValueError(f"split {split!r} has {size} problems, so there is no problem {index}")
        number = index % size + (size if split == "held_out" else 0)
        asked = Question(self._levels[index % len(self._levels)], number, (number + self._seed) % 10)
        return Problem(str(asked), str(asked), str(asked.answer), f"level{asked.level}")

    def score(self, problem: Problem, text: str) -> Score:
        """Return reward 1 if the text is only fillers and then the right answer."""
        return Score(float(text.replace(" ", "").lstrip(FILLER) == problem.answer))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
