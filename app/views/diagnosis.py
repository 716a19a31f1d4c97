"""Why reward does not rise: the three usual causes, judged from the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.trainers.health import LARGE_GAP

ENOUGH_VERSIONS = 15
EDGE = 5
RISE = 0.02
"""Less between the first and the last versions is no rise."""
HIGH_ENOUGH = 0.9
"""Above this there is little left to rise."""
MANY_DROPPED = 0.7


@dataclass(frozen=True, slots=True)
class Signs:
    """What is looked at."""

    rewards: Sequence[float]
    """Mean reward by version, in order."""
    concluded: int
    """Groups trained or discarded."""
    discarded: Mapping[str, int]
    """Reason to groups."""
    staleness_mean: float
    max_staleness: int
    logprob_gap_mean: float


def why_no_rise(signs: Signs) -> str:
    """Return a sentence for people; empty while reward rises, is high, or it is too early to tell."""
    curve = signs.rewards
    if len(curve) < ENOUGH_VERSIONS:
        return ""
    first, last = (sum(part) / EDGE for part in (curve[:EDGE], curve[-EDGE:]))
    if last - first >= RISE or last >= HIGH_ENOUGH:
        return ""
    share = sum(signs.discarded.values()) / signs.concluded if signs.concluded else 0.0
    measured = (
        f"{share:.0%} of the groups dropped, staleness {signs.staleness_mean:.1f}, log-probability gap "
        f"{signs.logprob_gap_mean:.2g}"
    )
    return f"Reward does not rise ({first:.2f} → {last:.2f}). {_cause(signs, share, last)} [{measured}]"


def _cause(signs: Signs, share: float, reward: float) -> str:
    if signs.logprob_gap_mean > LARGE_GAP:
        return (
            "Engine and trainer disagree on log-probabilities: check that both have the same weights, tokenizer and "
            "sampling temperature."
        )
    if share > MANY_DROPPED:
        reason = max(signs.discarded, key=lambda name: signs.discarded[name])
        if reason != "zero_variance":
            return f"Most groups are dropped for {reason}: little is left to learn from."
        how = "too easy: take a harder tier" if reward > 0.5 else "too hard: warm up longer, or take an easier tier"
        return f"Most groups have one reward throughout, as the tasks are {how}."
    if signs.staleness_mean > max(2.0, 0.8 * signs.max_staleness):
        return "The data are old: lower trainer.max_staleness, or slow the trainer by larger batches."
    return "None of the usual causes shows: try another trainer.learning_rate, or larger groups."
