"""From curated groups to training sequences."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from headrace.infra.recipe.settings import TrainerSettings
from headrace.infra.recipe.table import Named
from headrace.schemas.records import CuratedGroup, Failure, Sampling, Sequence, Span, Trajectory, TrajectoryGroup
from headrace.trainers.advantages import ADVANTAGES, RewardError
from headrace.trainers.batches.batch import BatchError, TrainingSequence, pack
from headrace.trainers.batches.groups import (
    DecodedGroup,
    build_batch_sequences,
    build_loss_mask,
    compute_or_check_advantages,
    expand_token_versions,
    prepare_group,
)
from headrace.trainers.learner.step_metrics import group_metrics


def training_sequences(found: DecodedGroup, settings: TrainerSettings) -> list[TrainingSequence]:
    return build_batch_sequences([prepare_group(found)], settings)


def sequence(role: str = "", reward: float | None = None, temperature: float = 0.7) -> Sequence:
    return Sequence(
        ids=np.array([4, 5, 6, 7, 8, 1], np.int32),
        logprobs=np.array([0, 0, -1, 0, -0.5, -0.25], np.float32),
        version_runs=np.array([-1, 2, 3, 1, -1, 1, 4, 2], np.int32),
        role=role,
        reward=reward,
        spans=(
            Span("prompt", 2),
            Span("generated", 1, sampling=Sampling(temperature)),
            Span("observation", 1),
            Span("generated", 2, sampling=Sampling(temperature)),
        ),
    )


def whole(rewards: tuple[float, ...], kept: tuple[int, ...], *sequences: tuple[Sequence, ...]) -> DecodedGroup:
    members = sequences or tuple((sequence(),) for _ in rewards)
    trajectories = tuple(Trajectory(str(i), r, {}, s) for i, (r, s) in enumerate(zip(rewards, members, strict=True)))
    return DecodedGroup(CuratedGroup(kept=kept, rewards=rewards), TrajectoryGroup(trajectories=trajectories))


def test_the_mask_is_true_on_generated_spans_only_and_versions_follow_their_runs() -> None:
    assert build_loss_mask(sequence()).tolist() == [False, False, True, False, True, True]
    assert expand_token_versions(sequence()).tolist() == [-1, -1, 3, -1, 4, 4]


def test_statistics_are_over_all_members_but_only_the_kept_are_trained() -> None:
    rewards = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
    found = training_sequences(whole(rewards, (0, 1)), TrainerSettings())
    assert [s.advantage for s in found] == pytest.approx([1.62015, -0.54005], abs=1e-5)
    assert {s.temperature for s in found} == {0.7}


def test_turns_that_were_sampled_at_several_temperatures_are_trained_each_at_its_own() -> None:
    one = sequence()
    warmer = replace(one, spans=(*one.spans[:3], replace(one.spans[3], sampling=Sampling(1.5))))
    greedy = replace(one, spans=(*one.spans[:3], replace(one.spans[3], sampling=Sampling(0.0))))
    found = training_sequences(whole((1.0, 0.0), (0, 1), (warmer,), (greedy,)), TrainerSettings())
    assert pack(found).temperatures.tolist() == pytest.approx([0.7, 1.5, 1.5, 0.7, 1.0, 1.0])


def of_convention(convention: str, how: Sampling) -> set[float]:
    spans = tuple(replace(span, sampling=how) if span.sampling else span for span in sequence().spans)
    group = whole((1.0, 0.0), (0, 1), *((replace(sequence(), spans=spans),),) * 2)
    group = replace(group, trajectory_group=replace(group.trajectory_group, logprob_convention=convention))
    return {float(one.temperature) for one in training_sequences(group, TrainerSettings())}


def test_log_probabilities_are_evaluated_as_the_engine_says_that_it_took_them() -> None:
    assert of_convention("tempered", Sampling(0.5)) == {0.5}
    assert of_convention("raw", Sampling(1.0)) == {1.0}
    assert of_convention("masked", Sampling(0.5)) == {0.5}, "nothing was cut"
    with pytest.raises(BatchError, match=r"temperature 0 or 1; got temperature 0\.5"):
        of_convention("raw", Sampling(0.5))
    for convention, how in (("tempered", Sampling(0.5, top_p=0.9)), ("masked", Sampling(top_k=5))):
        with pytest.raises(BatchError, match=r"sampled from the whole vocabulary .* got top_p"):
            of_convention(convention, how)
    with pytest.raises(BatchError, match=r"logprob_convention must be .*, got 'log2'"):
        of_convention("log2", Sampling())


def test_what_validation_refused_is_left_out_of_the_statistics() -> None:
    found = training_sequences(whole((1.0, math.nan, 0.0), (0, 2)), TrainerSettings())
    assert [s.advantage for s in found] == pytest.approx([0.70710, -0.70710], abs=1e-4)


def with_failures(some: DecodedGroup, failed: int, rewards: tuple[float, ...]) -> DecodedGroup:
    group = replace(some.trajectory_group, failures=tuple(Failure(9 + number) for number in range(failed)))
    return DecodedGroup(replace(some.curated, rewards=rewards), group)


def test_failed_episodes_that_count_are_zeros_that_nothing_is_trained_on() -> None:
    """Two of eight right: the golden advantages, of two and one that are there and five that failed."""
    some = with_failures(whole((1.0, 0.0, 1.0), (0, 1, 2)), 5, (1.0, 0.0, 1.0, *[0.0] * 5))
    found = training_sequences(some, TrainerSettings())
    assert [s.advantage for s in found] == pytest.approx([1.62015, -0.54005, 1.62015], abs=1e-5)


def test_a_failed_episode_counts_in_every_role() -> None:
    members = ((sequence("solver"), sequence("verifier")), (sequence("solver"), sequence("verifier")))
    some = with_failures(whole((1.0, 1.0), (0, 1), *members), 1, (1.0, 1.0, 0.0))
    for group_by in ("task", "task+role"):
        found = training_sequences(some, TrainerSettings(group_by=group_by))
        assert [s.advantage for s in found] == pytest.approx([0.57734] * 4, abs=1e-4)


def test_every_advantage_that_compares_takes_failed_episodes() -> None:
    some = with_failures(whole((1.0, 0.5), (0, 1)), 2, (1.0, 0.5, 0.0, 0.0))
    for name in ADVANTAGES.keys() - {"given"}:
        better, worse = training_sequences(some, TrainerSettings(advantage=Named(use=name)))
        assert np.isfinite([better.advantage, worse.advantage]).all(), name
        assert np.max(better.advantage) > np.max(worse.advantage), name


@pytest.mark.parametrize("rewards", [(1.0,), (1.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0, 0.0)])
def test_rewards_of_no_trajectory_and_no_failure_are_refused(rewards: tuple[float, ...]) -> None:
    with pytest.raises(BatchError, match="the curated record does not fit its group"):
        prepare_group(with_failures(whole((1.0, 0.0), (0,)), 2, rewards))


def test_sequences_with_rewards_of_their_own_are_compared_within_their_role() -> None:
    members = (
        (sequence("solver", 0.0), sequence("solver", 1.0)),
        (sequence("solver", 1.0), sequence("verifier", 0.5)),
    )
    settings = TrainerSettings(group_by="task+role", weight="sequence")
    found = training_sequences(whole((1.0, 1.0), (0, 1), *members), settings)
    assert [s.advantage for s in found] == pytest.approx([-1.15468, 0.57734, 0.57734, 0.0], abs=1e-4)


def test_a_rewarded_sequence_carries_what_estimators_ask_for() -> None:
    one = replace(sequence("solver", 2.0), baseline=0.5, spans=turns(3, (0.25, None, 0.5, 1.0)))
    [rewarded, *_] = prepare_group(whole((1.0, 0.0), (1,), (one,), (sequence(),))).rewarded
    assert (rewarded.trajectory, rewarded.role, rewarded.reward, rewarded.turn) == (0, "solver", 2.0, 3)
    assert (rewarded.length, rewarded.baseline, rewarded.kept) == (3, 0.5, False)
    # The prompt's reward falls on the first generated token, the observation's on the one before it, the rest last.
    assert rewarded.token_rewards is not None
    assert rewarded.token_rewards.tolist() == [0.75, 0.0, 1.25]
    assert rewarded.token_rewards.sum() == rewarded.reward
    with pytest.raises(ValueError, match="read-only"):
        rewarded.token_rewards[0] += 1.0  # the next estimate, and `retrain`, would have other numbers


def turns(turn: int, rewards: tuple[float | None, ...]) -> tuple[Span, ...]:
    spans = sequence().spans
    return tuple(replace(span, turn=turn, reward=reward) for span, reward in zip(spans, rewards, strict=True))


def test_a_sequence_without_rewards_of_its_spans_earns_its_reward_at_the_end() -> None:
    [rewarded] = prepare_group(whole((1.0,), (0,))).rewarded
    assert (rewarded.token_rewards, rewarded.length, rewarded.turn) == (None, 3, 0)
    [found] = training_sequences(whole((1.0,), (0,)), TrainerSettings(advantage=Named(use="gae", gamma=0.5)))
    assert found.advantages.tolist() == [0, 0, 0.25, 0, 0.5, 1.0], "gamma steps over the observation"


def test_the_sequences_of_a_batch_stand_group_after_group_with_their_indices() -> None:
    groups = [
        prepare_group(whole((1.0, 0.0), (1, 0))),
        prepare_group(whole((1.0,), ())),
        prepare_group(whole((0.5, 3.5), (1,))),
    ]
    found = build_batch_sequences(groups, TrainerSettings(advantage=Named(use="dr_grpo")))
    assert [(one.group, one.advantage) for one in found] == [(0, 0.5), (0, -0.5), (2, 1.5)]


def test_the_advantages_of_a_batch_are_the_same_bits_every_time_whatever_the_estimator() -> None:
    draw = np.random.default_rng(3)
    groups = [prepare_group(whole(tuple(draw.normal(size=4)), (0, 2, 3))) for _ in range(5)]
    for name in ("grpo", "gpg", "lite_ppo", "reinforce_pp", "reinforce_pp_baseline", "gae"):
        settings = TrainerSettings(advantage=Named(use=name), batch_norm=True)
        once, again = ([one.advantages.tobytes() for one in build_batch_sequences(groups, settings)] for _ in range(2))
        assert once == again
        assert len(once) == 15


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "gae"])
def test_advantages_that_are_taken_when_a_group_comes_in_are_those_of_its_batch_to_the_bit(name: str) -> None:
    draw, settings = np.random.default_rng(4), TrainerSettings(advantage=Named(use=name))
    groups = [prepare_group(whole(tuple(draw.normal(size=4)), (0, 2, 3))) for _ in range(5)]
    early = [compute_or_check_advantages(group, settings) for group in groups]
    assert all(group.has_advantages for group in early)
    then, now = build_batch_sequences(early, settings), build_batch_sequences(groups, settings)
    assert [one.advantages.tobytes() for one in then] == [one.advantages.tobytes() for one in now]
    assert [one.group for one in then] == [one.group for one in now]


def test_advantages_that_depend_on_the_whole_batch_are_only_tried_when_a_group_comes_in() -> None:
    for settings in (TrainerSettings(advantage=Named(use="lite_ppo")), TrainerSettings(batch_norm=True)):
        group = prepare_group(whole((1.0, 0.0), (0, 1)))
        assert compute_or_check_advantages(group, settings) is group
        with pytest.raises(RewardError):
            compute_or_check_advantages(prepare_group(whole((float("inf"), 0.0), (0, 1))), settings)


def test_a_group_whose_spans_do_not_cover_its_tokens_is_refused() -> None:
    torn = replace(sequence(), spans=(Span("prompt", 2), Span("generated", 2)))
    with pytest.raises(BatchError, match=r"add up to its 6 token ids; the . spans add up to 4"):
        prepare_group(whole((1.0, 0.0), (0,), (sequence(),), (torn,)))


def weighed(group: DecodedGroup, weight: float, **more: int) -> DecodedGroup:
    return replace(group, curated=replace(group.curated, weight=weight, **more))


def test_a_weight_scales_the_advantages_of_its_group_and_takes_no_part_in_statistics_of_the_batch() -> None:
    groups = [whole((1.0, 0.0), (0, 1)), whole((1.0, 0.0, 0.0), (0, 1))]
    settings = TrainerSettings(advantage=Named.model_validate("lite_ppo"))
    plain = build_batch_sequences(map(prepare_group, groups), settings)
    groups[1] = weighed(groups[1], 0.25, use=1)
    found = build_batch_sequences(map(prepare_group, groups), settings)
    assert [one.advantage for one in found[:2]] == [one.advantage for one in plain[:2]]
    assert [one.advantage for one in found[2:]] == pytest.approx([one.advantage * 0.25 for one in plain[2:]])
    turns_of = TrainerSettings(advantage=Named.model_validate({"use": "reinforce_pp", "gamma": 0.9}))
    whole_one, scaled = (
        build_batch_sequences([prepare_group(weighed(groups[0], w))], turns_of)[0].advantages for w in (1.0, 0.5)
    )
    assert scaled.tolist() == (whole_one * np.float32(0.5)).tolist()
    assert any(scaled)


@pytest.mark.parametrize("weight", [math.nan, math.inf, -0.5])
def test_a_weight_that_is_none_makes_a_group_unusable(weight: float) -> None:
    with pytest.raises(BatchError, match="the weight of the group's gradient must be"):
        prepare_group(weighed(whole((1.0, 0.0), (0, 1)), weight))


def test_two_uses_of_a_group_in_one_batch_are_two_groups() -> None:
    first = whole((1.0, 0.0), (0, 1))
    sequences = build_batch_sequences(map(prepare_group, [first, weighed(first, 1.0, use=1)]), TrainerSettings())
    assert [one.group for one in sequences] == [0, 0, 1, 1]


def test_a_batch_tells_how_much_of_it_is_replayed_and_how_old_that_is() -> None:
    fresh = weighed(whole((1.0, 0.0), (0, 1)), 1.0, min_version=9)
    old, older = (weighed(fresh, 1.0, use=use, min_version=version) for use, version in ((1, 7), (3, 4)))
    told = group_metrics([fresh, old, fresh, older], 10)
    assert (told["replay_share"], told["replay_age_mean"], told["replay_age_max"]) == (0.5, 4.5, 6.0)
    told = group_metrics([fresh], 10)
    assert told["replay_share"] == 0.0
    assert "replay_age_mean" not in told


def test_a_batch_tells_the_length_and_turns_of_its_trajectories_and_the_means_of_their_reward_parts() -> None:
    made = whole((1.0, 0.0), (0, 1))
    first, second = made.trajectory_group.trajectories

    def of(*trajectories: Trajectory) -> DecodedGroup:
        return replace(made, trajectory_group=replace(made.trajectory_group, trajectories=trajectories))

    odd = {"calls": 3.0, "long " * 20: 1.0, "odd": math.nan}
    twice = replace(first, sequences=first.sequences * 2, reward_parts=odd)
    parts = {f"part{number:02}": 1.0 for number in range(40)}
    told = group_metrics([of(twice, replace(second, reward_parts={"calls": 1.0, **parts})), of(first)], 3)
    spans = [span.length for span in first.sequences[0].spans if span.kind == "generated"]
    assert (told["length_mean"], told["turns_mean"]) == (4 * sum(spans) / 3, 4 * len(spans) / 3)
    assert told["reward_part_calls"] == 2.0, "of the trajectories that have it"
    assert sum(name.startswith("reward_part_") for name in told) == 31, "few names, so that records stay small"
