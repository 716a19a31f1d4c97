"""`headrace discards`: the groups that were never trained on, by reason, and the length bias that this causes.

No group is discarded without a record. The outcomes of curators and trainers give the reasons, and the batches of
trainers name the trained groups. Only first uses of whole groups count; a trajectory that was left out of a kept group
is listed apart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from headrace.infra.run.run import Run
from headrace.ledger.follow import ask_ledger
from headrace.ledger.ledger import Ledger
from headrace.ledger.rows import read_floats, read_ints
from headrace.ops.episode_errors import ErrorSeen, list_episode_errors
from headrace.schemas.ids import GroupId
from headrace.schemas.records import BatchTrained, Eviction, GroupUse, Outcome
from headrace.schemas.topics import variant_of

TRAINED = "trained"
"""Value instead of a reason, for groups that were trained on."""
DEAD = "dead"
"""Reason of a group that its trainer could not use, and that became a dead letter."""
RUN_END = "run_end"
"""Reason of the groups that were left when the run ended. No rule chose them, so `before_end` leaves them out."""
NORMAL_95 = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""
REWARD_BIN = 0.25
LARGEST_BINNED = 1e15
"""Above this value, neighbouring floats are farther apart than bins are wide."""
BIAS_MATTERS = 0.05
"""A ratio of lengths is called a bias if its whole interval is farther than this from 1."""

_FIELDS = ("level", "component", "use", "stream", "number", "verdict", "reason", "min_version", "head_version")
_OUTCOMES = f"SELECT rewards, lengths, {', '.join(_FIELDS)} FROM outcome WHERE variant = ? ORDER BY id"


class GroupOutcome(NamedTuple):
    """The facts that are kept of a group until its outcome is final; length and reward are means over members."""

    length: float
    """Mean generated tokens; NaN if there is no trajectory."""
    reward: float
    """Mean reward; NaN if none is finite."""
    min_version: int
    head_version: int
    """Newest version that the worker knew."""


class Cell(NamedTuple):
    """A bin of lengths, rewards and ages."""

    length: int | None
    """Lower bound of the mean length in tokens: 0 (below 1) or a power of two (below its double); None: not known."""
    reward: float | None
    """Lower bound of the mean reward, less than 0.25 below it; None if no reward is finite."""
    age: int | None
    """Number of versions from its oldest token to the newest version; None if nothing was generated."""


class Binned(NamedTuple):
    """A cell, and how many groups are in it."""

    length: int | None
    reward: float | None
    age: int | None
    groups: int


@dataclass(frozen=True, slots=True)
class Bias:
    """A ratio of mean lengths, discarded over trained, with its 95 % interval."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class TrainedGroups:
    """The groups that were trained on; a mean is None if it is not known."""

    groups: int
    length: float | None
    """Mean length in tokens."""
    reward: float | None
    age: float | None
    """Mean age in versions."""
    cells: tuple[Binned, ...]


@dataclass(frozen=True, slots=True)
class Discarded:
    """The groups, or trajectories, of one reason."""

    groups: int
    length: float | None
    reward: float | None
    age: float | None
    bias: Bias | None
    """Ratio of their lengths; None if it cannot be estimated."""
    cells: tuple[Binned, ...]


@dataclass(frozen=True, slots=True)
class BeforeEnd:
    """The groups that were discarded by a rule, and not because the run ended."""

    length: float | None
    bias: Bias | None


@dataclass(frozen=True, slots=True)
class PolicyDiscards:
    """The results of the groups of one policy or shadow."""

    trained: TrainedGroups
    discarded: dict[str, Discarded]
    """Discarded groups by reason, the most frequent first."""
    trajectories: dict[str, Discarded]
    """Single trajectories that were left out of a kept group, by reason."""
    waiting: int
    """Groups that have not concluded yet."""
    bias: Bias | None
    """Mean length of all discarded groups, divided by that of trained groups."""
    before_end: BeforeEnd
    errors: tuple[ErrorSeen, ...] = ()
    """Errors of its episodes, including those of trained groups: each once, the most frequent first."""


@dataclass(frozen=True, slots=True)
class Discards:
    """The result of `headrace discards`."""

    run: str
    run_id: str
    policies: dict[str, PolicyDiscards]


