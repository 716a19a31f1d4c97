"""The counts and the verdict of an audit."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.ops.audit.numbers import PolicyAudit
from headrace.ops.audit.problems import Problems


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """Training tasks of the run; a task may train several policies."""

    issued: int = 0
    concluded: int = 0
    """Tasks that are concluded for every policy that they train."""


@dataclass(frozen=True, slots=True)
class GroupTotals:
    """Groups of all policies together: each task has one for every policy that it trains. See `PolicyAudit`."""

    produced: int = 0
    duplicates: int = 0
    kept: int = 0
    trained: int = 0
    discarded: int = 0
    dead: int = 0
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class Audit:
    """Counts of a whole run."""

    ok: bool
    lost: int
    doubled: int
    policies: dict[str, PolicyAudit]
    shadows: dict[str, PolicyAudit] = field(default_factory=dict)
    """`policy.variant` to its counts; the sums below include them only in `lost` and `doubled`."""
    tasks: TaskCounts = TaskCounts()
    groups: GroupTotals = GroupTotals()
    weights_chain_ok: bool = True
    unreadable_letters: int = 0
    """Number of records on `dead-letters` that are not dead letters; they conclude nothing."""
    without_digest: int = 0
    """Number of batches and outcomes that an older build wrote without a digest."""
    unnumbered_letters: dict[str, int] = field(default_factory=dict)
    """Number of dead letters, by reason, that `groups` does not count, without those sent back. They name no training
    task of the run (for example if the headers were unreadable), or groups have concluded the task (poison)."""
    problems: Problems = field(default_factory=Problems)
