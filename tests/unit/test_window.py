from dataclasses import replace

import numpy as np
import pytest

from headrace.schemas.ids import UseId
from headrace.trainers.batches.window import ServingOrder, Waiting, Window, count_next_batch


def waiting(min_version: int, arrival: int, bound: int = 8) -> Waiting[None]:
    key = UseId("sums", arrival, 0)
    return Waiting(key, min_version, min_version + bound, arrival, partition=0, offset=arrival, payload=None)


def versions(entries: list[Waiting[None]] | None) -> list[int]:
    return [entry.min_version for entry in entries or []]


def test_the_earliest_deadline_is_served_first_and_the_expired_never() -> None:
    window = Window[None](8)
    for arrival, (version, bound) in enumerate([(5, 8), (3, 8), (4, 8), (0, 1), (4, 8), (3, 20)]):
        window.add(waiting(version, arrival, bound))
    gone = [(one.entry.arrival, one.verdict) for one in window.expire(12)]
    assert sorted(gone) == [(1, "expired"), (3, "expired")], "a replay lives as long as its own bound"
    assert [entry.arrival for entry in window.list_waiting()] == [2, 4, 0, 5], "of equal deadlines the first to come"
    assert window.pop(5) is None
    assert len(window) == 4, "a batch that comes up short takes nothing"
    assert [versions(window.pop(1)) for _ in range(4)] == [[4], [4], [5], [3]]


def test_replays_and_fresh_groups_take_no_room_of_each_other() -> None:
    window = Window[None](2)
    for arrival in (0, 1):
        assert window.add(waiting(5, arrival)) == []
    replays = [replace(waiting(version, 2 + version), use_id=UseId("sums", 9, version + 1)) for version in range(3)]
    assert [window.add(replay) for replay in replays[1:]] == [[], []]
    (stale,) = window.add(replays[0])
    assert (stale.entry, stale.verdict) == (replays[0], "surplus")
    assert [eviction.entry.arrival for eviction in window.add(waiting(6, 9))] == [0], "though a replay is staler"


def test_beyond_its_bytes_groups_leave_by_the_same_rule_and_a_successor_holds_the_same() -> None:
    orders: tuple[ServingOrder, ...] = ("edf", "fifo", "lifo", "random")
    for order in orders:
        window, by_count = (Window[None](n, order, most_bytes=most, least=2) for n, most in ((20, 50), (5, 1 << 30)))
        for arrival in range(12):
            entry = replace(waiting(5 + arrival % 3, arrival), size_bytes=10)
            assert window.add(entry) == by_count.add(entry)
        assert window.list_waiting() == by_count.list_waiting()
        successor = Window[None](20, order, most_bytes=50, least=2)
        assert [gone for entry in sorted(window.list_waiting(), key=hash) for gone in successor.add(entry)] == []
        assert len(successor) == len(window) == 5


def test_one_large_group_takes_the_place_of_several_and_as_many_as_a_batch_stay_whatever_their_size() -> None:
    window = Window[None](20, most_bytes=50, least=3)
    for arrival in range(5):
        assert window.add(replace(waiting(5, arrival), size_bytes=10)) == []
    gone = window.add(replace(waiting(6, 5), size_bytes=1000))
    assert [eviction.entry.arrival for eviction in gone] == [0, 1, 2]
    assert [eviction.verdict for eviction in gone] == ["surplus"] * 3
    assert window.pop(3) is not None
    assert [len(window.add(replace(waiting(5, arrival), size_bytes=20))) for arrival in (6, 7, 8)] == [0, 0, 0]
    assert len(window.add(replace(waiting(5, 9), size_bytes=1))) == 1, "what was taken counts no more"


def served(order: ServingOrder, *entries: Waiting, current: int = 12, seed: int = 1) -> list[int]:
    window = Window[None](8, order, seed)
    for entry in entries:
        assert window.add(entry) == []
    window.expire(current)
    return versions(window.pop(len(window)))


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


def test_beyond_the_capacity_each_order_has_its_own_that_leaves() -> None:
    orders: dict[ServingOrder, list[int]] = {"edf": [1, 3, 0], "fifo": [0, 1, 2], "lifo": [0, 1, 2]}
    for order, left in orders.items():
        window, gone = Window[None](2, order), []
        for arrival, version in enumerate([5, 2, 9, 3, 8]):
            gone += window.add(waiting(version, arrival))
        assert [(one.entry.arrival, one.verdict) for one in gone] == [(arrival, "surplus") for arrival in left]
        assert len(window) == 2


def test_a_batch_waits_to_be_whole_or_for_so_long_and_is_never_empty() -> None:
    for waiting, waited_s, limit_s, groups in (
        (31, 99.0, 0.0, 0),
        (32, 0.0, 0.0, 32),
        (40, 0.0, 5.0, 32),
        (31, 4.9, 5.0, 0),
        (31, 5.0, 5.0, 28),
        (3, 5.0, 5.0, 0),
    ):
        assert count_next_batch(waiting, 32, 4, waited_s, limit_s) == groups, (waiting, waited_s, limit_s)


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
        entry = replace(waiting(arrival // 10 + int(draw.integers(9)), arrival, 1 + int(draw.integers(8))), use_id=key)
        before = [one for one in (*window.list_waiting(), entry) if one.is_replay == entry.is_replay]
        expected = [max(before, key=leaves)] if len(before) > 20 else []
        assert [eviction.entry for eviction in window.add(entry)] == expected
        if arrival % 7 == 0:
            window.pop(int(draw.integers(12)))
            window.expire(arrival // 10 + 3)
    assert looked == 1500
    assert all(len(heap) <= 2 * 20 + 65 for heap in (window._fresh.by_departure, window._replays.by_departure))
