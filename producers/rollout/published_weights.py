"""The records of a policy's weights topic that a worker may still need."""

from __future__ import annotations

from headrace.infra.weights.paths import ANCHOR, DELTA, RECENT_VERSIONS, is_version, is_whole
from headrace.schemas.records import ClaimCheck, WeightsPublished


class PublishedWeights:
    """The recent versions of one policy, earlier versions back to an anchor, and whole weights of them again.

    One thread calls `add_event`; any thread may call the other methods.
    """

    def __init__(self) -> None:
        self.head = -1
        """Newest version seen; -1 before the first."""
        self._versions: dict[int, WeightsPublished] = {}
        self._further: dict[ClaimCheck | None, WeightsPublished] = {}
        """Records of versions that were published again as whole weights, by their objects, in order of arrival."""

    def add_event(self, event: WeightsPublished) -> None:
        """Take in a record, and forget records that no recent version needs."""
        if is_version(event):
            self._versions[event.version] = event
            self.head = max(self.head, event.version)
        elif is_whole(event):
            self._further[event.weights] = event
        self._forget()

    def find_version(self, version: int) -> WeightsPublished | None:
        """Return the record of a version; None if it is forgotten or was never published."""
        return self._versions.get(version)

    def list_newest_first(self) -> list[WeightsPublished]:
        """Return the records of all versions, the newest first."""
        return [record for _, record in sorted(self._versions.copy().items(), reverse=True)]

    def find_newer(self, served: int, epoch: int) -> list[WeightsPublished]:
        """Return the versions to load after the served one, the best first, without those of an older epoch."""
        found = [one for one in self._versions.values() if one.version > served and one.epoch >= epoch]
        return sorted(found, key=lambda one: (-one.epoch, -one.version))

    def list_ways(self) -> list[WeightsPublished]:
        """Return all records from which a version can be made."""
        return [*self._versions.copy().values(), *self._further.copy().values()]

    def _forget(self) -> None:
        versions, further = self._versions, self._further
        if not versions:
            return
        oldest = sorted(versions)[-RECENT_VERSIONS:][0]
        anchors = [version for version, record in versions.items() if version <= oldest and record.kind == ANCHOR]
        for version in [version for version in versions if version < max(anchors, default=version)]:
            del versions[version]
        first = versions[min(versions)]
        needed = first.base_version if first.kind == DELTA else first.version
        kept = [claim for claim, record in further.items() if record.version >= needed][-RECENT_VERSIONS:]
        for claim in further.keys() - set(kept):
            del further[claim]
