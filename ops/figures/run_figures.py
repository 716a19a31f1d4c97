"""The figures of a run at one moment, as pages and JSON show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from headrace.ops.audit.numbers import PolicyAudit
from headrace.ops.episode_errors import ErrorSeen
from headrace.ops.figures.revision_figures import RevisionFigures
from headrace.ops.figures.standstill import Standstill
from headrace.ops.figures.weights_figures import WeightsFigures
from headrace.schemas.records import EvalResult, ScalingDecision, UsedEnvironment, WorkerStatus

MOST_ENTRIES_SHOWN = 16
"""Entries of a selector's list or table that are reported one by one; of a longer one the number is reported."""

MANY_FAILED = "many_failed"
"""Name of the advice that many episodes fail."""
NO_WORKER_OF_KIND = "no_worker_of_kind"
"""Name of the advice that pinned work waits for a worker."""
RunState: TypeAlias = Literal["running", "finished", "stopped"]


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """Training groups of all policies together."""

    issued: int = 0
    trained: int = 0
    discarded: dict[str, int] = field(default_factory=dict)
    dead: int = 0
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class Selection:
    """Counts of a selector's decisions for one stream."""

    selected: int = 0
    """Problems that the selector took."""
    rejected: int = 0
    forced: int = 0
    """Problems that the feeder took against the selector, after too many rejections in a row."""
    state: dict[str, Any] = field(default_factory=dict)
    """Selector to its state; a long list or table is replaced by its length."""
    unbuilt: int = 0
    """Problems that were skipped because the environment could not build them."""
    why_unbuilt: str = ""
    """Reason of the last of them; empty if it is not known."""

    def __str__(self) -> str:
        """Return the counts in words; empty if every problem was taken."""
        if not self.rejected and not self.forced and not self.unbuilt:
            return ""
        unbuilt = f" · {self.unbuilt} cannot be built" if self.unbuilt else ""
        unbuilt += f", the last: {self.why_unbuilt}" if self.unbuilt and self.why_unbuilt else ""
        return f"{self.selected} selected · {self.rejected} rejected · {self.forced} forced{unbuilt}"


def read_selection(source: Mapping[str, Any]) -> Selection:
    """Return the counts of a stream from the state of its source in the feeder's snapshot."""
    counts = {name: int(source.get(name, 0)) for name in ("selected", "rejected", "forced")}
    state = {name: _shorten(state) for name, state in source.get("selector", {}).items()}
    why = str(source.get("skipped_why", ""))
    return Selection(**counts, state=state, unbuilt=int(source.get("skipped", 0)), why_unbuilt=why)


def _shorten(state: Any) -> Any:
    """Return the short values of a selector's state, and the lengths of the long ones."""
    if not isinstance(state, dict):
        return state
    return {
        name: len(value) if isinstance(value, dict | list) and len(value) > MOST_ENTRIES_SHOWN else value
        for name, value in state.items()
    }


@dataclass(frozen=True, slots=True)
class RewardPoint:
    """Mean reward of all groups that workers finished while they knew this version as the newest."""

    version: int
    reward: float
    groups: int
    trajectories: int = 0
    """Number of trajectories of these groups."""


@dataclass(frozen=True, slots=True)
class ShadowFigures:
    """A shadow at one moment."""

    version: int
    """Its newest version; -1 before the first."""
    groups: PolicyAudit
    """Counts of the policy's groups in the shadow."""
    off_policy_gap: float | None
    """Off-policy gap at its newest version, by `step_metrics.ratio_sums`; None before the first."""
    off_policy_gap_beside: float | None
    """Off-policy gap of its policy at the policy's newest version."""
    gaps: tuple[tuple[int, float], ...]
    """(version, off-policy gap) of each version."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Something that looks wrong, although the run continues."""

    policy: str
    name: str
    """A short name of the kind of advice, such as `one_reward`."""
    sentence: str
    """Sentences that say what was seen, what it means, and what to do."""
    stream: str = ""
    """Stream of the advice; empty if it is about the whole policy."""

    @property
    def is_cause(self) -> bool:
        """Whether it may be the cause of all else that is reported, so that it comes first."""
        return self.name == MANY_FAILED


