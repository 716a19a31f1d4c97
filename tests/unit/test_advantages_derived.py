"""Every estimator against the formula of its paper, written again: plain Python numbers, sets and sums, no arrays.

Means and deviations are exact here (`statistics` computes with fractions), and nothing is shared with the code.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from headrace.trainers.advantages import ADVANTAGES, RewardedSequence, batch_norm

Rows = list[list[float]]
"""By sequence, by generated token."""


@dataclass
class Play:
    """One sequence as a table row has it."""

    group: int
    trajectory: int
    role: str
    turn: int
    reward: float
    tokens: int
    baseline: float | None
    kept: bool
    when: list[float] | None
    critic: list[float] | None

    @property
    def earned(self) -> list[float]:
        return self.when if self.when is not None else [0.0] * (self.tokens - 1) + [self.reward] * min(self.tokens, 1)


def plays(seed: int) -> list[Play]:
    draw = random.Random(seed)  # noqa: S311 - numbers that can be drawn again
    found = []
    for group in range(draw.randint(1, 5)):
        coarse = draw.random() < 0.6
        for trajectory in range(draw.randint(1, 7)):
            shared = float(draw.randint(0, 2)) / 2 if coarse else draw.gauss(0.5, 2)
            for _ in range(draw.randint(1, 3)):
                tokens = draw.randint(0, 6)
                reward = shared if draw.random() < 0.5 else draw.uniform(0, 2)
                when = [draw.gauss(0, 1) for _ in range(tokens)] if tokens and draw.random() < 0.3 else None
                found.append(
                    Play(
                        group,
                        trajectory,
                        draw.choice(["solver", "verifier"]),
                        draw.randint(0, 1),
                        sum(when) if when else reward,
                        tokens,
                        draw.uniform(-1, 1) if draw.random() < 0.7 else None,
                        draw.random() < 0.8,
                        when,
                        [draw.gauss(0, 1) for _ in range(tokens)] if draw.random() < 0.5 else None,
                    )
                )
    return found


def sequences_of(table: Sequence[Play]) -> list[RewardedSequence]:
    return [
        RewardedSequence(
            play.trajectory,
            play.role,
            play.reward,
            turn=play.turn,
            length=play.tokens,
            baseline=play.baseline,
            group=play.group,
            kept=play.kept,
            token_rewards=None if play.when is None else np.array(play.when),
            token_values=None if play.critic is None else np.array(play.critic),
        )
        for play in table
    ]


# ----------------------------------------------------------------------------------------------------- formulas, again


def rivals(table: list[Play], me: Play, group_by: str) -> list[Play]:
    """Return all that this sequence is compared with, itself included."""
    return [
        other
        for other in table
        if other.group == me.group
        and (group_by == "task" or other.role == me.role)
        and (group_by != "task+role+turn" or other.turn == me.turn)
    ]


def values(table: list[Play], me: Play, group_by: str, weight: str) -> tuple[float, list[float], list[float]]:
    """Return my value, and all values with their lengths."""
    those = rivals(table, me, group_by)
    if weight == "sequence":
        return me.reward, [one.reward for one in those], [float(one.tokens) for one in those]
    means, sizes = {}, {}
    for trajectory in {one.trajectory for one in those}:
        own = [one for one in those if one.trajectory == trajectory]
        means[trajectory] = statistics.fmean(one.reward for one in own)
        sizes[trajectory] = float(sum(one.tokens for one in own))
    return means[me.trajectory], list(means.values()), [sizes[trajectory] for trajectory in means]


Formula = Callable[[float, list[float], list[float]], float]


def grpo(mine: float, all_: list[float], _: list[float]) -> float:
    return (mine - statistics.mean(all_)) / (statistics.stdev(all_) + 1e-5)


def grpo_population(mine: float, all_: list[float], _: list[float]) -> float:
    return (mine - statistics.mean(all_)) / (statistics.pstdev(all_) + 0.01)


def dr_grpo(mine: float, all_: list[float], _: list[float]) -> float:
    return mine - statistics.mean(all_)


def rloo(mine: float, all_: list[float], _: list[float]) -> float:
    others = list(all_)
    others.remove(mine)
    return mine - statistics.mean(others)


def maxrl(mine: float, all_: list[float], _: list[float]) -> float:
    mean = statistics.mean(all_)
    return mine / mean - 1 if mean > 0 else 0.0


def opo(mine: float, all_: list[float], lengths: list[float]) -> float:
    if not any(lengths):
        return mine - statistics.mean(all_)
    return mine - math.fsum(size * one for size, one in zip(lengths, all_, strict=True)) / math.fsum(lengths)


def pass_at_k(mine: float, all_: list[float], _: list[float]) -> float:
    best, second, *_rest = sorted(all_, reverse=True)
    return (best - second) / (statistics.stdev(all_) + 1e-5) if mine == best else 0.0


WITHIN_A_KEY: list[tuple[str, dict[str, Any], Formula]] = [
    ("grpo", {}, grpo),
    ("grpo", {"std": "population", "eps": 0.01}, grpo_population),
    ("dr_grpo", {}, dr_grpo),
    ("rloo", {}, rloo),
    ("maxrl", {}, maxrl),
    ("opo", {}, opo),
    ("pass_at_k", {}, pass_at_k),
]


def derived(table: list[Play], formula: Formula, group_by: str, weight: str) -> list[float]:
    found = []
    for me in table:
        mine, all_, lengths = values(table, me, group_by, weight)
        equal = max(all_) - min(all_) <= 1e-8
        found.append(0.0 if equal else formula(mine, all_, lengths))
    return found


def whitened(rows: Rows, table: list[Play]) -> Rows:
    tokens = [number for row, play in zip(rows, table, strict=True) if play.kept for number in row]
    if len(tokens) < 2 or max(tokens) - min(tokens) <= 1e-8:
        return [[0.0] * len(row) for row in rows]
    mean, deviation = statistics.mean(tokens), statistics.stdev(tokens)
    return [[(number - mean) / (deviation + 1e-5) for number in row] for row in rows]


def later(rewards: list[float], factor: float) -> list[float]:
    """Sum of each token's reward and the later ones, each discounted by its distance."""
    return [math.fsum(factor ** (s - t) * rewards[s] for s in range(t, len(rewards))) for t in range(len(rewards))]


