import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest

from headrace.consumers.algorithms.contract import (
    Candidate,
    Drop,
    Keep,
    Rejection,
    Result,
)
from headrace.consumers.algorithms.drop_zero_variance import DropZeroVariance
from headrace.consumers.algorithms.max_staleness import MaxStaleness
from headrace.consumers.algorithms.validate import Validate, find_sequence_fault
from headrace.envs.transcript import merge_runs
from headrace.schemas.records import Failure, Sequence, Span, Trajectory, TrajectoryGroup
from headrace.schemas.versions import find_version_range


def sequence(*versions: int, reward: float | None = None, baseline: float | None = None) -> Sequence:
    """A prompt of two tokens, then one generated token of each version."""
    count = len(versions)
    return Sequence(
        ids=np.arange(2 + count, dtype=np.int32),
        logprobs=np.array([0, 0, *[-0.5] * count], np.float32),
        version_runs=np.array([-1, 2, *[part for version in versions for part in (version, 1)]], np.int32),
        reward=reward,
        baseline=baseline,
        spans=(Span("prompt", 2), Span("generated", count)),
    )


def group(*rewards: float, versions: tuple[int, ...] = (3,), head_version: int = 3) -> TrajectoryGroup:
    members = tuple(
        Trajectory(id=f"sums:1:{index}", reward=reward, sequences=(sequence(*versions),))
        for index, reward in enumerate(rewards)
    )
    return TrajectoryGroup(trajectories=members, n_asked=len(rewards), head_version=head_version)


def with_member(whole: TrajectoryGroup, index: int, **changes: Any) -> TrajectoryGroup:
    members = list(whole.trajectories)
    members[index] = dataclasses.replace(members[index], **changes)
    return dataclasses.replace(whole, trajectories=tuple(members))


def result(algorithm: Any, whole: TrajectoryGroup, clock: int = 3) -> Result:
    [only] = algorithm.process(Candidate.of(whole), clock)
    assert isinstance(only, Keep | Drop)
    return only


# ------------------------------------------------------------------------------------------------------------ candidate


def test_the_versions_of_trajectories_are_those_of_their_generated_tokens() -> None:
    odd = dataclasses.replace(sequence(3), version_runs=np.array([-1, 2, 3], np.int32))
    assert find_version_range(group(1.0, versions=(3, 0, 3)).trajectories) == (0, 3)
    assert find_version_range([Trajectory(sequences=(odd, sequence(5)))]) == (5, 5), "what is malformed stops nothing"
    for nothing in ([], group(1.0, versions=()).trajectories, [Trajectory()]):
        assert find_version_range(nothing) == (-1, -1)


def test_versions_are_taken_anew_over_what_is_left() -> None:
    whole = with_member(group(1.0, 0.0, 1.0, versions=(3,)), 1, sequences=(sequence(1, 7),))
    candidate = Candidate.of(whole)
    assert (candidate.min_version, candidate.max_version) == (1, 7)
    left = candidate.without([Rejection(1, "why", "because")])
    assert (left.kept, left.min_version, left.max_version) == ((0, 2), 3, 3)
    assert left.rejected == (Rejection(1, "why", "because"),)
    assert left.rewards == candidate.rewards
    assert left.without([Rejection(0, "too")]).rejected == (Rejection(1, "why", "because"), Rejection(0, "too"))


# ------------------------------------------------------------------------------------------------------------- validate


def test_a_group_without_trajectories_is_dropped_for_its_own_reason() -> None:
    for reason in ("failed", "not_acted", "run_end", "version_gone", "poison"):
        whole = TrajectoryGroup(n_asked=8, reason=reason, failures=(Failure(), Failure()))
        assert result(Validate(), whole) == Drop(reason, "2 of 8 failed")
    assert result(Validate(), TrajectoryGroup()) == Drop("no_trajectories", "0 of 0 failed")


