"""What a group loses before anything is compared: failures, lengths, truncated and degenerate generations."""

from __future__ import annotations

import dataclasses
import math
import tracemalloc

import numpy as np
from made_groups import candidate, dropped, group, kept, sequence

from headrace.consumers.algorithms.chain import load_chain
from headrace.consumers.algorithms.contract import Candidate, Drop
from headrace.consumers.algorithms.failures import Failures
from headrace.consumers.algorithms.gibberish import Gibberish
from headrace.consumers.algorithms.length_bounds import LengthBounds
from headrace.consumers.algorithms.mask_truncated import MaskTruncated
from headrace.consumers.algorithms.repetition import Repetition
from headrace.consumers.algorithms.soundness import is_group_sound
from headrace.consumers.algorithms.validate import Validate
from headrace.schemas.records import Failure, Sequence, Span, Trajectory, TrajectoryGroup

# ------------------------------------------------------------------------------------------------------------- failures


def test_what_a_failed_episode_counts_is_a_setting() -> None:
    """`verdict` is that of the algorithm alone, then of it and another one."""
    for policy, rewards, failed, then, verdict in (
        ("keep_survivors", (1.0, 0.0), 2, "", "kept"),
        ("keep_survivors", (1.0,), 1, "", "failures"),
        ("keep_survivors", (1.0, 1.0), 1, "drop_zero_variance", "zero_variance"),
        ("drop_group", (1.0, 0.0), 0, "", "kept"),
        ("drop_group", (1.0, 0.0), 1, "", "failures"),
        ("drop_group", (1.0,), 1, "", "failures"),
        ("count_as_zero", (1.0,), 1, "validate", "kept"),
        ("count_as_zero", (1.0, 1.0), 1, "drop_zero_variance", "kept"),
        ("count_as_zero", (0.0, 0.0), 1, "drop_zero_variance", "zero_variance"),
    ):
        named = [("failures", {"policy": policy}), *([(then, {})] if then else [])]
        [one] = load_chain(named).process(candidate(*rewards, failed=failed), 3)
        assert (one.reason if isinstance(one, Drop) else "kept") == verdict, (policy, rewards, failed, then)
    assert dropped(Validate().process(candidate(1.0, failed=3), 3)) == "failures"
    chain = load_chain([("failures", {"policy": "count_as_zero"}), ("scale_rewards", {"bias": 1.0})])
    counted = kept(chain.process(candidate(1.0, 0.5, failed=2), 3))
    assert (counted.rewards, counted.kept) == ((2.0, 1.5, 0.0, 0.0), (0, 1)), "nobody trains on them or shapes them"


def test_a_group_without_a_survivor_is_dropped_for_its_own_reason() -> None:
    empty = TrajectoryGroup(n_asked=2, reason="failed", failures=(Failure(), Failure()))
    for policy in ("drop_group", "keep_survivors", "count_as_zero"):
        assert list(Failures(policy).process(Candidate.of(empty), 3)) == [Drop("failed", "2 of 2 failed")]


# ------------------------------------------------------------------------------------------------------------- validate


def test_turns_that_go_back_are_no_prefix_of_one_another() -> None:
    spans = (Span("prompt", 2, 0), Span("generated", 1, 1), Span("observation", 1, 1), Span("generated", 1, 0))
    turned = Sequence(
        ids=np.arange(5, dtype=np.int32),
        logprobs=np.array([0, 0, -1, 0, -1], np.float32),
        version_runs=np.array([-1, 2, 3, 1, -1, 1, 3, 1], np.int32),
        spans=spans,
    )
    right = dataclasses.replace(turned, spans=(*spans[:3], Span("generated", 1, 2)))
    for one, reasons in ((turned, ["prefix"]), (right, [])):
        whole = Candidate.of(group((1.0, 0.0, 1.0), sequences=(sequence(), one, sequence())))
        assert [r.reason for r in kept(Validate().process(whole, 3)).rejected] == reasons