def recurrence(rewards: list[float], critic: list[float], gamma: float, lam: float) -> list[float]:
    """Return the definition of GAE, from the end to the beginning."""
    found, after, value_after = [], 0.0, 0.0
    for reward, value in zip(reversed(rewards), reversed(critic), strict=True):
        after = reward + gamma * value_after - value + gamma * lam * after
        value_after = value
        found.append(after)
    return found[::-1]


# ---------------------------------------------------------------------------------------------------------- comparisons


def compare(got: Any, expected: list[float] | Rows) -> None:
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-6)


def tables() -> Iterator[list[Play]]:
    return (plays(seed) for seed in range(6))


@pytest.mark.parametrize(
    ("group_by", "weight"), [("task", "trajectory"), ("task+role", "sequence"), ("task+role+turn", "trajectory")]
)
def test_what_compares_within_a_key(group_by: str, weight: str) -> None:
    for table in tables():
        for name, options, formula in WITHIN_A_KEY:
            got = ADVANTAGES[name](sequences_of(table), group_by=group_by, weight=weight, **options)
            compare(got, derived(table, formula, group_by, weight))


@pytest.mark.parametrize("weight", ["trajectory", "sequence"])
def test_what_compares_within_a_batch(weight: str) -> None:
    for table in tables():
        centred = derived(table, dr_grpo, "task+role", weight)
        nonzero = sum(1 for play in table if play.reward != 0)
        compare(
            ADVANTAGES["gpg"](sequences_of(table), group_by="task+role", weight=weight),
            [len(table) / max(1, nonzero) * number for number in centred],
        )
        once = {}
        for index, me in enumerate(table):
            name = (me.group, me.role, me.trajectory if weight == "trajectory" else index)
            once[name] = values(table, me, "task+role", weight)[0]
        sigma = statistics.stdev(once.values()) if len(once) > 1 else 0.0
        compare(
            ADVANTAGES["lite_ppo"](sequences_of(table), group_by="task+role", weight=weight),
            [number / (sigma + 1e-5) for number in centred],
        )


def test_what_whitens_over_tokens() -> None:
    for table in tables():
        whole = sequences_of(table)
        for gamma in (1.0, 0.9, 0.0):
            rows = [later(play.earned, gamma) for play in table]
            compare(ADVANTAGES["reinforce_pp"](whole, gamma=gamma), whitened(rows, table))
        centred = derived(table, dr_grpo, "task", "trajectory")
        rows = whitened([[number] * play.tokens for number, play in zip(centred, table, strict=True)], table)
        got = ADVANTAGES["reinforce_pp_baseline"](whole)
        compare([[one] * play.tokens for one, play in zip(got, table, strict=True)], rows)
        by_token = batch_norm(ADVANTAGES["gae"](whole, gamma=0.95), whole)
        compare(by_token, whitened([each.tolist() for each in ADVANTAGES["gae"](whole, gamma=0.95)], table))


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.95), (0.9, 0.5), (0.5, 0.0), (0.0, 1.0)])
def test_gae_with_and_without_a_critic(gamma: float, lam: float) -> None:
    for table in tables():
        rows = [recurrence(play.earned, play.critic or [0.0] * play.tokens, gamma, lam) for play in table]
        compare(ADVANTAGES["gae"](sequences_of(table), gamma=gamma, lam=lam), rows)


def test_gae_over_a_long_sequence() -> None:
    draw = random.Random(1)  # noqa: S311 - numbers that can be drawn again
    rewards, critic = ([draw.gauss(0, 1) for _ in range(5000)] for _ in range(2))
    one = RewardedSequence(0, "", 0.0, length=5000, token_rewards=np.array(rewards), token_values=np.array(critic))
    [got] = ADVANTAGES["gae"]([one], gamma=0.999, lam=0.97)
    np.testing.assert_allclose(got, recurrence(rewards, critic, 0.999, 0.97), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weight", ["trajectory", "sequence"])
def test_a_baseline_that_the_workflow_gives(weight: str) -> None:
    for table in tables():
        for play in table:
            play.baseline = play.baseline if any(p.baseline for p in table if p.group == play.group) else 0.25
        means = [statistics.mean(values(table, me, "task", weight)[1]) for me in table]
        expected = [
            me.reward - (mean if me.baseline is None else me.baseline) for me, mean in zip(table, means, strict=True)
        ]
        compare(ADVANTAGES["given"](sequences_of(table), weight=weight), expected)
