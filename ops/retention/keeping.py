"""Which versions' weights and checkpoints a run still needs. No I/O.

Both rules consider only records that were written before a moment, by default a day ago. So a version that is no longer
among the newest was replaced at least a day ago, and workers that had begun to fetch it have had that day.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from headrace.infra.run.retired import Ranges
from headrace.infra.weights.paths import ANCHOR, RECENT_VERSIONS


@dataclass(frozen=True, slots=True)
class WrittenVersion:
    """A published version, or a checkpoint, according to its record."""

    epoch: int
    written_ms: int
    """When the record was written, in ms since the epoch."""
    kind: str = ""
    """Kind of weights: anchor or delta."""


def weights_to_retire(
    versions: Mapping[int, WrittenVersion],
    checkpoints: Collection[int],
    keep: int,
    before_ms: int,
    best: int | None = None,
) -> set[int]:
    """Return the versions with weights that nothing needs.

    The kept versions are: the first; the newest `keep` and those before them back to an anchor, because workers begin
    with these; the best, also back to an anchor; and anchors at a kept checkpoint, which is several times as large.

    Args:
        versions: All published versions.
        checkpoints: Versions of the checkpoints that are kept.
        keep: Number of the newest versions to keep; at least the number that workers need.
        before_ms: Versions that were written later are kept, and not counted.
        best: Version with the highest held-out reward; None if there is none.
    """
    settled = sorted(version for version, one in versions.items() if one.written_ms <= before_ms)
    newest = settled[-max(keep, RECENT_VERSIONS) :]
    anchors = [version for version in settled if versions[version].kind == ANCHOR]
    begin = max((version for version in anchors if version <= newest[0]), default=None) if newest else None
    if begin is None:
        return set()
    spared = {settled[0], *(version for version in anchors if version in checkpoints)}
    if best is not None:
        spared.update(range(max((version for version in anchors if version <= best), default=settled[0]), best + 1))
    return {version for version in settled if version < begin} - spared


def checkpoints_to_retire(checkpoints: Mapping[int, WrittenVersion], keep: int, before_ms: int) -> set[int]:
    """Return the checkpoints that are not among the newest `keep`.

    The first checkpoint is always kept, and so is the newest of every epoch: the next epoch began from it, on other
    hardware, and cannot be made again from an earlier one.
    """
    settled = sorted(version for version, one in checkpoints.items() if one.written_ms <= before_ms)
    last_of_epoch = {checkpoints[version].epoch: version for version in sorted(checkpoints)}
    return set(settled[:-keep]) - set(settled[:1]) - set(last_of_epoch.values())


def find_retired_ranges(versions: Iterable[int], retired: Collection[int]) -> Ranges:
    """Return the retired ones of these versions, as ranges that contain no other of these versions."""
    found: list[tuple[int, int]] = []
    goes_on = False
    for version in sorted(versions):
        if version not in retired:
            goes_on = False
        elif goes_on:
            found[-1] = (found[-1][0], version)
        else:
            found.append((version, version))
            goes_on = True
    return tuple(found)
