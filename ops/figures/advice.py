"""Finds what looks wrong in a run but does not show in a version's metrics, and says what to do. No clock.

The metrics of a version are judged in `headrace.trainers.health`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import NamedTuple, TypeAlias

from headrace.ledger.ledger import Ledger
from headrace.ledger.rows import read_floats, read_ints
from headrace.ops.figures.discard_advice import ADVICE_BY_REASON, OTHER_ADVICE
from headrace.ops.figures.run_figures import MANY_FAILED, Advice, RewardPoint
from headrace.schemas.episode_errors import MALFORMED, RAISED, describe_error, error_key_of
from headrace.schemas.records import EpisodeError, EvalResult

ADVICE_GROUPS = 64
"""Number of the newest groups of a policy that are checked."""
ENOUGH_GROUPS, ENOUGH_TRAJECTORIES = 16, 64
ADVICE_EDGE = 5
"""Number of versions at each end of a run that are averaged."""
REWARD_MATTERS = 0.05
"""A smaller change of the reward is ignored."""
SIGMAS = 3.0
"""A smaller fall of the held-out reward, in standard errors, may be only noise."""
LONG, LEFT = 16, 1 / 3
"""Lengths collapse if the first versions have at least LONG mean tokens, and the last at most the share LEFT of it."""
FAILED_SHARE = 0.25
"""Share of failed episodes that is reported: groups with so few trajectories often have equal rewards."""
OTHERWISE_ADVISED = frozenset({"failed", MALFORMED, "run_end"})
"""Reasons of a discard for which there is other advice."""
_NEWEST = f"""
    SELECT id, at_ms, CASE WHEN reason = '{MALFORMED}' THEN x'' ELSE rewards END,
        CASE WHEN reason = '{MALFORMED}' THEN x'' ELSE lengths END,
        CASE WHEN verdict = 'kept' THEN '' WHEN reason <> '' THEN reason ELSE verdict END, n_asked
    FROM outcome WHERE variant = ? AND stream = ? AND decides ORDER BY at_ms DESC, id DESC LIMIT ?
