from dataclasses import replace

import numpy as np
import pytest

from headrace.schemas.ids import UseId
from headrace.trainers.batches.window import ServingOrder, Waiting, Window, next_batch


def waiting(min_version: int, arrival: int, bound: int = 8) -> Waiting[None]:
    key = UseId("sums", arrival, 0)
    return Waiting(key, min_version, min_version + bound, arrival, partition=0, offset=arrival, payload=None)


def versions(entries: list[Waiting[None]] | None) -> list[int]:
    return [entry.min_version for entry in entries or []]


def test_the_earliest_deadline_is_served_first_and_the_expired_never() -> None:
    window = Window[None](8)
    for arrival, version in enumerate([5, 3, 4]):
        window.add(waiting(version, arrival))
    (expired,) = window.expire(12)
    assert (expired.entry.min_version, expired.verdict) == (3, "expired")
    assert versions(window.take(1)) == [4]
    assert versions(window.take(1)) == [5]


def test_version_zero_grows_stale_like_any_other() -> None:
    window = Window[None](8)
    window.add(waiting(0, 0, bound=1))
    assert window.expire(1) == []
    assert [eviction.entry.min_version for eviction in window.expire(2)] == [0]


def test_a_replay_lives_as_long_as_its_own_bound() -> None:
    window = Window[None](8)
    window.add(waiting(3, 0, bound=1))
    window.add(waiting(3, 1, bound=20))
    assert [eviction.entry.arrival for eviction in window.expire(5)] == [0]
    assert len(window) == 1


def test_replays_and_fresh_groups_take_no_room_of_each_other() -> None:
    window = Window[None](2)
    for arrival in (0, 1):
        assert window.add(waiting(5, arrival)) == []
    replays = [replace(waiting(version, 2 + version), key=UseId("sums", 9, version + 1)) for version in range(3)]
    assert [window.add(replay) for replay in replays[1:]] == [[], []]
    (stale,) = window.add(replays[0])
    assert (stale.entry, stale.verdict) == (replays[0], "surplus")
    assert [eviction.entry.arrival for eviction in window.add(waiting(6, 9))] == [0], "though a replay is staler"


def test_equal_deadlines_are_served_in_order_of_arrival() -> None:
    window = Window[None](8)
    for arrival in (2, 0, 1):
        window.add(waiting(4, arrival))
    assert [entry.arrival for entry in window.leftovers()] == [0, 1, 2]


def test_a_batch_that_comes_up_short_takes_nothing() -> None:
    window = Window[None](8)
    window.add(waiting(1, 0))
    assert window.take(2) is None
    assert len(window) == 1


def test_beyond_its_capacity_the_most_stale_group_leaves_even_if_it_is_the_newcomer() -> None:
    window = Window[None](2)
    assert window.add(waiting(5, 0)) == []
    assert window.add(waiting(3, 1)) == []
    (old,) = window.add(waiting(4, 2))
    assert (old.entry.min_version, old.verdict) == (3, "surplus")
    (newcomer,) = window.add(waiting(1, 3))
    assert newcomer.entry.arrival == 3
    assert versions(list(window.leftovers())) == [4, 5]


@pytest.mark.parametrize("order", ["edf", "fifo", "lifo", "random"])
def test_beyond_its_bytes_groups_leave_by_the_same_rule_and_a_successor_holds_the_same(order: ServingOrder) -> None:
    window, by_count = (Window[None](n, order, most_bytes=most, least=2) for n, most in ((20, 50), (5, 1 << 30)))
    entries = [replace(waiting(5 + arrival % 3, arrival), size_bytes=10) for arrival in range(12)]
    for entry in entries:
        assert window.add(entry) == by_count.add(entry)
    assert window.leftovers() == by_count.leftovers()
    successor = Window[None](20, order, most_bytes=50, least=2)
    assert [gone for entry in sorted(window.leftovers(), key=hash) for gone in successor.add(entry)] == []
    assert len(successor) == len(window) == 5


def test_one_large_group_takes_the_place_of_several_and_as_many_as_a_batch_stay_whatever_their_size() -> None:
    window = Window[None](20, most_bytes=50, least=3)
    for arrival in range(5):
        assert window.add(replace(waiting(5, arrival), size_bytes=10)) == []
    gone = window.add(replace(waiting(6, 5), size_bytes=1000))
    assert [eviction.entry.arrival for eviction in gone] == [0, 1, 2]
    assert [eviction.verdict for eviction in gone] == ["surplus"] * 3
    assert window.take(3) is not None
    assert [len(window.add(replace(waiting(5, arrival), size_bytes=20))) for arrival in (6, 7, 8)] == [0, 0, 0]
    assert len(window.add(replace(waiting(5, 9), size_bytes=1))) == 1, "what was taken counts no more"


