from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.curate.dedupe import MOST_RUNS, Dedupe

numbers = st.lists(st.integers(0, 40).map(lambda i: 3 * i + 1), max_size=120)


@given(numbers)
def test_each_number_is_concluded_once_in_any_order_and_with_any_repetition(order: list[int]) -> None:
    dedupe = Dedupe(partition=1, partitions=3)
    first_times = [number for number in order if dedupe.conclude("sums", number)]
    assert sorted(first_times) == sorted(set(order))


@given(numbers, numbers)
def test_a_restored_dedupe_goes_on_as_the_one_it_was(before: list[int], after: list[int]) -> None:
    one, other = Dedupe(1, 3), Dedupe(1, 3)
    for number in before:
        one.conclude("sums", number)
    other.restore(one.snapshot())
    assert [one.conclude("sums", n) for n in after] == [other.conclude("sums", n) for n in after]


def test_streams_are_apart_and_a_gap_costs_one_run_however_much_comes_after_it() -> None:
    dedupe = Dedupe(0, 2)
    for number in range(0, 2000, 2):
        assert number == 500 or dedupe.conclude("a", number)
    assert dedupe.conclude("b", 0)
    runs = {"a": [[0, 250], [251, 1000]], "b": [[0, 1]]}
    assert dedupe.snapshot() == {stream: {"runs": of, "dead": [], "forgot": False} for stream, of in runs.items()}
    assert dedupe.conclude("a", 500)
    assert dedupe.snapshot()["a"]["runs"] == [[0, 1000]]


def test_numbers_that_somebody_invents_fill_no_memory() -> None:
    dedupe = Dedupe(0, 1)
    taken = [number for number in range(0, 100_000, 2) if dedupe.has_room("a", number) and dedupe.conclude("a", number)]
    assert len(taken) == MOST_RUNS
    assert not dedupe.has_room("a", 2**62)
    assert dedupe.has_room("a", taken[-1] + 1), "numbers beside known ones still are remembered"


def test_what_is_no_snapshot_is_refused() -> None:
    for runs in (None, {}, [[3, 2]], [[0, 2], [1, 4]], [[0, "1"]], [[0]], [3]):
        for state in (runs, {"a": runs}, {"a": {"runs": runs, "dead": []}}, {"a": {"runs": [[0, 1]], "dead": ["1"]}}):
            if state:
                with pytest.raises(ValueError, match="dedupe snapshot"):
                    Dedupe(0, 1).restore(state)  # type: ignore[arg-type]


def test_a_dead_number_is_new_once_more_and_that_survives_a_restore() -> None:
    dedupe, again = Dedupe(1, 3), Dedupe(1, 3)
    for number in (1, 4, 7):
        dedupe.conclude("sums", number)
    dedupe.mark_dead("sums", 4)
    again.restore(dedupe.snapshot())
    assert not again.reopen("sums", 1)
    assert not again.reopen("other", 4)
    assert again.reopen("sums", 4)
    assert not again.reopen("sums", 4)
    assert not again.conclude("sums", 4)
    assert again.snapshot()["sums"]["dead"] == []
