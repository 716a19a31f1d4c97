from __future__ import annotations

import inspect
import json
import re
import sys
import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.envs.contract import Problem, Score, Split
from headrace.envs.payload import check_task_can_hold
from headrace.envs.registry import check_first_problem
from headrace.infra.errors import Unavailable, UsageError
from headrace.infra.recipe.settings import Feed
from headrace.infra.recipe.table import Named
from headrace.producers.feed.selectors.contract import MOST_REJECTIONS, AcceptAll, Selector
from headrace.producers.feed.selectors.registry import SELECTORS, AllOf, load_selector, load_selectors
from headrace.producers.feed.task_source import (
    MOST_UNBUILT,
    EnvironmentAway,
    EnvironmentFailed,
    TaskSource,
    refuse_small_held_out,
)
from headrace.schemas.records import Outcome


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

    def asked(self) -> tuple[str, ...]:
        return self._tiers


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


def source(selector: Selector | None = None, **settings: Any) -> TaskSource:
    return TaskSource("math", lambda more: Sums(**{**settings, **more}), selector or AcceptAll(1))


def test_a_selector_skips_and_after_256_rejections_the_next_one_is_forced() -> None:
    problems = source(Picky(1, ("one-train-2",)))
    assert problems.draw().problem.task_id == "one-train-2"
    assert (problems.selected, problems.rejected, problems.forced) == (1, 2, 0)
    nobody = Picky(1)
    problems = source(nobody)
    assert problems.draw().index == MOST_REJECTIONS % 3
    assert (nobody.asked, problems.selected, problems.rejected, problems.forced) == (256, 0, 256, 1)


def test_the_tier_rises_to_the_hardest_and_then_no_more() -> None:
    problems = source(tiers=("one", "two"))
    assert problems.raise_tier()
    assert (problems.tier, problems.draw().problem.tier, problems.draw().tier) == ("three", "three", "three")
    assert not problems.raise_tier()
    assert problems.problem(1, "").tier == "two"  # as it was drawn before the rise
    again = source(tiers=("one", "two"))
    again.restore(problems.snapshot())
    assert again.draw().problem.tier == "three"
    selector = Alternating(1)
    source(selector).raise_tier()
    assert selector.sizes == (3, 3), "it is told how many problems there are, and told again"


class Alternating(AcceptAll):
    """Chooses one tier after the other, and wants to know the size."""

    turn = 0
    sizes: tuple[int | None, ...] = ()

    def choose(self, tiers: Sequence[str]) -> str:
        self.turn += 1
        return tiers[self.turn % len(tiers)]

    def on_size(self, size: int | None) -> None:
        self.sizes += (size,)


def test_a_selector_chooses_among_the_tiers_that_the_recipe_asks_and_each_has_its_own_order() -> None:
    problems = source(Alternating(1), tiers=("one", "two"))
    drawn = [problems.draw() for _ in range(5)]
    assert [one.tier for one in drawn] == ["two", "one", "two", "one", "two"]
    assert [one.problem.task_id for one in drawn[::2]] == ["two-train-0", "two-train-1", "two-train-2"]
    assert [problems.problem(one.index, one.tier) for one in drawn] == [one.problem for one in drawn]
    again = source(Alternating(1), tiers=("one", "two"))
    again.restore(json.loads(json.dumps(problems.snapshot())))
    assert [again.draw().index for _ in range(4)] == [0, 2, 1, 0]


def test_what_an_environment_or_a_selector_cannot_give_is_said() -> None:
    with pytest.raises(UsageError, match=r"evaluate.problems is 128.*at most 2"):
        source().list_held_out(128)
    environment: Any = SimpleNamespace(size=lambda _: 0)
    with pytest.raises(UsageError, match=r"holds out no problems: set evaluate\.every to 0"):
        refuse_small_held_out("sums", environment, 128)
    with pytest.raises(
        EnvironmentFailed, match=r"'sums' of workflow math failed to build problem 1 of split held_out: RuntimeError"
    ):
        source().list_held_out(2)
    with pytest.raises(UsageError, match="name each selector only once"):
        load_selectors([Named(use="greso"), Named(use="greso")], 1)
    with pytest.raises(UsageError, match="names a and b, and each of them chooses the tier"):
        AllOf({"a": Alternating(1), "b": Alternating(1)})
    for name, said in (("accept_al", "take one of accept_all"), ("no.such.module:Name", "there is no module no: ")):
        with pytest.raises(UsageError, match=said):
            load_selector(Named(use=name), 1)