def altered(draw: np.random.Generator) -> Sequence:
    """A sequence altered at random at one index; many are wrong, some are not."""
    one, index = sequence(4), int(draw.integers(6))
    ids, logprobs, runs = one.ids.copy(), one.logprobs.copy(), one.version_runs.copy()
    match draw.integers(9):
        case 0:
            ids[index] = draw.choice([-1, 0, 9, 10, 2**31 - 1])
        case 1:
            logprobs[index] = draw.choice([math.nan, math.inf, -math.inf, 1e-6, 0.1, -3.0, 0.0])
        case 2:
            runs[draw.integers(4)] = draw.integers(-2, 6)
        case 3:
            runs = runs[: draw.integers(5)]
        case 4:
            logprobs = logprobs[:-1]
        case 5:
            kinds = draw.choice(["prompt", "generated", "observation", "injected", "x", ""], 3)
            lengths = draw.integers(-1, 5, 3).tolist()
            turns = draw.integers(0, 3, 3).tolist()
            spans = tuple(Span(str(k), n, t) for k, n, t in zip(kinds, lengths, turns, strict=True))
            return dataclasses.replace(one, spans=spans)
        case 6:
            return dataclasses.replace(one, reward=float(draw.choice([math.nan, math.inf, 1.0])))
        case 7:
            spans = (Span("prompt", 2), Span("generated", 4, 0, float(draw.choice([math.nan, -math.inf, 0.5]))))
            return dataclasses.replace(one, spans=spans)
        case _:
            runs = np.array([-1, 2, *draw.integers(-1, 5, 4).tolist()], np.int32)
    return dataclasses.replace(one, ids=ids, logprobs=logprobs, version_runs=runs)


def test_the_look_at_a_whole_group_lets_nothing_pass_that_the_closer_look_finds() -> None:
    """And what it lets pass is most of what is sound, or it would save nothing."""
    draw = np.random.default_rng(3)
    validate, seen = Validate(vocabulary=10), {True: 0, False: 0}
    for _ in range(4000):
        one = altered(draw)
        members = [Trajectory("a", 1.0, {}, (sequence(4),)), Trajectory("b", 0.0, {}, (one,))]
        fault = validate._find_fault(members[1], 3)
        if is_group_sound(members, 3, 10):
            assert fault is None, one
        seen[fault is None and is_group_sound(members, 3, 10)] += 1
    assert seen[True] > 500
    assert seen[False] > 2000
    sound = [Trajectory("a", 1.0, {}, (sequence(4), sequence(2))), Trajectory("b", math.nan, {}, (sequence(4),))]
    assert not is_group_sound(sound, 3, 10)
    assert not is_group_sound(sound[:1] * 2, 3, 10)
    assert is_group_sound(sound[:1], 3, 10)


def test_run_lengths_that_tell_of_more_than_memory_are_refused_and_not_made() -> None:
    vast = dataclasses.replace(sequence(), version_runs=np.array([-1, 2, 3, 2**31 - 1], np.int32))
    whole = Candidate.of(group((1.0, 0.0, 1.0), sequences=(sequence(), vast, sequence())))
    assert [r.reason for r in kept(Validate().process(whole, 3)).rejected] == ["versions"]


def test_span_lengths_that_tell_of_more_than_memory_are_refused_and_no_zeros_are_made_for_them() -> None:
    for length in (2**31 - 1, 2**40, 2**62):
        vast = dataclasses.replace(sequence(), spans=(Span("prompt", length), Span("generated", 1)))
        runs = np.array([-1, 2**31 - 1, 3, 1], np.int32)
        for one in (vast, dataclasses.replace(vast, version_runs=runs)):
            whole = Candidate.of(group((1.0, 0.0, 1.0), sequences=(sequence(), one, sequence())))
            tracemalloc.start()
            assert [r.reason for r in kept(Validate().process(whole, 3)).rejected] == ["spans"]
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
            tracemalloc.stop()


# -------------------------------------------------------------------------------------------------------- length_bounds


def test_bounds_of_length_are_inclusive_and_what_is_outside_does_not_count() -> None:
    whole = candidate(1.0, 0.0, 1.0, 0.0, lengths=(1, 2, 4, 5))
    left = kept(LengthBounds(2, 4).process(whole, 3))
    assert left.kept == (1, 2)
    assert [(r.index, r.reason) for r in left.rejected] == [(0, "too_short"), (3, "too_long")]
    assert [math.isnan(reward) for reward in left.rewards] == [True, False, False, True]
    assert kept(LengthBounds(shortest=4).process(whole, 3)).kept == (2, 3)
    assert kept(LengthBounds(longest=2).process(whole, 3)).kept == (0, 1)
    assert dropped(LengthBounds(longest=1).process(whole, 3)) == "length"


# ------------------------------------------------------------------------------------------------------- mask_truncated


def cut(*finishes: str) -> Candidate:
    return candidate(*(float(i) for i in range(len(finishes))), sequences=[sequence(2, finish=f) for f in finishes])


def test_a_truncated_completion_is_not_trained_on_and_still_counts() -> None:
    left = kept(MaskTruncated().process(cut("stop", "length", "cancelled", ""), 3))
    assert (left.kept, left.rewards) == ((0, 3), (0.0, 1.0, 2.0, 3.0))
    assert [(r.index, r.reason) for r in left.rejected] == [(1, "truncated"), (2, "truncated")]


