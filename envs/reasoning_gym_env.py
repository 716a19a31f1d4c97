"""Problems and scorers of the library reasoning-gym, which has over a hundred generators.

Recipes name one as `use = "reasoning_gym:<dataset>"`. The library is an optional extra, imported when the first
environment is built.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import warnings
from typing import Any

from headrace.envs.answers import find_last_boxed
from headrace.envs.contract import Problem, Score, Split, WorkedExample
from headrace.envs.thoughts import read_answer

ITEMS = 1 << 14
"""Requested size of a dataset; it must be finite, because some datasets build a list over all items."""
ATTEMPTS = 2000
"""Most items drawn for one problem; after that the dataset counts as too small for its splits."""
FULL_MARKS = 0.999
"""Scores of the library at or above this count as right; lower scores may be partial credit for wrong answers."""


class ReasoningGym:
    """One dataset of the library with its own settings.

    A hash of the question decides the split, with an eighth each for `held_out` and `warm_start`. So no question is in
    two splits, though it may be drawn twice in the same split. `held_out` is the same for every seed. Raises ValueError
    if the library is not installed, or has no such dataset or setting.
    """

    def __init__(
        self, seed: int, dataset: str = "", *, partial_credit: bool = False, instruction: str = "", **config: Any
    ) -> None:
        self.name = f"reasoning_gym:{dataset}"
        self._seed = seed
        self._partial_credit = partial_credit
        self._instruction = instruction
        self._dataset = _create_dataset(dataset, config)
        self._entry = functools.lru_cache(maxsize=256)(self._draw_item)

    def size(self, split: Split) -> None:
        """Return None: the generators are endless."""

    def problem(self, split: Split, index: int) -> Problem:
        """Return the problem at an index. Raises ValueError if the dataset has no question for the split."""
        order = 0 if split == "held_out" else self._seed
        for attempt in range(ATTEMPTS):
            item = _hash(f"{order} {split} {index} {attempt}") % ITEMS
            entry = self._entry(item)
            if _split_of(entry["question"]) == split:
                return Problem(
                    task_id=f"{self.name}:{item}",
                    prompt=entry["question"] + self._instruction,
                    answer="" if entry["answer"] is None else str(entry["answer"]),
                    extra={"item": item},
                )
        raise ValueError(
            f"{self.name}: none of {ATTEMPTS} drawn items belongs to split {split!r}, perhaps because the dataset has "
            "too few different questions: change its settings so that it has more, or take another dataset"
        )

    def score(self, problem: Problem, text: str) -> Score:
        """Score the last box, or the whole text if it has no box, by the library's scorer.

        The reward is 1 for the full score, else 0; with `partial_credit` it is the library's score. If the scorer
        raises an error for an answer, the reward is 0.
        """
        text = read_answer(text)
        boxed = find_last_boxed(text)
        answer = text.strip() if boxed is None else boxed.strip()
        try:
            marks = float(self._dataset.score_answer(answer, self._entry(int(problem.extra["item"]))))
        except Exception:  # noqa: BLE001 - a hundred foreign scorers parse a model's text; any error means a wrong answer
            marks = 0.0
        reward = marks if self._partial_credit else float(marks >= FULL_MARKS)
        return Score(reward, {"marks": marks, "boxed": float(boxed is not None)})

    def example(self, index: int) -> WorkedExample:
        """Return a problem of the split `warm_start` with the library's answer in a box.

        Raises ValueError for a dataset whose problems have no answer, only a scorer.
        """
        problem = self.problem("warm_start", index)
        if not problem.answer:
            raise ValueError(
                f"{self.name} has no answer for {problem.task_id}: a warm start needs a dataset with answers"
            )
        return WorkedExample(problem.text, f"\\boxed{{{problem.answer}}}")

    def _draw_item(self, item: int) -> dict[str, Any]:
        entry: dict[str, Any] = self._dataset[item]
        return entry


def _create_dataset(name: str, config: dict[str, Any]) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the source of the library and its dependencies, when it is compiled
            from reasoning_gym import create_dataset
            from reasoning_gym.factory import DATASETS
    except ModuleNotFoundError as error:
        raise ValueError(
            f"environment reasoning_gym:{name} needs the library reasoning-gym: make install EXTRAS=reasoning-gym"
        ) from error
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3, cutoff=0.0)
        raise ValueError(
            f"reasoning-gym has no dataset {name!r}; the nearest of its {len(DATASETS)} names: {', '.join(near)}"
        )
    try:
        return create_dataset(name, seed=0, size=ITEMS, **config)
    except (TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"reasoning_gym:{name} refuses its settings {config}: {error}") from error


def _split_of(question: str) -> Split:
    eighth = _hash(question) % 8
    return "held_out" if eighth == 0 else "warm_start" if eighth == 1 else "train"


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