def replaced(**changes: Any) -> Sequence:
    return dataclasses.replace(sequence(3, 3), **changes)


FLAWS = {
    "lengths": replaced(logprobs=np.zeros(3, np.float32)),
    "spans": replaced(spans=(Span("prompt", 2), Span("generated", 1))),
    "spans of a kind that there is not": replaced(spans=(Span("prompt", 2), Span("answer", 2))),
    "spans of negative length": replaced(spans=(Span("prompt", 5), Span("generated", -1))),
    "no_prompt": replaced(spans=(Span("generated", 4),)),
    "no_prompt behind an empty span": replaced(spans=(Span("prompt", 0), Span("generated", 4))),
    "versions": replaced(version_runs=np.array([-1, 2, -1, 2], np.int32)),
    "versions that do not cover": replaced(version_runs=np.array([-1, 2, 3, 1], np.int32)),
    "versions cut in half": replaced(version_runs=np.array([-1, 2, 3], np.int32)),
    "versions of negative length": replaced(version_runs=np.array([-1, 2, 3, 3, 3, -1], np.int32)),
    "versions that are missing": replaced(version_runs=np.array([], np.int32)),
    "ahead": sequence(3, 4),
    "mask": replaced(version_runs=np.array([-1, 1, 3, 3], np.int32)),
    "mask of a log-probability": replaced(logprobs=np.array([0, -1, -1, -1], np.float32)),
    "logprob": replaced(logprobs=np.array([0, 0, np.nan, -1], np.float32)),
    "logprob that is infinite": replaced(logprobs=np.array([0, 0, -np.inf, -1], np.float32)),
    "logprob above 0": replaced(logprobs=np.array([0, 0, 0.01, -1], np.float32)),
    "token_id": replaced(ids=np.array([0, 1, -1, 3], np.int32)),
    "reward": replaced(reward=math.nan),
    "reward as baseline": replaced(baseline=math.inf),
    "reward of a span": replaced(spans=(Span("prompt", 2), Span("generated", 2, 0, math.nan))),
    "empty_mask": sequence(),
}


def test_a_flawed_trajectory_is_taken_out_and_the_rest_is_kept() -> None:
    flawed: dict[str, dict[str, Any]] = {flaw: {"sequences": (one,)} for flaw, one in FLAWS.items()}
    flawed |= {"empty_mask of no sequence": {"sequences": ()}, "duplicate": {"id": "sums:1:0"}}
    flawed |= {f"reward {reward}": {"reward": reward} for reward in (math.nan, math.inf, -math.inf)}
    for flaw, changes in flawed.items():
        kept = result(Validate(), with_member(group(1.0, 0.0, 1.0), 1, **changes))
        assert isinstance(kept, Keep), flaw
        assert kept.candidate.kept == (0, 2), flaw
        [rejection] = kept.candidate.rejected
        assert (rejection.index, rejection.reason) == (1, flaw.split(maxsplit=1)[0])
        assert rejection.detail, flaw


def test_a_vocabulary_bounds_the_token_ids() -> None:
    assert isinstance(result(Validate(vocabulary=3), group(1.0, 0.0)), Keep)
    assert isinstance(result(Validate(vocabulary=2), group(1.0, 0.0)), Drop)
    with pytest.raises(ValueError, match="vocabulary must be 0 or more; got -1"):
        Validate(vocabulary=-1)


def test_fewer_than_two_sound_trajectories_are_no_group() -> None:
    lonely = dataclasses.replace(group(1.0), n_asked=2)
    assert result(Validate(), lonely) == Drop("too_few", "1 of 1 trajectories are left (no other survived)")
    dropped = result(Validate(), group(1.0, math.nan))
    assert dropped == Drop("invalid", "1 of 2 trajectories are left (1: reward, reward nan)")


def test_one_sequence_without_a_generated_token_is_no_flaw_beside_another() -> None:
    whole = with_member(group(1.0, 0.0), 0, sequences=(sequence(), sequence(3)))
    assert isinstance(result(Validate(), whole), Keep)


