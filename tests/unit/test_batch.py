from dataclasses import replace

import numpy as np
import pytest

from headrace.trainers.batches.batch import (
    BatchError,
    TrainingSequence,
    count_staleness,
    cut_micro_batches,
    cut_minibatches,
    pack,
    pad,
)


def sequence(
    prompt: int, generated: int, *, group: int = 0, observation: int = 0, version: int = 4
) -> TrainingSequence:
    """Prompt, generated, observation, generated again; ids count up from 100 * group so that every token is known."""
    mask = np.array([False] * prompt + [True] * generated + [False] * observation + [True] * min(observation, 1))
    ids = np.arange(mask.size, dtype=np.int32) + 100 * group
    logprobs = np.where(mask, -ids.astype(np.float32), 0)
    versions = np.where(mask, version, -1).astype(np.int32)
    return TrainingSequence(ids, mask, logprobs.astype(np.float32), versions, group + 0.5, 1.0 + group, group)


def batch(seed: int = 0) -> list[TrainingSequence]:
    draw = np.random.default_rng(seed)
    return [
        sequence(int(draw.integers(1, 6)), int(draw.integers(1, 20)), group=group, observation=int(draw.integers(0, 4)))
        for group in range(8)
        for _ in range(4)
    ]


def test_every_trained_token_meets_the_position_that_predicts_it() -> None:
    one, two = sequence(2, 2, group=1, observation=2), sequence(1, 3, group=2)
    micro = pad([one, two])
    assert micro.ids.tolist() == [[100, 101, 102, 103, 104, 105], [200, 201, 202, 0, 0, 0]]
    assert micro.targets.tolist() == [102, 103, 106, 201, 202, 203]
    assert micro.ids.ravel()[micro.positions].tolist() == [101, 102, 105, 200, 201, 202]
    assert micro.behaviour_logprobs.tolist() == [-102, -103, -106, -201, -202, -203]
    assert micro.advantages.tolist() == [1.5] * 3 + [2.5] * 3
    assert micro.temperatures.tolist() == [2.0] * 3 + [3.0] * 3
    assert micro.versions.tolist() == [4] * 6
    assert micro.sequences.tolist() == [0] * 3 + [1] * 3
    assert micro.position_ids.tolist() == [[0, 1, 2, 3, 4, 5]] * 2


def test_packed_sequences_lie_end_to_end_and_each_counts_its_positions_from_zero() -> None:
    one, two = sequence(2, 2, group=1, observation=2), sequence(1, 3, group=2)
    micro, padded = pack([one, two]), pad([one, two])
    assert micro.ids.tolist() == [[100, 101, 102, 103, 104, 105, 200, 201, 202]]
    assert micro.position_ids.tolist() == [[0, 1, 2, 3, 4, 5, 0, 1, 2]]
    assert micro.lengths == (6, 3)
    assert micro.ids.ravel()[micro.positions].tolist() == [101, 102, 105, 200, 201, 202]
    for name in ("targets", "behaviour_logprobs", "advantages", "temperatures", "versions", "sequences"):
        assert getattr(micro, name).tolist() == getattr(padded, name).tolist()


def test_every_token_meets_its_own_advantage_where_each_has_one() -> None:
    one, two = sequence(2, 2, group=1, observation=2), sequence(1, 3, group=2)
    each = replace(one, advantage=np.arange(one.ids.size, dtype=np.float32))
    for layout in (pack, pad):
        assert layout([two, each]).advantages.tolist() == [2.5] * 3 + [2, 3, 6]
    with pytest.raises(BatchError, match="3,"):
        replace(one, advantage=np.zeros(3, np.float32))


@pytest.mark.parametrize("packed", [False, True])
def test_every_trained_token_is_in_the_batch_exactly_once(*, packed: bool) -> None:
    sequences = batch()
    steps = cut_minibatches(sequences, 3, 64, seed=1, version=7, packed=packed)
    assert len(steps) == 3
    got = sorted(np.concatenate([micro.targets for step in steps for micro in step.micro_batches]).tolist())
    assert got == sorted(np.concatenate([one.ids[one.mask] for one in sequences]).tolist())
    assert sum(step.sequences for step in steps) == len(sequences)


def groups_of(sequences: list[TrainingSequence], count: int, *, seed: int = 1, version: int = 7) -> list[set[int]]:
    steps = cut_minibatches(sequences, count, 64, seed=seed, version=version)
    return [{int(token) // 100 for micro in step.micro_batches for token in micro.targets} for step in steps]


def test_a_group_is_never_split_and_the_split_depends_on_seed_and_version_alone() -> None:
    sequences = batch()
    split = groups_of(sequences, 4)
    assert sorted(group for step in split for group in step) == list(range(8))
    assert split == groups_of(sequences, 4)
    assert split != groups_of(sequences, 4, version=8)
    assert split != groups_of(sequences, 4, seed=2)


def test_the_split_is_the_same_in_every_release() -> None:
    assert groups_of(batch(), 4) == [{3, 7}, {1, 5}, {0, 4}, {2, 6}]


def test_micro_batches_keep_to_the_token_budget_and_a_longer_sequence_goes_alone() -> None:
    sequences = [*batch(), sequence(50, 50)]
    cuts = cut_micro_batches(sequences, 64)
    assert sum(map(len, cuts)) == len(sequences)
    assert len(cuts[0]) == 1
    assert all(len(cut) * max(one.ids.size for one in cut) <= 64 for cut in cuts[1:])


def test_a_sequence_without_a_trained_token_costs_nothing() -> None:
    silent = sequence(5, 0, group=3)
    (step,) = cut_minibatches([silent, sequence(1, 2)], 1, 64, seed=1, version=1)
    assert step.micro_batches[0].ids.shape == (1, 2)
    with pytest.raises(BatchError, match=r"no sequence of its batch .*sequences: 1"):
        cut_minibatches([silent], 1, 64, seed=1, version=1)


def test_staleness_counts_tokens_by_age_and_version_zero_has_one() -> None:
    steps = cut_minibatches([sequence(1, 3, version=0), sequence(1, 2, version=2)], 1, 64, seed=1, version=4)
    assert count_staleness(steps, 3).tolist() == [0, 2, 0, 3]
    with pytest.raises(BatchError, match="a token was generated by version 2, but the trainer's newest version is 1"):
        count_staleness(steps, 1)


def test_a_sequence_whose_parts_do_not_agree_is_refused() -> None:
    good = sequence(1, 1)
    changes: list[dict[str, object]] = [{"mask": np.array([True, True])}, {"mask": np.array([False])}]
    changes += [{"versions": np.array([-1, -1], np.int32)}, {"temperature": 0.0}]
    changes += [{"behaviour_logprobs": np.array([0, np.nan], np.float32)}, {"temperature": np.ones(3, np.float32)}]
    for change in changes:
        with pytest.raises(BatchError):
            replace(good, **change)  # type: ignore[arg-type]  # the parts are of many types