def test_one_that_is_left_is_compared_with_those_that_are_masked_unless_they_count_no_more() -> None:
    assert kept(MaskTruncated(cancelled=False).process(cut("stop", "length", "cancelled"), 3)).kept == (0, 2)
    left = kept(MaskTruncated(counted=False).process(cut("stop", "length", "stop"), 3))
    assert [math.isnan(reward) for reward in left.rewards] == [False, True, False]
    assert kept(MaskTruncated().process(cut("length", "stop"), 3)).kept == (1,)
    assert dropped(MaskTruncated(counted=False).process(cut("length", "stop"), 3)) == "truncated"
    assert dropped(MaskTruncated().process(cut("length", "length"), 3)) == "truncated"


def test_only_the_last_generation_of_a_sequence_says_that_it_was_cut_off() -> None:
    spans = (Span("prompt", 2), Span("generated", 1, 0, None, "length"), Span("generated", 1, 1, None, "stop"))
    early = dataclasses.replace(sequence(2), spans=spans)
    assert kept(MaskTruncated().process(candidate(1.0, 0.0, sequences=(early, sequence(2))), 3)).kept == (0, 1)


# --------------------------------------------------------------------------------------------- repetition and gibberish


def sure(*stretches: tuple[str, list[float]]) -> Sequence:
    """Spans with the probability of each token."""
    probabilities = [p for _, stretch in stretches for p in stretch]
    return Sequence(
        ids=np.full(len(probabilities), 7, np.int32),
        logprobs=np.log(np.array(probabilities, np.float32)),
        spans=tuple(Span(kind, len(stretch)) for kind, stretch in stretches),
    )


def test_so_many_consecutive_sure_tokens_are_a_repetition() -> None:
    """An observation breaks a run; a turn alone does not. By itself it looks for 3,000."""
    prompt, made = ("prompt", [1.0]), "generated"
    for one, run, flagged in (
        (sure(prompt, (made, [0.5, 0.999, 0.999, 0.999])), 3, True),
        (sure(prompt, (made, [0.999, 0.999, 0.5, 0.999])), 3, False),
        (sure(prompt, (made, [0.999] * 2), (made, [0.999])), 3, True),
        (sure(prompt, (made, [0.999] * 2), ("observation", [1.0]), (made, [0.999])), 3, False),
        (sure(("prompt", [1.0] * 9), (made, [0.999] * 2)), 3, False),
        (sure(prompt, (made, [0.98] * 5)), 3, False),
        (sure(prompt, (made, [0.999] * 2999)), None, False),
        (sure(prompt, (made, [0.999] * 3000)), None, True),
    ):
        algorithm = Repetition(run=run) if run else Repetition()
        assert bool(algorithm.find_fault(Trajectory(sequences=(sequence(), one)))) is flagged, one.spans


def test_a_token_that_is_rare_and_was_unlikely_is_gibberish() -> None:
    """Of 100 ids: -log 100 - 2 = -6.605."""
    for token, logprob, flagged in ((90, -7.0, True), (90, -6.0, False), (89, -7.0, False), (91, -100.0, True)):
        ids, logprobs = np.array([95, 95, 1, token], np.int32), np.array([0, 0, -1, logprob], np.float32)
        one = dataclasses.replace(sequence(2), ids=ids, logprobs=logprobs)
        assert bool(Gibberish(vocabulary=100, rare_id=89).find_fault(Trajectory(sequences=(one,)))) is flagged


def repeating() -> Candidate:
    one = sure(("prompt", [1.0]), ("generated", [0.999] * 3))
    return candidate(1.0, 0.0, 0.5, sequences=(sequence(), one, sequence()))


def test_what_is_flagged_is_not_trained_on_and_still_counts() -> None:
    left = kept(Repetition(run=3).process(repeating(), 3))
    assert (left.kept, left.rewards, left.flagged) == ((0, 2), (1.0, 0.0, 0.5), ())
    assert [(r.index, r.reason) for r in left.rejected] == [(1, "repetition")]


def test_a_monitor_only_counts() -> None:
    monitor = Repetition(run=3, monitor=True)
    left = kept(monitor.process(repeating(), 3))
    assert (left.kept, left.rejected, [r.index for r in left.flagged]) == ((0, 1, 2), (), [1])
    assert monitor.snapshot() == {"flagged": 1}
    again = Repetition(run=3, monitor=True)
    again.restore(monitor.snapshot())
    again.process(repeating(), 3)
    assert again.flagged == 2