def spread(*versions: int) -> Sequence:
    """Spans prompt 1, generated 2, observation 1, injected 1, generated 1, with a version per token."""
    spans = (Span("prompt", 1), Span("generated", 2), Span("observation", 1), Span("injected", 1), Span("generated", 1))
    return Sequence(
        ids=np.arange(6, dtype=np.int32),
        logprobs=np.zeros(6, np.float32),
        version_runs=merge_runs([(version, 1) for version in versions]),
        spans=spans,
    )


def test_versions_are_compared_with_spans_token_by_token() -> None:
    """Against the plain rule over every pattern of six tokens: a version on generated tokens, and there alone."""
    generated = (False, True, True, False, False, True)
    for pattern in itertools.product((-1, 2, 3), repeat=6):
        fault = find_sequence_fault(spread(*pattern), head_version=3)
        assert (fault is None) == (tuple(version >= 0 for version in pattern) == generated), pattern
        ahead = find_sequence_fault(spread(*pattern), head_version=2)
        assert (ahead is None) == (fault is None and 3 not in pattern), pattern


# -------------------------------------------------------------------------------------------------------- max_staleness


def test_a_group_is_dropped_when_its_oldest_token_is_too_far_behind() -> None:
    for oldest, clock, dropped in ((5, 12, False), (4, 12, False), (3, 12, True), (0, 8, False), (0, 9, True)):
        verdict = result(MaxStaleness(8), group(1.0, 0.0, versions=(clock, oldest, clock)), clock)
        assert isinstance(verdict, Drop) == dropped, (oldest, clock)
    assert result(MaxStaleness(1), group(1.0, 0.0), clock=5) == Drop(
        "stale", "the oldest token is of weight version 3, 2 versions behind version 5; the limit is 1"
    )


def test_what_was_taken_out_before_does_not_make_a_group_stale() -> None:
    whole = with_member(group(1.0, 0.0, 1.0, versions=(9,), head_version=9), 1, sequences=(sequence(0),))
    candidate = Candidate.of(whole).without([Rejection(1, "x")])
    assert list(MaxStaleness(0).process(candidate, 9)) == [Keep(candidate)]


# --------------------------------------------------------------------------------------------------- drop_zero_variance


def test_a_group_of_equal_rewards_is_dropped() -> None:
    for *rewards, dropped in (
        (1.0, 1.0, 1.0, True),
        (*(0.1,) * 7, True),
        (0.5, 0.5 + 1e-9, True),
        (0.5, 0.5 + 1e-7, False),
        (1.0, 0.0, False),
    ):
        verdict = result(DropZeroVariance(), group(*rewards))
        assert (isinstance(verdict, Drop) and verdict.reason == "zero_variance") == dropped, rewards
    assert isinstance(result(DropZeroVariance(epsilon=0.2), group(0.5, 0.6)), Drop)


def test_what_is_left_out_of_the_loss_is_compared_while_it_counts() -> None:
    whole = Candidate.of(group(1.0, 0.0, 1.0))
    for counted, verdict in ((True, Keep), (False, Drop)):
        candidate = whole.without([Rejection(1, "x")], counted=counted)
        assert [type(v) for v in DropZeroVariance().process(candidate, 3)] == [verdict]


def test_rewards_and_baselines_of_single_sequences_count_before_the_trajectorys() -> None:
    for rewards, sequences, verdict in (
        ((1.0, 1.0), (sequence(3, reward=0.0), sequence(3, reward=1.0)), Keep),
        ((1.0, 0.0), (sequence(3, reward=0.0),), Drop),
        ((1.0, 1.0), (sequence(3, baseline=0.5),), Keep),
        ((1.0, 0.0), (), Keep),
    ):
        whole = with_member(group(*rewards), 0, sequences=sequences)
        assert isinstance(result(DropZeroVariance(), whole), verdict), sequences
