"""How a policy's versions get to its workers: sizes, times, and how far the workers' versions differ. No I/O."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from headrace.infra.weights.paths import ANCHOR, size_of
from headrace.schemas.records import TakenWeights, WeightsPublished, WorkerStatus

MEDIAN_VERSIONS = 64
"""Number of versions over which medians are taken."""
FRESH_MS = 15_000
"""A worker without a heartbeat for that long is gone."""


@dataclass(frozen=True, slots=True)
class WeightsFigures:
    """Figures of one policy. Medians are over the newest versions; those of workers' seconds also over workers."""

    published: int = 0
    left_out: int = 0
    """Number of unpublished versions between the oldest and the newest published version."""
    anchor_bytes: int = 0
    delta_bytes: int = 0
    """Bytes of all delta objects together."""
    ratio: float | None = None
    """Size of whole weights divided by that of a delta, median."""
    density: float | None = None
    """Share of the values that change from one published version to the next: median."""
    encode_s: float | None = None
    upload_s: float | None = None
    fetch_s: float | None = None
    verify_s: float | None = None
    apply_s: float | None = None
    pause_s: float | None = None
    """Seconds in which an engine generated nothing."""
    behind: int = 0
    """Number of versions from the oldest that a worker serves now to the newest published one."""
    skew: int = 0
    """Number of versions from the oldest to the newest that workers serve now."""
    greatest_skew: int = 0
    """Largest value of `skew` since the run began; workers report once a second."""


@dataclass(slots=True)
class _Versions:
    """The facts that are kept of a policy."""

    versions: int = 0
    published: int = 0
    newest: int = -1
    oldest: int = -1
    """Version that was published first: 0, except in an offline experiment."""
    bytes: defaultdict[bool, int] = field(default_factory=lambda: defaultdict(int))
    """Bytes of anchors (True) and of other objects (False)."""
    recent: deque[Mapping[str, float]] = field(default_factory=lambda: deque(maxlen=MEDIAN_VERSIONS))
    """Ratio, density, seconds."""
    taken: dict[tuple[str, int], TakenWeights] = field(default_factory=dict)
    """Worker and version to its report, the newest last."""
    greatest_skew: int = 0


class WeightsFold:
    """Follows events and statuses of one run, those of a topic in their order."""

    def __init__(self, policies: Iterable[str]) -> None:
        self._of = {policy: _Versions() for policy in policies}
        self._workers: dict[str, WorkerStatus] = {}

    def fold_event(self, event: WeightsPublished) -> None:
        """Take in a published version."""
        of = self._of.get(event.policy)
        if of is None:
            return
        of.oldest = min(of.oldest, event.version) if of.published else event.version
        of.published, of.newest = of.published + 1, max(of.newest, event.version)
        size = size_of(event)
        of.bytes[event.kind == ANCHOR] += size
        metrics = event.metrics
        found: dict[str, float] = {name: metrics[name] for name in ("encode_s", "upload_s") if name in metrics}
        if event.kind != ANCHOR and size and {"full_bytes", "density"} <= set(metrics):
            found |= {"ratio": metrics["full_bytes"] / size, "density": metrics["density"]}
        of.recent.append(found)

    def fold_status(self, status: WorkerStatus) -> None:
        """Take in a worker's status."""
        before = self._workers.get(status.worker)
        self._workers[status.worker] = status
        for taken in status.taken:
            if (of := self._of.get(taken.policy)) is not None:
                of.taken[status.worker, taken.version] = taken
                while len(of.taken) > MEDIAN_VERSIONS:
                    del of.taken[next(iter(of.taken))]
        if before is None or before.versions != status.versions:
            for policy, of in self._of.items():
                of.greatest_skew = max(
                    of.greatest_skew, _find_spread(self._find_served_versions(policy, status.updated_ms))
                )

    def _find_served_versions(self, policy: str, now_ms: int) -> list[int]:
        """Return the versions that live workers serve."""
        there = (one for one in self._workers.values() if is_alive(one, now_ms))
        return [one.versions[policy] for one in there if policy in one.versions]

    def figures(self, policy: str, now_ms: int) -> WeightsFigures:
        """Return a policy's figures; `now_ms` is wall time in ms since the epoch, to tell which workers are alive."""
        of, served = self._of[policy], self._find_served_versions(policy, now_ms)
        taken = list(of.taken.values())
        return WeightsFigures(
            published=of.published,
            left_out=max(0, of.newest - of.oldest + 1 - of.published) if of.published else 0,
            anchor_bytes=of.bytes[True],
            delta_bytes=of.bytes[False],
            **{
                name: median_of(one[name] for one in of.recent if name in one)
                for name in ("ratio", "density", "encode_s", "upload_s")
            },
            fetch_s=median_of(one.fetch_s for one in taken),
            verify_s=median_of(one.verify_s for one in taken),
            apply_s=median_of(one.apply_s for one in taken),
            pause_s=median_of(one.pause_s for one in taken),
            behind=max(0, of.newest - min(served, default=of.newest)),
            skew=_find_spread(served),
            greatest_skew=of.greatest_skew,
        )


def is_alive(worker: WorkerStatus, now_ms: int) -> bool:
    """Return whether a worker runs, by its newest status. A status from the future means a clock that was set back."""
    return worker.state != "stopped" and is_fresh(worker.updated_ms, now_ms)


def is_fresh(at_ms: int, now_ms: int) -> bool:
    """Return whether two times differ by less than the time between two heartbeats."""
    return abs(now_ms - at_ms) < FRESH_MS


def median_of(values: Iterable[float]) -> float | None:
    """Return the median; None if there are no values."""
    known = list(values)
    return median(known) if known else None


def _find_spread(versions: list[int]) -> int:
    return max(versions, default=0) - min(versions, default=0)
