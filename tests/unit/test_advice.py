"""What looks wrong with a run, from made-up outcomes and evaluations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from made_ledger import MadeLedger

from headrace.ops.figures.advice import ADVICE_GROUPS, ENOUGH_GROUPS, Advisor
from headrace.ops.figures.run_figures import Advice, RewardPoint
from headrace.schemas.records import EpisodeError, EvalResult, Outcome

MOST_TOKENS = 32


def group(
    rewards: tuple[float, ...] = (0.0, 1.0, 0.0, 1.0), length: int = 9, discarded: str = "", head: int = 0
) -> Outcome:
    said, lengths = {"verdict": "dropped" if discarded else "kept", "reason": discarded}, (length,) * len(rewards)
    return Outcome(policy="solver", component="curate", rewards=rewards, lengths=lengths, head_version=head, **said)


def advised(
    *groups: Outcome, curve: Sequence[float] = (), evals: Sequence[tuple[int, float]] = ()
) -> dict[str, Advice]:
    ledger = MadeLedger()
    for number, one in enumerate(groups):
        ledger.say(one, number)
    points = [RewardPoint(version, reward, 1, 4) for version, reward in enumerate(curve)]
    results = [
        EvalResult(policy="solver", workflow="w", version=v, avg_at_k=reward, problems=200, samples=1)
        for v, reward in evals
    ]
    return {one.name: one for one in Advisor(ledger).advice(MOST_TOKENS, {"solver": points}, results)}


def test_one_reward_throughout_is_told_before_the_first_version_and_ends_with_the_first_other_one() -> None:
    same = group((0.0,) * 4, discarded="zero_variance")
    assert not advised(*[same] * (ENOUGH_GROUPS - 1)), "too few to say"
    found = advised(*[same] * ENOUGH_GROUPS)
    assert list(found) == ["one_reward"], "and not the drops too, which follow from it"
    assert "All 64 trajectories of the newest 16 groups have reward 0" in found["one_reward"].sentence
    assert not advised(*[same] * ENOUGH_GROUPS, group())
    assert advised(group(), *[same] * ADVICE_GROUPS), "the newest count"


def test_one_reward_of_a_workflow_is_told_by_its_name_beside_one_that_is_well() -> None:
    same = replace(group((0.0,) * 4, discarded="zero_variance"), stream="words")
    mixed = [one for _ in range(ENOUGH_GROUPS) for one in (same, replace(group(), stream="sums"))]
    found = advised(*mixed)
    assert list(found) == ["one_reward"]
    assert "of the newest 16 groups of workflow words have reward 0" in found["one_reward"].sentence
    assert not advised(*mixed, *[replace(group(), stream="sums")] * ADVICE_GROUPS), "it is over"
    both = advised(*[replace(same, stream=stream) for stream in ("words", "sums")] * ENOUGH_GROUPS)
    assert "of the newest 32 groups have reward 0" in both["one_reward"].sentence
    rare = [one for _ in range(ENOUGH_GROUPS) for one in (same, *[replace(group(), stream="sums")] * 7)]
    assert "of the newest 16 groups of workflow words" in advised(*rare)["one_reward"].sentence


def test_all_groups_dropped_for_one_reason_are_told_with_what_to_do() -> None:
    found = advised(*[group(discarded="stale")] * ENOUGH_GROUPS)
    assert list(found) == ["one_reason"]
    assert "were discarded as stale. What happens next: workers play newer groups." in found["one_reason"].sentence
    assert "What you can do: raise trainer.max_staleness" in found["one_reason"].sentence
    assert not advised(*[group(discarded="stale")] * ENOUGH_GROUPS, group(discarded="overlong"))
    assert not advised(*[group(discarded="stale")] * ENOUGH_GROUPS, group())
    assert not advised(*[group((), discarded="failed")] * ENOUGH_GROUPS), "that is told as failing"


def test_an_error_that_fails_many_episodes_comes_before_what_follows_from_it() -> None:
    error = EpisodeError("error", "TypeError: a message must be text, got None", "shop.py:33 in play", "solver", 1, 3)
    few = replace(group((0.0,), discarded="failures"), n_asked=4, failures=3, errors=(error,))
    equal = replace(group((0.0,) * 4, discarded="zero_variance"), n_asked=4)
    found = advised(*[few] * ENOUGH_GROUPS)
    assert list(found) == ["many_failed"], "that all rewards are equal follows from it"
    assert found["many_failed"].is_cause
    told = (
        "48 of 64 episodes of the newest 16 groups failed, all by TypeError: a message must be text, got None at shop."
    )
    assert found["many_failed"].sentence.startswith(told)
    assert list(advised(*[few] * 8, *[equal] * 40)) == ["one_reward"], "few of them fail"
    assert not advised(*[replace(few, rewards=(), reason="failed")] * ENOUGH_GROUPS), (
        "all fail: that is told as failing"
    )
    assert not advised(*[group((1.0,) * 4, discarded="invalid")] * ENOUGH_GROUPS), "and so is this"


def test_answers_that_are_all_cut_off_are_told() -> None:
    found = advised(*[group(length=MOST_TOKENS)] * ENOUGH_GROUPS)
    assert "exactly rollout.max_tokens (32) tokens" in found["all_cut_off"].sentence
    assert not advised(*[group(length=MOST_TOKENS)] * ENOUGH_GROUPS, group(length=MOST_TOKENS - 1))
    assert not advised(*[group(length=MOST_TOKENS + 1)] * ENOUGH_GROUPS), "of several turns"
    assert not advised(*[group(length=0)] * ENOUGH_GROUPS)


def test_turns_that_are_all_cut_off_are_told_but_not_turns_of_one_token() -> None:
    turns = [group(length=count * MOST_TOKENS) for count in (1, 2, 3)] * ENOUGH_GROUPS
    assert "a multiple of rollout.max_tokens (32) tokens" in advised(*turns)["all_cut_off"].sentence
    assert not advised(*turns, group(length=2 * MOST_TOKENS - 1))
    ledger = MadeLedger()
    for at_ms in range(ENOUGH_GROUPS):
        ledger.say(group(length=3), at_ms)
    assert not Advisor(ledger).advice(1, {"solver": ()}, ())


RISING = [0.3] * 10 + [0.8] * 10


def test_training_reward_that_rises_while_held_out_falls_is_told() -> None:
    for what, curve, evals in (
        ("rises", RISING, [(0, 0.6), (10, 0.7), (19, 0.68)]),
        ("noise", RISING, [(0, 0.6), (19, 0.55)]),
        ("both fall or stay", [0.5] * 20, [(0, 0.6), (19, 0.3)]),
        ("one evaluation", RISING, [(19, 0.3)]),
        ("too early", RISING[:4], [(0, 0.6), (3, 0.3)]),
    ):
        assert "held_out_falls" not in advised(curve=curve, evals=evals), what
    told = advised(curve=RISING, evals=[(0, 0.6), (10, 0.5), (19, 0.3)])["held_out_falls"].sentence
    assert "(0.30 → 0.80) while held-out reward has fallen (0.60 at version 0 → 0.30" in told


def test_a_fall_of_rewards_that_are_not_from_0_to_1_is_noise_as_wide_as_they_are() -> None:
    rising = [-0.5 + 0.03 * version for version in range(20)]
    signed = group((-1.0, 1.0, -1.0, math.nan))
    for what, groups, evals in (
        ("a standard error is 0.1", signed, [(0, -0.3), (10, -0.1), (19, -0.3)]),
        ("only evaluations had such rewards", group(), [(0, 4.0), (19, 3.9)]),
        ("of rewards up to 10 it is 0.5", group((0.0, 10.0)), [(0, 5.0), (19, 4.0)]),
        ("too large to be squared", group((0.0, 1e200)), [(0, 1e199), (19, 0.0)]),
    ):
        assert "held_out_falls" not in advised(groups, curve=rising, evals=evals), what
    assert "held_out_falls" in advised(signed, curve=rising, evals=[(0, -0.3), (10, 0.3), (19, -0.3)])
    assert "held_out_falls" in advised(signed, group(()), curve=rising, evals=[(0, -0.3), (10, 0.3), (19, -0.3)])


def test_evaluations_of_several_workflows_are_not_compared_with_one_another() -> None:
    ledger = MadeLedger()
    points = [RewardPoint(version, reward, 1, 4) for version, reward in enumerate(RISING)]
    results = [
        EvalResult(policy="solver", workflow=workflow, version=version, avg_at_k=reward, problems=200, samples=1)
        for workflow, version, reward in (("easy", 0, 0.9), ("hard", 19, 0.2))
    ]
    assert not Advisor(ledger).advice(MOST_TOKENS, {"solver": points}, results)


def test_only_a_curators_word_on_the_first_use_of_a_training_group_counts() -> None:
    same = group((0.0,) * 4, discarded="zero_variance")
    others = [
        replace(group(), use=1),
        replace(group(), component="train"),
        replace(group(), level="trajectory"),
        replace(group(), stream="eval.w"),
    ]
    assert "one_reward" in advised(*[same] * ENOUGH_GROUPS, *others)
