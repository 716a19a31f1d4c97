"""Figures of a run at one moment, as pages and JSON show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from headrace.ops.audit.numbers import PolicyAudit
from headrace.ops.episode_errors import ErrorSeen
from headrace.ops.figures.revision_figures import RevisionFigures
from headrace.ops.figures.standstill import Standstill
from headrace.ops.figures.weights_figures import WeightsFigures
from headrace.schemas.records import EvalResult, UsedEnvironment, WorkerStatus

MOST_ENTRIES_SHOWN = 16
"""Entries of a selector's list or table that are reported one by one; of a longer one the number is reported."""

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
    """What a stream's selector has said."""

    selected: int = 0
    """Problems that it took."""
    rejected: int = 0
    forced: int = 0
    """Taken against it, after too many rejections in a row."""
    state: dict[str, Any] = field(default_factory=dict)
    """Selector to what it remembers; where there are many entries, to their number."""
    unbuilt: int = 0
    """Passed over, because the environment could not build them."""
    why_unbuilt: str = ""
    """Reason of the last of them; empty if it is not known."""

    def __str__(self) -> str:
        """Return it in words; empty where every problem was taken."""
        if not self.rejected and not self.forced and not self.unbuilt:
            return ""
        unbuilt = f" · {self.unbuilt} cannot be built" if self.unbuilt else ""
        unbuilt += f", the last: {self.why_unbuilt}" if self.unbuilt and self.why_unbuilt else ""
        return f"{self.selected} selected · {self.rejected} rejected · {self.forced} forced{unbuilt}"


def read_selection(source: Mapping[str, Any]) -> Selection:
    """Return it of the state of a stream's source in the feeder's snapshot."""
    counts = {name: int(source.get(name, 0)) for name in ("selected", "rejected", "forced")}
    state = {name: _brief(state) for name, state in source.get("selector", {}).items()}
    why = str(source.get("skipped_why", ""))
    return Selection(**counts, state=state, unbuilt=int(source.get("skipped", 0)), why_unbuilt=why)


def _brief(state: Any) -> Any:
    """Return what is short of a selector's state, and how long the rest is."""
    if not isinstance(state, dict):
        return state
    return {
        name: len(value) if isinstance(value, dict | list) and len(value) > MOST_ENTRIES_SHOWN else value
        for name, value in state.items()
    }


@dataclass(frozen=True, slots=True)
class RewardPoint:
    """Mean reward of all groups that workers finished while one version was the newest they knew."""

    version: int
    reward: float
    groups: int
    trajectories: int = 0
    """Trajectories of these groups."""


@dataclass(frozen=True, slots=True)
class ShadowFigures:
    """A shadow at one moment."""

    version: int
    """Its newest; -1 before the first."""
    groups: PolicyAudit
    """What became of the policy's numbers in the shadow."""
    off_policy_gap: float | None
    """Gap to the sampling policy at its newest version, by `step_metrics.ratio_sums`; None before the first."""
    off_policy_gap_beside: float | None
    """The same gap at the newest version of its policy."""
    gaps: tuple[tuple[int, float], ...]
    """(version, off-policy gap) of each."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Something that looks wrong, although the run continues."""

    policy: str
    name: str
    """One word for it, the same whatever the figures."""
    sentence: str
    """What was seen, what it means, and what to do."""


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
    """Trajectories are not read for these, so produced groups are those that a curator has seen."""
    lag: dict[str, int]
    """Topic to records that its reader has yet to read."""
    workers: tuple[WorkerStatus, ...]
    rewards: dict[str, tuple[RewardPoint, ...]]
    """Policy to its reward curve, over every group that a curator saw, before any filter."""
    reward_first: dict[str, float]
    """Policy to the mean over the first five versions of its curve, every trajectory counting alike. The last five are
    left out: a policy that has no others is not in here."""
    reward_last: dict[str, float]
    """The same over the last five, or over those there are."""
    evals: tuple[EvalResult, ...]
    tokens: int
    """Tokens that all workers generated, restarted ones included, as far as `workers` still holds them."""
    wasted_tokens: int
    """Tokens of them that are known to be wasted: of failed or cancelled episodes, and of groups that reached the
    trainer too late. A lower bound: what a killed worker was generating is not reported."""
    delivered_tokens: int = 0
    """Tokens of them that a group brought to a curator, and in time to the trainer, or to the evaluator."""
    unnumbered_letters: dict[str, int] = field(default_factory=dict)
    """Dead letters by reason that `groups` does not count, as they name no training number; without those sent back."""
    weights: dict[str, WeightsFigures] = field(default_factory=dict)
    """Policy to how its versions get to the workers."""
    revisions: tuple[RevisionFigures, ...] = ()
    """Revisions of the recipe, in order."""
    selection: dict[str, Selection] = field(default_factory=dict)
    """Stream to what became of the problems that were drawn for it, as of the feeder's newest snapshot."""
    shadows: dict[str, ShadowFigures] = field(default_factory=dict)
    """`policy.variant` to its figures; of the other figures only `lag` includes shadows."""
    errors: tuple[ErrorSeen, ...] = ()
    """Errors of training episodes: each error once, the most frequent first."""
    advice: tuple[Advice, ...] = ()
    """Observations that something looks wrong, although the run continues; empty once it has ended."""
    parent: str = ""
    """Of a branch: run id and versions that it began with, `RUN-ID solver@40`; only `headrace status` has it."""
    environments: tuple[UsedEnvironment, ...] = ()
    """Environment and data of each workflow, as the newest revision records them; only `headrace status` has them."""
    standstill: Standstill | None = None
    """Cause that prevents the next version; None while versions come, and once the run has ended."""

    @property
    def in_force(self) -> RevisionFigures | None:
        """The revision that the feeder issues under; None before its first snapshot."""
        return next((one for one in self.revisions if one.in_force), None)

    @property
    def in_flight(self) -> int:
        """Numbers that are issued and not concluded, over all policies and shadows."""
        return self.groups.in_flight + sum(shadow.groups.in_flight for shadow in self.shadows.values())

    @property
    def is_drained(self) -> bool:
        """Whether the run has ended and no training group is in flight."""
        return bool(self.ended) and not self.groups.in_flight

    def count_wasted_tokens(self) -> int:
        """Return how many generated tokens were for nothing, killed work and repetitions included.

        It is what no group brought to a curator or the evaluator, or too late to the trainer. Of a run that has not
        drained, and where the generated ones are not all known any more, it is what is known to be wasted: a lower
        bound.
        """
        return max(self.wasted_tokens, self.tokens - self.delivered_tokens if self.is_drained else 0)
