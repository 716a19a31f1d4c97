"""Which versions' weights and checkpoints a run still needs. No I/O.

Both rules look at the records that were written before a moment, by default a day ago, as if they were all: what left
the newest then has had that day to be fetched by workers that had begun to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from headrace.infra.run.retired import Ranges
from headrace.infra.weights.paths import ANCHOR, RECENT_VERSIONS


@dataclass(frozen=True, slots=True)
class WrittenVersion:
    """A version that was published, or a checkpoint that was taken, according to its record."""

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

    Kept are the first version; the newest `keep` and what is before them back to an anchor, as a worker begins with
    them; the best version, back to an anchor too; and whole weights at a checkpoint that is kept, which is several
    times as large.

    Args:
        versions: All that were published.
        checkpoints: Versions of the checkpoints that are kept.
        keep: Number of the newest to keep; a worker's own number if that is more.
        before_ms: Records that were written later are kept, and not counted.
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

    The first is kept for ever, and so is the newest of every epoch: the next one was begun from it, on other hardware,
    and can be made again from no earlier one.
    """
    settled = sorted(version for version, one in checkpoints.items() if one.written_ms <= before_ms)
    last_of_epoch = {checkpoints[version].epoch: version for version in sorted(checkpoints)}
    return set(settled[:-keep]) - set(settled[:1]) - set(last_of_epoch.values())


def ranges_of(versions: Iterable[int], retired: Collection[int]) -> Ranges:
    """Return which of some versions are retired, as ranges that hold no other of them."""
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