def served(order: ServingOrder, *entries: Waiting, current: int = 12, seed: int = 1) -> list[int]:
    window = Window[None](8, order, seed)
    for entry in entries:
        assert window.add(entry) == []
    window.expire(current)
    return versions(window.take(len(window)))


def test_every_order_serves_what_has_not_expired_and_nothing_else() -> None:
    arrived = [waiting(version, arrival) for arrival, version in enumerate([5, 3, 4, 6])]
    assert served("edf", *arrived) == [4, 5, 6]
    assert served("fifo", *arrived) == [5, 4, 6]
    assert served("lifo", *arrived) == [6, 4, 5]
    assert sorted(served("random", *arrived)) == [4, 5, 6]


def test_lots_depend_on_the_seed_and_on_nothing_that_happens() -> None:
    numbers = [waiting(number, number) for number in range(8)]
    drawn = served("random", *numbers, current=0)
    later = [replace(entry, arrival=7 - entry.arrival, offset=0) for entry in reversed(numbers)]
    assert served("random", *later, current=0) == drawn != list(range(8))
    assert len({tuple(served("random", *numbers, current=0, seed=seed)) for seed in range(20)}) > 15


@pytest.mark.parametrize(
    ("order", "left"), [("edf", [1, 3, 0]), ("fifo", [0, 1, 2]), ("lifo", [0, 1, 2])], ids=["edf", "fifo", "lifo"]
)
def test_beyond_the_capacity_each_order_has_its_own_that_leaves(order: ServingOrder, left: list[int]) -> None:
    window, gone = Window[None](2, order), []
    for arrival, version in enumerate([5, 2, 9, 3, 8]):
        gone += [eviction.entry.arrival for eviction in window.add(waiting(version, arrival))]
    assert gone == left
    assert len(window) == 2


def test_by_lot_the_last_in_order_leaves() -> None:
    whole = [entry.arrival for entry in sorted_by_lot(range(5))]
    window, gone = Window[None](2, "random"), set()
    for arrival in range(5):
        gone |= {eviction.entry.arrival for eviction in window.add(waiting(4, arrival))}
    assert gone == set(whole[2:])


def sorted_by_lot(arrivals: range) -> tuple[Waiting, ...]:
    window = Window[None](8, "random")
    for arrival in arrivals:
        window.add(waiting(4, arrival))
    return window.leftovers()


@pytest.mark.parametrize(
    ("waiting", "waited_s", "limit_s", "groups"),
    [
        (31, 99.0, 0.0, 0),
        (32, 0.0, 0.0, 32),
        (40, 0.0, 5.0, 32),
        (31, 4.9, 5.0, 0),
        (31, 5.0, 5.0, 28),
        (3, 5.0, 5.0, 0),
    ],
)
def test_a_batch_waits_to_be_whole_or_for_so_long_and_is_never_empty(
    waiting: int, waited_s: float, limit_s: float, groups: int
) -> None:
    assert next_batch(waiting, 32, 4, waited_s, limit_s) == groups


@pytest.mark.parametrize("order", ["edf", "fifo", "lifo", "random"])
def test_who_leaves_a_full_window_is_found_without_looking_at_all_that_wait(order: ServingOrder) -> None:
    window, draw, looked = Window[None](20, order), np.random.default_rng(5), 0
    leaves = window._leaves

    def counted(entry: Waiting) -> tuple[int, int]:
        nonlocal looked
        looked += 1
        return leaves(entry)

    window._leaves = counted
    for arrival in range(1500):
        key = UseId("sums", arrival, int(draw.integers(2)))
        entry = replace(waiting(arrival // 10 + int(draw.integers(9)), arrival, 1 + int(draw.integers(8))), key=key)
        before = [one for one in (*window.leftovers(), entry) if one.is_replay == entry.is_replay]
        expected = [max(before, key=leaves)] if len(before) > 20 else []
        assert [eviction.entry for eviction in window.add(entry)] == expected
        if arrival % 7 == 0:
            window.take(int(draw.integers(12)))
            window.expire(arrival // 10 + 3)
    assert looked == 1500
    assert all(len(heap) <= 2 * 20 + 65 for heap in window._leaving.values())