@dataclass(frozen=True, slots=True)
class RunFigures:
    """A run at one moment."""

    run: str
    state: RunState
    ended: str
    """Why the run is over; empty while it is running."""
    versions: dict[str, int]
    """Policy to its newest version."""
    groups: GroupCounts
    policies: dict[str, PolicyAudit]
    """Counts without reading trajectories, so `produced` counts the groups that a curator has read."""
    lag: dict[str, int]
    """Topic to the number of unread records."""
    workers: tuple[WorkerStatus, ...]
    rewards: dict[str, tuple[RewardPoint, ...]]
    """Policy to its reward curve, over every group that a curator read, before any filter."""
    reward_first: dict[str, float]
    """Policy to the mean over the first five versions of its curve, with equal weight for every trajectory. The last
    five versions are left out, so a policy with five or fewer versions is missing here."""
    reward_last: dict[str, float]
    """The same over the last five versions, or over fewer if there are not so many."""
    evals: tuple[EvalResult, ...]
    tokens: int
    """Tokens that all workers generated, also before a restart, as far as `workers` still holds them."""
    wasted_tokens: int
    """Generated tokens that are known to be wasted: in failed or cancelled episodes, and in groups that reached the
    trainer too late. This is a lower bound, because a killed worker does not report its last tokens."""
    delivered_tokens: int = 0
    """Generated tokens of groups that reached a curator, and were in time for the trainer, or reached the evaluator."""
    unnumbered_letters: dict[str, int] = field(default_factory=dict)
    """Number of dead letters, by reason, that name no training task and are not in `groups`; not those sent back."""
    weights: dict[str, WeightsFigures] = field(default_factory=dict)
    """Policy to the figures of how its versions get to the workers."""
    revisions: tuple[RevisionFigures, ...] = ()
    """Revisions of the recipe, in order."""
    selection: dict[str, Selection] = field(default_factory=dict)
    """Stream to the counts of its selector's decisions, from the feeder's newest snapshot."""
    shadows: dict[str, ShadowFigures] = field(default_factory=dict)
    """`policy.variant` to its figures; apart from this, only `lag` includes shadows."""
    errors: tuple[ErrorSeen, ...] = ()
    """Errors of training episodes: each error once, the most frequent first."""
    advice: tuple[Advice, ...] = ()
    """Things that look wrong, although the run continues; empty once it has ended."""
    parent: str = ""
    """For a branch: run id and versions that it began with, `RUN-ID solver@40`; only `headrace status` sets it."""
    environments: tuple[UsedEnvironment, ...] = ()
    """Environment and data of each workflow, as the newest revision records them; only `headrace status` sets it."""
    answers: dict[str, dict[str, float]] = field(default_factory=dict)
    """Policy to the metrics of its newest version about its trajectories: length, turns, and parts of the reward."""
    scaling: tuple[ScalingDecision, ...] = ()
    """The newest decision of `headrace autoscale` on each pool of workers."""
    standstill: Standstill | None = None
    """Why the run makes no further version; None while versions come, and once the run has ended."""

    @property
    def in_force(self) -> RevisionFigures | None:
        """The revision under which the feeder issues tasks; None before its first snapshot."""
        return next((one for one in self.revisions if one.in_force), None)

    @property
    def in_flight(self) -> int:
        """Number of tasks that are issued and not concluded, over all policies and shadows."""
        return self.groups.in_flight + sum(shadow.groups.in_flight for shadow in self.shadows.values())

    @property
    def is_drained(self) -> bool:
        """Whether the run has ended and no training group is in flight."""
        return bool(self.ended) and not self.groups.in_flight

    def count_wasted_tokens(self) -> int:
        """Return how many generated tokens were wasted, including killed work and repetitions.

        These are the tokens of groups that reached neither a curator nor the evaluator, or the trainer too late. If the
        run has not drained, or not all generated tokens are known any more, it is a lower bound: the known waste.
        """
        return max(self.wasted_tokens, self.tokens - self.delivered_tokens if self.is_drained else 0)
