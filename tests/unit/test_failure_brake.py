"""A worker whose groups all fail slows down, and is at full speed again with the first that does not."""

from __future__ import annotations

from itertools import pairwise

from headrace.producers.rollout.failure_brake import LENIENT, LONGEST_S, FailureBrake


def test_after_some_dozens_of_failures_in_a_row_tasks_are_started_one_by_one_and_ever_slower() -> None:
    now_s, started = 0.0, []
    brake = FailureBrake(lambda: now_s)
    for turn in range(6000):  # a minute of turns, each with 40 tasks that wait; all that is started fails at once
        now_s = turn / 100
        for _ in range(40):
            if brake.is_released():
                brake.note_started()
                started.append(now_s)
                brake.note_group(failed=True)
    first_s = started[: LENIENT + 1]
    assert first_s == [0.0] * (LENIENT + 1), "a few failures slow nothing"
    later_s = started[LENIENT + 1 :]
    assert len(set(later_s)) == len(later_s), "one at a time"
    pauses_s = [round(after - before, 1) for before, after in pairwise(later_s)]
    assert pauses_s[:4] == [0.2, 0.4, 0.8, 1.6]
    assert set(pauses_s[5:]) == {LONGEST_S}

    brake.note_group(failed=False)
    assert brake.is_released()
    brake.note_started()
    brake.note_group(failed=True)
    assert brake.is_released()


def test_groups_that_were_under_way_lengthen_no_pause() -> None:
    now_s = 0.0
    brake = FailureBrake(lambda: now_s)
    for _ in range(10 * LENIENT):
        brake.note_group(failed=True)
    assert not brake.is_released()
    now_s = 0.2
    assert brake.is_released()
