"""Every published version of a policy, from its events and the reports of workers: `headrace weights`.

`WeightsHistory` is what `--json` prints, field by field.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.infra.run.retired import WEIGHTS, Retired, read_retired
from headrace.infra.run.run import Run
from headrace.infra.weights.paths import (
    ANCHOR,
    DELTA,
    MERGED,
    NO_BASE,
    WHOLE,
    find_cheapest_path,
    is_version,
    link_of,
    size_of,
)
from headrace.ledger.follow import ask_ledger
from headrace.ledger.ledger import Ledger
from headrace.ledger.liveness import is_alive
from headrace.ops.figures.weights_figures import median_of
from headrace.ops.figures.workers import list_workers
from headrace.schemas import codec
from headrace.schemas.ids import now_ms
from headrace.schemas.records import TakenWeights, WeightsPublished, WorkerStatus


@dataclass(frozen=True, slots=True)
class MergedDelta:
    """Several deltas as one object, for a worker that joins many versions late."""

    base_version: int
    version: int
    bytes: int
    created_ms: int
    """Wall time in ms since the epoch."""


@dataclass(frozen=True, slots=True)
class VersionWeights:
    """How one version was published."""

    version: int
    epoch: int
    kind: str
    """anchor | delta."""
    base_version: int
    """Version that a delta is based on; -1 for an anchor."""
    bytes: int
    """Bytes of the object."""
    full_bytes: int
    """Bytes of the weights themselves; 0 if the event does not give them."""
    density: float | None
    """Share of the values that changed since the base."""
    encode_s: float | None
    """Seconds to make hash, delta and layout."""
    upload_s: float | None
    workers: int
    """Number of workers that reported how they took it. The seconds below are medians over them; None for none."""
    fetch_s: float | None
    verify_s: float | None
    apply_s: float | None
    pause_s: float | None
    """Seconds in which the engine generated nothing."""
    weights_hash: str
    created_ms: int
    """Wall time in ms since the epoch."""
    retired: bool
    """Whether `headrace gc` has deleted its object, or is about to."""
    ratio: float | None
    """Size of the whole weights divided by that of the object."""


@dataclass(frozen=True, slots=True)
class Join:
    """The objects that a worker without weights fetches to get to the newest version."""

    objects: int
    bytes: int


@dataclass(frozen=True, slots=True)
class WeightsHistory:
    """All versions of one policy."""

    run: str
    policy: str
    versions: tuple[VersionWeights, ...]
    left_out: tuple[int, ...]
    """Number of versions that were made and not published."""
    merged: tuple[MergedDelta, ...]
    bytes: dict[str, int]
    """Kind of object (anchor, delta, merged, whole) to bytes."""
    join: Join
    served: dict[str, int]
    """Running worker to the version that it serves."""


def weights_history(run: Run, policy: str | None, ledger: Path | None = None) -> WeightsHistory:
    """Return how the versions of a policy were published. Raises UsageError, KafkaAway or KafkaRefused.

    `ledger` is the file of the run's ledger; None to read its topics into memory.
    """
    name, retired = run.resolve(policy), read_retired(run)
    return ask_ledger(run, ledger, lambda one: _build_history(run.address.run, one, name, retired))


def _build_history(run: str, ledger: Ledger, name: str, retired: Retired) -> WeightsHistory:
    trained = {version for (version,) in ledger.query("SELECT version FROM batch WHERE variant = ?", name)}
    rows = ledger.query("SELECT value FROM weights WHERE variant = ? ORDER BY version, id", name)
    events = [codec.decode(value, WeightsPublished) for (value,) in rows]
    reported = _collect_reports(ledger, name)
    versions = [
        _describe_version(event, reported[event.version], retired=retired.has_version(name, WEIGHTS, event.version))
        for event in events
        if is_version(event)
    ]
    merged = [_describe_merged(event) for event in events if event.kind == MERGED]
    way = (
        find_cheapest_path([link for event in events if (link := link_of(event))], NO_BASE, _find_newest_hash(versions))
        or []
    )
    published = {one.version for one in versions}
    return WeightsHistory(
        run=run,
        policy=name,
        versions=tuple(versions),
        left_out=tuple(sorted(version for version in trained - published if version >= 0)),
        merged=tuple(merged),
        bytes={kind: sum(one.bytes for one in versions if one.kind == kind) for kind in (ANCHOR, DELTA)}
        | {MERGED: sum(one.bytes for one in merged)}
        | {WHOLE: sum(size_of(event) for event in events if event.kind == WHOLE)},
        join=Join(len(way), sum(link.size_bytes for link in way)),
        served=versions_by_worker(list_workers(ledger), name, now_ms()),
    )


def versions_by_worker(statuses: Iterable[WorkerStatus], policy: str, now_ms: int) -> dict[str, int]:
    """Return live worker to the version that it serves; `now_ms` is wall time in ms since the epoch."""
    newest = {one.worker: one for one in statuses}
    there = {name: one for name, one in sorted(newest.items()) if is_alive(one, now_ms)}
    return {name: one.versions[policy] for name, one in there.items() if policy in one.versions}


def _collect_reports(ledger: Ledger, policy: str) -> defaultdict[int, list[TakenWeights]]:
    """Return version to the reports of workers of how they took the version."""
    reported: defaultdict[int, list[TakenWeights]] = defaultdict(list)
    rows = ledger.query("SELECT version, fetch_s, verify_s, apply_s, pause_s FROM taken WHERE policy = ?", policy)
    for version, fetch_s, verify_s, apply_s, pause_s in rows:
        taken = TakenWeights(policy, version, 0, fetch_s, verify_s, apply_s, pause_s)
        reported[version].append(taken)
    return reported


def _find_newest_hash(versions: Sequence[VersionWeights]) -> str:
    return versions[-1].weights_hash if versions else NO_BASE


def _describe_merged(event: WeightsPublished) -> MergedDelta:
    return MergedDelta(event.base_version, event.version, size_of(event), event.created_ms)


def _describe_version(event: WeightsPublished, taken: list[TakenWeights], *, retired: bool) -> VersionWeights:
    size, full = size_of(event), int(event.metrics.get("full_bytes", 0))
    return VersionWeights(
        version=event.version,
        epoch=event.epoch,
        kind=event.kind,
        base_version=event.base_version,
        bytes=size,
        full_bytes=full,
        density=event.metrics.get("density"),
        encode_s=event.metrics.get("encode_s"),
        upload_s=event.metrics.get("upload_s"),
        workers=len(taken),
        fetch_s=median_of(one.fetch_s for one in taken),
        verify_s=median_of(one.verify_s for one in taken),
        apply_s=median_of(one.apply_s for one in taken),
        pause_s=median_of(one.pause_s for one in taken),
        weights_hash=event.weights_hash,
        created_ms=event.created_ms,
        retired=retired,
        ratio=full / size if full and size else None,
    )