def test_an_environment_that_cannot_be_reached_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise ConnectionRefusedError("the data set's server")

    monkeypatch.setattr(Sums, "problem", away)
    with pytest.raises(
        Unavailable, match=r"failed to build problem 1 of split train: ConnectionRefusedError: the data set's server"
    ):
        source().draw()


def test_a_size_that_only_a_server_knows_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made = source()

    def lose(*_: object) -> int:
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr(Sums, "size", lose)
    for ask in (made.draw, lambda: made.list_held_out(1)):
        with pytest.raises(EnvironmentAway, match=r"environment 'sums' of workflow .* cannot tell its size: refused"):
            ask()


class Torn(Sums):
    """Cannot build its problem 1; where it is asked to, some are not JSON, and some have a long text as a field."""

    def __init__(
        self,
        bad: tuple[int, ...] = (1,),
        unplain: tuple[int, ...] = (),
        size: int = 3,
        away: tuple[int, ...] = (),
        says: str = "no such row",
        long: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__()
        self.says, self.long = says, long or {}
        self.bad, self.unplain, self._size, self.away = bad, unplain, size, away

    def size(self, split: Split) -> int | None:
        return self._size

    def problem(self, split: Split, index: int) -> Problem:
        if index in self.bad:
            raise LookupError(self.says)
        if index in self.away:
            raise ConnectionRefusedError("the host of this row")
        made = Problem(str(index), "?", extra={"is": object()} if index in self.unplain else {})
        return replace(made, **{self.long[index]: "x" * 1001}) if index in self.long else made


def torn(selector: Selector | None = None, **settings: Any) -> TaskSource:
    return TaskSource("math", lambda _: Torn(**settings), selector or AcceptAll(1))


def test_a_training_problem_that_cannot_be_built_is_passed_over_and_told_once() -> None:
    problems = torn(Picky(1, ("0", "3")), bad=(1,), unplain=(2,), size=4)
    with capture_logs() as logs:
        drawn = [problems.draw().index for _ in range(4)]
    assert drawn == [0, 3, 0, 3]
    assert (problems.skipped, problems.selected, problems.rejected) == (4, 4, 0), "no selector is asked about it"
    told = [{**one, "why": one["why"].partition(" at ")[0]} for one in logs]
    assert [(one["event"], one["log_level"], one["workflow"], one["index"]) for one in told] == [
        ("problem.skipped", "warning", "math", index) for index in (1, 2)
    ]
    assert (
        told[0]["why"]
        == "environment 'sums' of workflow math failed to build problem 1 of split train: LookupError: no such row"
    )
    assert "PayloadError: problem '2' cannot be written as JSON" in told[1]["why"]
    assert logs[0]["why"].endswith(" in problem")
    with pytest.raises(EnvironmentFailed, match="no such row"):
        torn().list_held_out(2)


def test_a_problem_whose_own_server_is_gone_is_passed_over_and_an_outage_passes_over_nothing() -> None:
    problems = torn(bad=(), size=20, away=(1,))
    with capture_logs() as logs:
        assert [problems.draw().index for _ in range(2)] == [0, 2]
    assert [(one["event"], one["index"]) for one in logs] == [("problem.skipped", 1)]
    away = torn(bad=(), size=20, away=tuple(range(20)))
    with capture_logs() as logs, pytest.raises(EnvironmentAway, match="8 problems in a row could not be built"):
        away.draw()
    assert (logs, away.skipped) == ([], 0)


def test_a_held_out_problem_that_is_no_json_is_refused_at_the_start() -> None:
    with pytest.raises(EnvironmentFailed, match=r"problem 2 of split held_out: PayloadError: .*be written as JSON"):
        torn(bad=(), unplain=(2,), size=4).list_held_out(3)


def test_a_problem_whose_names_no_worker_accepts_is_passed_over_and_refused_where_it_is_held_out() -> None:
    for name in ("task_id", "tier"):
        problems = torn(bad=(), long={1: name}, size=3)
        with capture_logs() as logs:
            assert [problems.draw().index for _ in range(2)] == [0, 2]
        assert f"the {name} of problem '" in logs[0]["why"]
        assert "has 1001 characters: give it at most 1000" in logs[0]["why"]
        with pytest.raises(EnvironmentFailed, match="problem 1 of split held_out"):
            problems.list_held_out(2)
        with pytest.raises(ValueError, match=f"^environment sums: the {name} of problem"):
            check_first_problem(Torn(bad=(), long={0: name}))
    check_task_can_hold(Problem("x" * 1000, "?", tier="x" * 1000))


def test_a_source_goes_on_behind_the_problems_that_it_passed_over() -> None:
    whole, first = torn(), torn()
    want = [whole.draw() for _ in range(5)]
    got = [first.draw()]
    for _ in range(4):
        again = torn()
        again.restore(json.loads(json.dumps(first.snapshot())))
        first = again
        got.append(first.draw())
    assert got == want
    assert first.snapshot() == whole.snapshot()
    older = {key: value for key, value in whole.snapshot().items() if not key.startswith("skipped")}
    again = torn()
    again.restore(older)
    assert (again.skipped, again.skipped_why) == (0, ""), "of a build that passed none over"


def test_eight_training_problems_in_a_row_that_cannot_be_built_end_the_feeder_and_one_ends_a_trial() -> None:
    assert torn(bad=tuple(range(MOST_UNBUILT - 1)), size=20).draw().index == MOST_UNBUILT - 1
    with pytest.raises(
        EnvironmentFailed, match=r"8 problems in a row could not be built; the last: .* failed to build problem 7 of "
    ):
        torn(bad=tuple(range(MOST_UNBUILT)), size=20).draw()
    with pytest.raises(
        EnvironmentFailed, match=r"failed to build problem 0 of split .*: no such row at \S+ in problem$"
    ):
        torn(bad=(0,)).draw(is_strict=True)


def test_selectors_are_found_by_name_or_as_package_and_name() -> None:
    assert isinstance(load_selector(Named(use="accept_all"), 1), AcceptAll)
    module = types.ModuleType("own_selectors")
    module.Picky = Picky  # type: ignore[attr-defined]
    sys.modules["own_selectors"] = module
    try:
        found = load_selector(Named.model_validate({"use": "own_selectors:Picky", "wanted": ["a"]}), 1)
        assert found.select(Problem("a", "?"))
        with pytest.raises(UsageError, match=r"own_selectors:Picky: no option 'size'; the options are wanted$"):
            load_selector(Named.model_validate({"use": "own_selectors:Picky", "size": 3}), 1)
    finally:
        del sys.modules["own_selectors"]


def test_each_of_several_selectors_must_agree_and_their_states_are_by_name() -> None:
    both = AllOf({"first": Picky(1, ("a", "b")), "second": Picky(1, ("b",))})
    assert [both.select(Problem(name, "?")) for name in "abc"] == [False, True, False]
    assert both.snapshot() == {"first": {"asked": 3}, "second": {"asked": 2}}
    changed = AllOf({"second": Picky(1), "third": Picky(1)})
    changed.restore(both.snapshot())
    assert changed.snapshot() == {"second": {"asked": 2}, "third": {"asked": 0}}
    choosing = source(AllOf({"a": Alternating(1), "b": Picky(1, ("two-train-2",))}), tiers=("one", "two")).draw()
    assert (choosing.problem.task_id, choosing.tier) == ("two-train-2", "two"), "of the tier that was chosen"


PAGE = (Path(__file__).parents[2] / "docs" / "task-selectors.md").read_text()


def test_the_selector_of_the_page_works_as_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    module = types.ModuleType("my_package.ask")
    exec(code, module.__dict__)  # noqa: S102 - the project's own page
    monkeypatch.setitem(sys.modules, "my_package.ask", module)
    *_, own = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    [picked] = Feed.model_validate(tomllib.loads(own)["feed"]).selector
    assert picked.settings == {"rest": 200}

    def build() -> TaskSource:
        return source(load_selectors([Named.model_validate({"use": picked.use, "rest": 2})], 1))

    problems = build()
    for task_id in ("one-train-0", "one-train-1", "one-train-2"):
        problems.selector.observe(Outcome(task_id=task_id))
    again = build()
    again.restore(json.loads(json.dumps(problems.snapshot())))
    assert [again.draw().index for _ in range(2)] == [0, 0]
    assert again.rejected == 2
    with pytest.raises(UsageError, match="at least 1; got 0"):
        load_selector(Named.model_validate({"use": picked.use, "rest": 0}), 1)


def test_the_recipes_of_the_page_can_be_read_and_its_table_has_every_selector_with_its_settings() -> None:
    for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL):
        tables = tomllib.loads(block)
        named = Feed.model_validate(tables.get("feed", {})).selector
        load_selectors([one for one in named if ":" not in one.use], 1)
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*)\|$", PAGE, re.MULTILINE))
    assert rows.pop("use")
    assert set(rows) == set(SELECTORS)
    for name, row in rows.items():
        settings = set(inspect.signature(type(load_selector(Named(use=name), 1))).parameters) - {"seed"}
        assert settings <= set(re.findall(r"`(\w+)`", row)), name
