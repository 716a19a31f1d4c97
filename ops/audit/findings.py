"""The result of `headrace audit`, field by field as `--json` prints it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.ops.audit.evaluations import EvaluationCounts
from headrace.ops.audit.numbers import PolicyAudit
from headrace.ops.audit.results import GroupTotals, TaskCounts


@dataclass(slots=True)
class Deep:
    """How many groups a deep audit decoded, and in what time."""

    records: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class DeepRates:
    """How many groups were decoded, and how fast."""

    records: int
    seconds: float
    cpu_seconds: float
    records_per_s: int

    @classmethod
    def of(cls, deep: Deep) -> DeepRates:
        """Return the rates of a deep audit."""
        rate = round(deep.records / max(deep.seconds, 1e-9))
        return cls(deep.records, deep.seconds, deep.cpu_seconds, rate)


@dataclass(frozen=True, slots=True)
class CuratedCounts:
    """The curated records of one policy or shadow."""

    n: int
    """Number of first uses."""
    again: int
    """Replays."""
    sha256: str
    """Hash of all curated records, as `CuratedDigest` computes it."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The verdict on a run, and how much was read for it."""

    ok: bool
    """Whether the audit closes: there are no problems, and no objects are left unchecked by a store that is away."""
    run: str
    source: str
    """Run whose groups an offline experiment trained; empty for any other run."""
    tasks: TaskCounts
    groups: GroupTotals
    lost: int
    doubled: int
    weights_chain_ok: bool
    unreadable_letters: int
    """Number of records on `dead-letters` that are not dead letters."""
    without_digest: int
    """Number of batches and outcomes that an older build wrote without a digest; they are audited without it."""
    unnumbered_letters: Mapping[str, int]
    """Number of dead letters that name no training number, by reason."""
    problems: tuple[str, ...]
    more_problems: int
    """Number of problems that are not listed."""
    policies: Mapping[str, PolicyAudit]
    shadows: Mapping[str, PolicyAudit]
    """`policy.variant` to its counts."""
    curated: Mapping[str, CuratedCounts]
    """Counts and hash of the curated records, by policy or shadow."""
    evaluations: Mapping[str, EvaluationCounts]
    """`workflow.policy` to its counts."""
    revisions: Mapping[str, Sequence[Sequence[int]]]
    """Stream to (recipe revision, first number issued under it)."""
    store: str
    """checked | left out | away."""
    unchecked: str
    """Why not all objects could be checked, which is no problem of the run; empty otherwise."""
    objects: int
    """Number of objects that were checked."""
    objects_seconds: float
    records: int
    """Number of records read from the topics; the seconds do not include objects and decoding."""
    seconds: float
    records_per_s: int
    deep: DeepRates | None
    """Rates of decoding; None without --deep."""
