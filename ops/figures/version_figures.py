"""Versions of policies and shadows: the newest, when each was made, and its off-policy gap."""

from __future__ import annotations

from collections import defaultdict

from headrace.ops.lineage.own_metrics import select_answer_metrics
from headrace.schemas.records import BatchTrained
from headrace.schemas.version_records import OFF_POLICY_GAP


class VersionsFold:
    """Takes in versions by policy variant."""

    def __init__(self) -> None:
        self.newest: dict[str, int] = {}
        self.made_ms: defaultdict[str, dict[int, int]] = defaultdict(dict)
        """Time when each version was made; for version 0, when it was published."""
        self.answers: dict[str, dict[str, float]] = {}
        """Metrics of the newest version about its trajectories."""
        self._gaps: defaultdict[str, dict[int, float]] = defaultdict(dict)

    def fold_version(self, variant: str, version: int) -> None:
        """Take in that a version exists."""
        self.newest[variant] = max(version, self.newest.get(variant, -1))

    def fold_batch(self, variant: str, batch: BatchTrained) -> None:
        """Take in the batch that made a version."""
        self.fold_version(variant, batch.version)
        if batch.version > 0:
            self.made_ms[variant][batch.version] = batch.created_ms
            if batch.version == self.newest[variant]:
                self.answers[variant] = select_answer_metrics(batch.metrics)
            if (gap := batch.metrics.get(OFF_POLICY_GAP)) is not None:
                self._gaps[variant][batch.version] = gap

    def gaps(self, variant: str) -> tuple[tuple[int, float], ...]:
        """Return (version, off-policy gap) of each version whose gap is known."""
        return tuple(sorted(self._gaps[variant].items()))
