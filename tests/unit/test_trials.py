"""How a trainer comes past a batch that ends its process."""

from __future__ import annotations

import pytest

from headrace.trainers.batches.trials import Trials


def lives(full: int, unit: int, lethal: int, most: int = 50) -> tuple[list[int], list[int]]:
    """Play a trainer that dies over group `lethal` of a window; return the batches that end it and the poison.

    What the log holds goes from life to life, as in a trainer: versions that were made, and the last noted step.
    """
    window, made, sizes = list(range(2 * full)), 0, list[int]()
    begun: tuple[int, int, int] | None = None  # version, times, suspects
    for _ in range(most):
        version, times, suspects = begun if begun is not None and begun[0] == made + 1 else (made + 1, 0, 0)
        trials = Trials(full, unit, version, times, suspects, is_noted=bool(sizes))
        while True:
            batch = window[: trials.groups(made + 1)]
            if trials.is_poison(made + 1):
                return sizes, batch
            if times := trials.note(made + 1):
                begun = (made + 1, times, trials.suspects)
            if lethal in batch:
                sizes.append(len(batch))
                break
            made += 1
            del window[: len(batch)]
            trials.note_version(made, len(batch))
    raise AssertionError("never poison")


@pytest.mark.parametrize(
    ("full", "unit", "sizes"),
    [
        (32, 2, [32, 32, 32, 32, 2]),
        (64, 1, [64, 64, 64, 64, 4, 1]),
        (256, 1, [256, 256, 256, 256, 16, 1]),
        (12, 4, [12, 12, 12, 12, 4]),
        (10, 3, [10, 10, 10, 10, 3]),
        (4, 4, [4, 4, 4, 4]),
    ],
)
@pytest.mark.parametrize("share", [0.0, 0.4, 0.99])
def test_whichever_group_of_a_batch_is_lethal_the_smallest_batch_with_it_is_poison_after_few_deaths(
    full: int, unit: int, sizes: list[int], share: float
) -> None:
    lethal = int(share * full)
    died, poison = lives(full, unit, lethal)
    assert died == sizes, "the first is not noted; then three whole ones, then smaller ones"
    assert lethal in poison
    assert len(poison) == unit or len(poison) == full


def test_three_deaths_cost_a_version_none_of_its_groups() -> None:
    assert Trials(32, 2, version=5, died=2, is_noted=True).groups(5) == 32
    assert Trials(32, 2, version=5, died=3, is_noted=True).groups(5) == 2


def test_another_version_is_trained_on_a_whole_batch_that_is_not_noted() -> None:
    trials = Trials(32, 2, version=5, died=3, is_noted=True)
    assert trials.note(5) == 4
    assert trials.note(5) == 0, "once"
    assert (trials.groups(6), trials.is_poison(6), trials.note(6)) == (32, False, 0)


def test_the_first_trainer_of_a_run_notes_nothing() -> None:
    assert Trials(32, 2, version=1).note(1) == 0


def test_small_batches_go_on_until_as_many_groups_as_a_whole_batch_has_are_through() -> None:
    trials = Trials(10, 3, version=5, died=3, is_noted=True)
    for version in (5, 6, 7, 8):
        assert (trials.groups(version), trials.note(version)) == (3, 4)
        trials.note_version(version, 3)
    assert (trials.groups(9), trials.note(9)) == (10, 0)


def test_after_poison_the_next_batch_is_whole_and_noted_anew() -> None:
    trials = Trials(32, 2, version=5, died=5)
    assert trials.is_poison(5)
    trials.restore_whole_batch()
    assert (trials.groups(5), trials.is_poison(5), trials.note(5)) == (32, False, 1)


def test_the_step_after_a_noted_one_waits_until_that_is_on_the_log_and_no_other_does() -> None:
    trials = Trials(32, 2, version=5, is_noted=True)
    assert not trials.has_to_wait(6), "nothing is noted yet"
    trials.note(5)
    assert [version for version in range(5, 9) if trials.has_to_wait(version)] == [6]