@dataclass(slots=True)
class Moments:
    """Count, mean and spread of values that are added one after the other (Welford 1962)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """Sum of squared deviations from the mean."""

    def add(self, value: float) -> None:
        """Add a value; a value that is not finite is skipped."""
        if math.isfinite(value):
            self.count += 1
            before = value - self.mean
            self.mean += before / self.count
            self.squares += before * (value - self.mean)

    @property
    def relative_error(self) -> float:
        """Squared standard error of the mean over its square; infinite for fewer than two values or a mean of 0."""
        if self.count < 2 or not self.mean:
            return math.inf
        return self.squares / (self.count - 1) / self.count / self.mean**2


@dataclass(slots=True)
class GroupsOfReason:
    """The groups, or trajectories, of one reason."""

    groups: int = 0
    lengths: Moments = field(default_factory=Moments)
    rewards: Moments = field(default_factory=Moments)
    ages: Moments = field(default_factory=Moments)
    cells: Counter[Cell] = field(default_factory=Counter)

    def add(self, seen: GroupOutcome, head: int) -> None:
        """Count a group whose fate was decided when `head` was the newest version."""
        age = head - seen.min_version if seen.min_version >= 0 <= head else None
        self.groups += 1
        self.lengths.add(seen.length)
        self.rewards.add(seen.reward)
        self.ages.add(math.nan if age is None else age)
        self.cells[_bin_outcome(seen, age)] += 1


class GroupFates:
    """Counts the groups of a policy or shadow by outcome, from its outcomes and then its batches, each topic in order.

    Args:
        is_shadow: A shadow's own versions sample nothing. So the age of its groups counts up to the newest version that
            a worker knew when it played a group of the batch, or of an earlier batch.
    """

    def __init__(self, *, is_shadow: bool = False) -> None:
        self._is_shadow = is_shadow
        self._kept: dict[GroupId, GroupOutcome] = {}
        """Groups that a curator kept, and that no trainer has used or evicted so far."""
        self._dead: dict[GroupId, tuple[GroupOutcome, int]] = {}
        """Groups that the trainer could not use, and its version at that time. A redrive may send them again."""
        self._head = 0
        """Version of the trainer."""
        self.groups: dict[str, GroupsOfReason] = {}
        """Groups by reason, with `trained` as one of them."""
        self.trajectories: dict[str, GroupsOfReason] = {}
        """Single trajectories that were left out of a kept group, by reason."""

    def outcome(self, outcome: Outcome) -> None:
        """Take in a curator's decision. A trainer's decision is taken from its batches, which also give the age."""
        if outcome.use or outcome.component != "curate":
            return
        if outcome.level == "trajectory":
            _get_or_add(self.trajectories, outcome.reason).add(_summarize_outcome(outcome), outcome.head_version)
        elif outcome.verdict == "kept":
            self._kept[GroupId.of(outcome)] = _summarize_outcome(outcome)
        else:
            _get_or_add(self.groups, outcome.reason).add(_summarize_outcome(outcome), outcome.head_version)

    def batch(self, batch: BatchTrained) -> None:
        """Take in a batch: the groups that a trainer trained on, and the groups that it evicted."""
        if self._is_shadow:
            known = (self._kept.get(GroupId.of(use)) for use in batch.groups)
            self._head = max(self._head, *(seen.head_version for seen in known if seen), 0)
        else:
            self._head = max(self._head, batch.version - 1)
        fates = [(use, TRAINED) for use in batch.groups]
        fates += [(gone.group, gone.verdict) for gone in batch.evictions if gone.group is not None]
        for use, reason in fates:
            group = GroupId.of(use)
            dead, _ = self._dead.pop(group, (None, 0)) if not use.use else (None, 0)
            seen = None if use.use else self._kept.pop(group, dead)
            if seen is not None and reason == DEAD:
                self._dead[group] = seen, self._head
            elif seen is not None:
                _get_or_add(self.groups, reason).add(seen, self._head)
        if not self._is_shadow:
            self._head = max(self._head, batch.version)

    def count_dead(self) -> dict[str, GroupsOfReason]:
        """Return the groups by reason, including those that the trainer could not use."""
        dead = GroupsOfReason()
        for seen, head in self._dead.values():
            dead.add(seen, head)
        return {**self.groups, DEAD: dead} if dead.groups else self.groups

    @property
    def waiting(self) -> int:
        """Groups that have not concluded yet."""
        return len(self._kept)


def discards(run: Run, policy: str | None, ledger: Path | None = None) -> Discards:
    """Return what happened to the groups of a policy, or of all. Raises UsageError, KafkaAway or KafkaRefused.

    `ledger` is the file of the run's ledger; None to read its topics into memory.
    """
    policies = [run.resolve(policy)] if policy is not None else list(run.recipe.policies)
    found = ask_ledger(run, ledger, lambda one: {name: find_discards(one, name) for name in policies})
    return Discards(run.recipe.name, run.run_id, found)


def find_discards(ledger: Ledger, policy_variant: str) -> PolicyDiscards:
    """Return what happened to the groups of a policy or shadow."""
    fates = GroupFates(is_shadow=bool(variant_of(policy_variant)))
    for rewards, lengths, *values in ledger.query(_OUTCOMES, policy_variant):
        named = dict(zip(_FIELDS, values, strict=True))
        fates.outcome(Outcome(**named, rewards=read_floats(rewards), lengths=read_ints(lengths)))
    for batch_id, version in ledger.query(
        "SELECT id, version FROM batch WHERE variant = ? ORDER BY id", policy_variant
    ):
        groups = ledger.query("SELECT stream, number, use FROM trained WHERE batch_id = ? ORDER BY id", batch_id)
        gone = ledger.query(
            "SELECT verdict, stream, number, use FROM eviction WHERE batch_id = ? ORDER BY id", batch_id
        )
        evictions = tuple(Eviction(GroupUse(*group), verdict) for verdict, *group in gone)
        fates.batch(BatchTrained(version=version, groups=tuple(GroupUse(*one) for one in groups), evictions=evictions))
    errors = sorted(list_episode_errors(ledger, [policy_variant]), key=lambda one: -one.count)
    return summarize_fates(fates, tuple(errors))


def summarize_fates(fates: GroupFates, errors: tuple[ErrorSeen, ...] = ()) -> PolicyDiscards:
    """Return the results of all groups; `before_end` leaves out the groups that were left when the run ended."""
    trained = fates.groups.get(TRAINED, GroupsOfReason())
    others = {reason: groups for reason, groups in fates.count_dead().items() if reason != TRAINED}
    chosen = _pool(groups.lengths for reason, groups in others.items() if reason != RUN_END)
    return PolicyDiscards(
        trained=TrainedGroups(trained.groups, *_compute_means(trained), _count_cells(trained)),
        discarded={reason: _summarize_discarded(groups, trained.lengths) for reason, groups in _sort_by_count(others)},
        trajectories={
            reason: _summarize_discarded(groups, trained.lengths)
            for reason, groups in _sort_by_count(fates.trajectories)
        },
        waiting=fates.waiting,
        bias=compute_bias(_pool(groups.lengths for groups in others.values()), trained.lengths),
        before_end=BeforeEnd(chosen.mean if chosen.count else None, compute_bias(chosen, trained.lengths)),
        errors=errors,
    )


def compute_bias(discarded: Moments, trained: Moments) -> Bias | None:
    """Return the ratio of mean lengths, discarded over trained, with its 95 % interval; None for too few values.

    The interval is that of the logarithm of a ratio of independent means, by the delta method: its variance is the sum
    of both squared relative standard errors. A group is one value, since its members' lengths depend on one another.
    With thousands of groups even an irrelevant difference excludes 1 from the interval: see `BIAS_MATTERS`.
    """
    variance = discarded.relative_error + trained.relative_error
    if not math.isfinite(variance):
        return None
    ratio, factor = discarded.mean / trained.mean, math.exp(NORMAL_95 * math.sqrt(variance))
    return Bias(ratio, ratio / factor, ratio * factor)


def _summarize_discarded(groups: GroupsOfReason, trained: Moments) -> Discarded:
    return Discarded(
        groups.groups, *_compute_means(groups), compute_bias(groups.lengths, trained), _count_cells(groups)
    )


def _compute_means(groups: GroupsOfReason) -> tuple[float | None, float | None, float | None]:
    """Return mean length, reward and age."""
    length, reward, age = (
        moments.mean if moments.count else None for moments in (groups.lengths, groups.rewards, groups.ages)
    )
    return length, reward, age


def _count_cells(groups: GroupsOfReason) -> tuple[Binned, ...]:
    return tuple(Binned(*cell, count) for cell, count in sorted(groups.cells.items(), key=lambda item: str(item[0])))


def _pool(several: Iterable[Moments]) -> Moments:
    pooled = Moments()
    for one in several:
        if one.count:
            both = pooled.count + one.count
            apart = one.mean - pooled.mean
            pooled.squares += one.squares + apart**2 * pooled.count * one.count / both
            pooled.mean += apart * one.count / both
            pooled.count = both
    return pooled


def _bin_outcome(seen: GroupOutcome, age: int | None) -> Cell:
    length = None if math.isnan(seen.length) else 2 ** int(math.log2(seen.length)) if seen.length >= 1 else 0
    reward = math.floor(seen.reward / REWARD_BIN) * REWARD_BIN if abs(seen.reward) < LARGEST_BINNED else None
    return Cell(length, reward, age)


def _summarize_outcome(outcome: Outcome) -> GroupOutcome:
    finite = [reward for reward in outcome.rewards if math.isfinite(reward)]
    return GroupOutcome(
        # The longest episodes are those that time out: as 0 tokens they would hide the bias.
        length=fmean(outcome.lengths) if outcome.lengths else math.nan,
        reward=math.fsum(reward / len(finite) for reward in finite) if finite else math.nan,
        min_version=outcome.min_version,
        head_version=outcome.head_version,
    )


def _get_or_add(tallies: dict[str, GroupsOfReason], reason: str) -> GroupsOfReason:
    return tallies.setdefault(reason or "unknown", GroupsOfReason())


def _sort_by_count(tallies: Mapping[str, GroupsOfReason]) -> list[tuple[str, GroupsOfReason]]:
    return sorted(tallies.items(), key=lambda item: -item[1].groups)