"""


_Said: TypeAlias = tuple[str, str] | tuple[str, str, str]
"""Name, sentence, and the stream where it is of one."""


class _Seen(NamedTuple):
    at_ms: int
    rewards: tuple[float, ...]
    lengths: tuple[int, ...]
    discarded: str
    """Reason of the discard; empty for a kept group."""
    stream: str
    asked: int
    errors: tuple[EpisodeError, ...]
    """Errors that the environment, the workflow or the engine raised."""


class Advisor:
    """Finds what looks wrong in the outcomes of curators, as they are in the ledger now."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def _find_newest(self, policy: str, stream: str) -> list[_Seen]:
        """Return the newest groups of a policy in a stream, oldest first."""
        rows = self._ledger.query(_NEWEST, policy, stream, ADVICE_GROUPS)
        return [
            _Seen(at_ms, read_floats(rewards), read_ints(lengths), discarded, stream, asked, self._find_errors(one))
            for one, at_ms, rewards, lengths, discarded, asked in reversed(rows)
        ]

    def _find_errors(self, outcome_id: int) -> tuple[EpisodeError, ...]:
        rows = self._ledger.query(
            "SELECT reason, detail, at, role, turn, episodes FROM episode_error WHERE outcome_id = ?", outcome_id
        )
        return tuple(error for error in (EpisodeError(*row) for row in rows) if error.reason in RAISED)

    def _find_range(self, policy: str) -> tuple[float, float]:
        """Return a policy's lowest and highest reward; at least 0 to 1, as most scorers have them."""
        [(low, high)] = self._ledger.query(
            "SELECT min(reward_low), max(reward_high) FROM decided WHERE variant = ?", policy
        )
        return min(0.0, low or 0.0), max(1.0, high or 1.0)

    def advice(
        self, max_tokens: int, curves: Mapping[str, Sequence[RewardPoint]], evals: Sequence[EvalResult]
    ) -> tuple[Advice, ...]:
        """Return what looks wrong; for each policy the worst comes first.

        Args:
            max_tokens: Largest number of tokens of a generation.
            curves: Policy to its training rewards by version.
            evals: Results of all evaluations.
        """
        return tuple(
            Advice(policy, *said)
            for policy, curve in curves.items()
            for said in self._look_at(policy, max_tokens, curve, [one for one in evals if one.policy == policy])
        )

    def _look_at(
        self, policy: str, max_tokens: int, curve: Sequence[RewardPoint], evals: Sequence[EvalResult]
    ) -> Iterator[_Said]:
        streams = self._ledger.query("SELECT DISTINCT stream FROM decided WHERE variant = ? ORDER BY stream", policy)
        by_stream = {stream: self._find_newest(policy, stream) for (stream,) in streams}
        newest = sorted(chain.from_iterable(by_stream.values()), key=lambda one: one.at_ms)[-ADVICE_GROUPS:]
        yield from (
            list(_look_at_failures(newest)) or list(_look_at_streams(by_stream, newest)) or _look_at_reasons(newest)
        )
        yield from _look_at_cut_off(newest, max_tokens)
        for workflow in sorted({result.workflow for result in evals}):
            one = [result for result in evals if result.workflow == workflow]
            yield from _look_at_held_out(curve, one, self._find_range(policy))
        yield from self._look_at_lengths(policy, curve)

    def _look_at_lengths(self, policy: str, curve: Sequence[RewardPoint]) -> Iterator[tuple[str, str]]:
        rows = self._ledger.query(
            "SELECT total(tokens) / sum(samples) FROM decided WHERE variant = ? GROUP BY head_version"
            " HAVING sum(samples) ORDER BY head_version",
            policy,
        )
        means = [mean for (mean,) in rows]
        if len(means) < 2 * ADVICE_EDGE or len(curve) < 2 * ADVICE_EDGE:
            return
        first, last = fmean(means[:ADVICE_EDGE]), fmean(means[-ADVICE_EDGE:])
        low, high = _find_ends(curve)
        if first < LONG or last > LEFT * first or high - low < REWARD_MATTERS:
            return
        words = (
            f"Answers have become short ({first:.0f} → {last:.0f} tokens) while reward has risen "
            f"({low:.2f} → {high:.2f}): the policy may have found an answer that the scorer wrongly accepts. "
            + LOOK_AT_ANSWERS
        )
        yield "lengths_collapse", words


LOOK_AT_ANSWERS = (
    "Read some answers with `headrace inspect --step VERSION`, and fix the scorer. Until then, set trainer.kl to "
    "keep the policy near its start."
)


def _look_at_streams(by_stream: Mapping[str, Sequence[_Seen]], newest: Sequence[_Seen]) -> Iterator[_Said]:
    """Look at the rewards of all streams together, and else of each that the newest groups are of."""
    if found := list(_look_at_rewards(newest)):
        yield from found
        return
    for stream in sorted({group.stream for group in newest}):
        yield from _look_at_rewards(by_stream[stream], stream)


def _look_at_failures(newest: Sequence[_Seen]) -> Iterator[_Said]:
    """Report that many episodes fail, but not all of them: then the whole run is reported as failing."""
    failed, first = Counter[tuple[str, str, str]](), dict[tuple[str, str, str], EpisodeError]()
    for error in chain.from_iterable(group.errors for group in newest):
        first.setdefault(error_key_of(error), error)
        failed[error_key_of(error)] += error.episodes
    asked = sum(group.asked for group in newest)
    has_success = any(group.rewards for group in newest)
    if len(newest) < ENOUGH_GROUPS or not has_success or asked < 1 or failed.total() < FAILED_SHARE * asked:
        return
    [(kind, times)] = failed.most_common(1)
    most = f"{times:,} of them" if times < failed.total() else "all"
    words = (
        f"{failed.total():,} of {asked:,} episodes of the newest {len(newest)} groups failed, {most} by "
        f"{describe_error(first[kind])}. Few or no trajectories are left to compare in a group. Fix this error "
        "first: what else is reported may follow from it."
    )
    yield MANY_FAILED, words


