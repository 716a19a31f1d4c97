from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from envs.contract import Problem, Score, Split
from infra.errors import UsageError
from infra.settings import Use
from producers.selectors import MOST_REJECTIONS, AcceptAll, load_selector
from producers.task_source import EnvironmentFailed, TaskSource
from schemas.records import Outcome


class Sums:
    """Three sums and two held-out ones, in tiers of growing numbers."""

    name = "sums"

    def __init__(self, tiers: tuple[str, ...] | list[str] = ("one",)) -> None:
        self._tiers = tuple(tiers)

    def size(self, split: Split) -> int | None:
        return {"train": 3, "held_out": 2}.get(split)

    def problem(self, split: Split, index: int) -> Problem:
        if split == "held_out" and index == 1:
            raise RuntimeError("no such file")
        tier = self._tiers[index % len(self._tiers)]
        return Problem(f"{tier}-{split}-{index}", f"{index}+{index}=", str(2 * index), tier)

    def score(self, problem: Problem, text: str) -> Score:
        return Score(float(text == problem.answer))

    def tiers(self) -> tuple[str, ...]:
        return ("one", "two", "three")


class Picky(AcceptAll):
    """Rejects all problems but those named."""

    def __init__(self, seed: int, wanted: tuple[str, ...] = ()) -> None:
        super().__init__(seed)
        self.wanted = wanted
        self.asked = 0

    def select(self, problem: Problem) -> bool:
        self.asked += 1
        return problem.task_id in self.wanted

    def snapshot(self) -> dict[str, Any]:
        return {"asked": self.asked}

    def restore(self, state: dict[str, Any]) -> None:
        self.asked = state["asked"]


def source(selector: AcceptAll | None = None, **settings: Any) -> TaskSource:
    return TaskSource("math", lambda more: Sums(**{**settings, **more}), selector or AcceptAll(1))


def test_accept_all_takes_every_problem_and_begins_again_at_the_end() -> None:
    problems = source()
    assert [problems.draw()[0] for _ in range(5)] == [0, 1, 2, 0, 1]


def test_a_selector_skips_and_after_256_rejections_the_next_one_is_forced() -> None:
    problems = source(Picky(1, ("one-train-2",)))
    assert problems.draw()[1].task_id == "one-train-2"
    nobody = Picky(1)
    problems = source(nobody)
    problems.draw()
    assert (nobody.asked, problems.forced) == (MOST_REJECTIONS, 1)


def test_a_selector_that_raises_accepts_nothing_silently() -> None:
    class Broken(AcceptAll):
        def select(self, problem: Problem) -> bool:
            raise ZeroDivisionError(problem.task_id)

    with pytest.raises(ZeroDivisionError):
        source(Broken(1)).draw()


def test_a_source_goes_on_where_its_snapshot_was_taken() -> None:
    first = source(Picky(1, ("one-train-1", "one-train-2")))
    first.draw()
    second = source(Picky(1, ("one-train-1", "one-train-2")))
    second.restore(first.snapshot())
    assert second.draw() == first.draw()
    assert second.selector.snapshot() == first.selector.snapshot()


def test_the_tier_rises_to_the_hardest_and_then_no_more() -> None:
    problems = source(tiers=("one", "two"))
    assert problems.raise_tier()
    assert (problems.tier, problems.draw()[1].tier) == ("three", "three")
    assert not problems.raise_tier()
    assert problems.problem(1, "").tier == "two"  # as it was drawn before the rise
    again = source(tiers=("one", "two"))
    again.restore(problems.snapshot())
    assert again.draw()[1].tier == "three"


def test_fewer_held_out_problems_than_asked_for_is_said_with_the_number_there_is() -> None:
    with pytest.raises(UsageError, match=r"evaluate.problems is 128.*at most 2"):
        source().held_out(128)


def test_an_environment_that_raises_is_named_with_its_problem() -> None:
    with pytest.raises(EnvironmentFailed, match=r"'sums' of workflow math gave no problem 1 of held_out: RuntimeError"):
        source().held_out(2)


def test_accept_all_learns_and_remembers_nothing() -> None:
    selector = AcceptAll(1)
    selector.observe(Outcome())
    selector.on_version(3)
    selector.restore(selector.snapshot())
    assert selector.select(Problem("a", "?"))


def test_selectors_are_found_by_name_or_as_package_and_name() -> None:
    assert isinstance(load_selector(Use(use="accept_all"), 1), AcceptAll)
    module = types.ModuleType("own_selectors")
    module.Picky = Picky  # type: ignore[attr-defined]
    sys.modules["own_selectors"] = module
    try:
        found = load_selector(Use.model_validate({"use": "own_selectors:Picky", "wanted": ["a"]}), 1)
        assert found.select(Problem("a", "?"))
        with pytest.raises(UsageError, match="refuses its settings"):
            load_selector(Use.model_validate({"use": "own_selectors:Picky", "size": 3}), 1)
    finally:
        del sys.modules["own_selectors"]


@pytest.mark.parametrize("name", ["accept_al", "no.such.module:Name", "producers.selectors:Nobody"])
def test_an_unknown_selector_is_refused_by_name(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        load_selector(Use(use=name), 1)
