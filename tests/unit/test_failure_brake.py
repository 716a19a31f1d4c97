"""A worker whose groups all fail goes on slowly, and at full speed after the first that does not."""

from __future__ import annotations

from headrace.producers.rollout.failure_brake import LENIENT, LONGEST_S, FailureBrake


def test_a_worker_whose_groups_all_fail_starts_fewer_and_fewer() -> None:
    now_s, starts = 0.0, 0
    brake = FailureBrake(lambda: now_s)
    for _ in range(6_000):  # ten minutes
        if brake.is_released():
            starts += 1
            brake.note(failed=True)
        now_s += 0.1
    assert LENIENT < starts < LENIENT + 10 + 600 / LONGEST_S

    brake.note(failed=True)
    assert not brake.is_released()
    brake.note(failed=False)
    assert brake.is_released()
    brake.note(failed=True)
    assert brake.is_released()


def test_groups_that_were_under_way_when_it_slowed_lengthen_no_pause() -> None:
    now_s = 0.0
    brake = FailureBrake(lambda: now_s)
    for _ in range(LENIENT + 500):
        brake.note(failed=True)
    now_s = 0.2
    assert brake.is_released()