def _look_at_rewards(newest: Sequence[_Seen], stream: str = "") -> Iterator[_Said]:
    rewards = [reward for group in newest for reward in group.rewards if math.isfinite(reward)]
    if len(newest) < ENOUGH_GROUPS or len(rewards) < ENOUGH_TRAJECTORIES or len(set(rewards)) > 1:
        return
    whose = f" of workflow {stream}" if stream else ""
    words = (
        f"All {len(rewards)} trajectories of the newest {len(newest)} groups{whose} have reward {rewards[0]:g}: "
        "nothing can be learnt from equal rewards. Check with `headrace inspect --trajectory` whether the scorer "
        "judges the answers correctly. If it does: with a low reward, use easier tasks, a warm start or more tokens; "
        "with a high reward, use harder tasks."
    )
    yield "one_reward", words, stream


def _look_at_reasons(newest: Sequence[_Seen]) -> Iterator[tuple[str, str]]:
    reasons = Counter(group.discarded for group in newest)
    if (
        len(newest) < ENOUGH_GROUPS
        or len(reasons) > 1
        or not (reason := newest[0].discarded)
        or reason in OTHERWISE_ADVISED
    ):
        return
    itself, to_do = ADVICE_BY_REASON.get(reason, OTHER_ADVICE)
    words = f"All of the newest {len(newest)} groups were discarded as {reason}. What happens next: {itself}."
    yield "one_reason", f"{words} What you can do: {to_do}."


def _look_at_cut_off(newest: Sequence[_Seen], max_tokens: int) -> Iterator[tuple[str, str]]:
    lengths = [length for group in newest for length in group.lengths]
    if len(newest) < ENOUGH_GROUPS or len(lengths) < ENOUGH_TRAJECTORIES or not min(lengths):
        return
    if set(lengths) == {max_tokens}:
        size = f"exactly rollout.max_tokens ({max_tokens}) tokens"
    elif max_tokens > 1 and not any(length % max_tokens for length in lengths):  # several turns, each cut off
        size = f"a multiple of rollout.max_tokens ({max_tokens}) tokens, so each turn may be cut off"
    else:
        return
    words = (
        f"All {len(lengths)} trajectories of the newest {len(newest)} groups have {size}. If they were cut off, raise "
        "rollout.max_tokens or the `max_tokens` that the workflow passes to `generate`. Also check that the policy "
        "ever generates an end token."
    )
    yield "all_cut_off", words


def _look_at_held_out(
    curve: Sequence[RewardPoint], evals: Sequence[EvalResult], reward_range: tuple[float, float]
) -> Iterator[tuple[str, str]]:
    """Report that training reward has risen since the best evaluation, while held-out reward has fallen.

    The noise is estimated by its largest possible value: as if every reward were the lowest or the highest.
    """
    ordered = sorted((one for one in evals if one.has_reward), key=lambda one: one.version)
    if len(ordered) < 2 or len(curve) < 2 * ADVICE_EDGE:
        return
    best, last = max(ordered[:-1], key=lambda one: one.avg_at_k), ordered[-1]
    played = best.problems * best.samples - best.failures if best.played < 0 else best.played
    lowest, highest = min(reward_range[0], last.avg_at_k), max(reward_range[1], best.avg_at_k)
    width = highest - lowest
    variance = max((best.avg_at_k - lowest) * (highest - best.avg_at_k), 0.01 * width * width)  # ** would overflow
    error = math.sqrt(2 * variance / max(1, played))
    fall = best.avg_at_k - last.avg_at_k
    before = [point.reward for point in curve if point.version <= best.version][-ADVICE_EDGE:] or [curve[0].reward]
    rise = (high := fmean(point.reward for point in curve[-ADVICE_EDGE:])) - (low := fmean(before))
    if fall < max(REWARD_MATTERS, SIGMAS * error) or rise < REWARD_MATTERS:
        return
    words = (
        f"Training reward has risen ({low:.2f} → {high:.2f}) while held-out reward has fallen "
        f"({best.avg_at_k:.2f} at version {best.version} → {last.avg_at_k:.2f} at version {last.version}): the "
        f"policy may exploit the scorer or memorize the training tasks. {LOOK_AT_ANSWERS} Use more tasks, or take the "
        f"weights of version {best.version} (`headrace weights export FOLDER --version {best.version}`)."
    )
    yield "held_out_falls", words


def _find_ends(curve: Sequence[RewardPoint]) -> tuple[float, float]:
    return fmean(point.reward for point in curve[:ADVICE_EDGE]), fmean(point.reward for point in curve[-ADVICE_EDGE:])
