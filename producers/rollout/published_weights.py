"""What a policy's weights topic announces, as far as a worker may still need it."""

from __future__ import annotations

from headrace.infra.weights.paths import ANCHOR, MERGED, RECENT_VERSIONS, is_version
from headrace.schemas.records import ClaimCheck, WeightsPublished


class PublishedWeights:
    """The recent versions of one policy, those before them back to an anchor, and further ways to these.

    One thread calls `take`; any thread may ask for the rest.
    """

    def __init__(self) -> None:
        self.head = -1
        """Newest version that was seen; -1 before the first."""
        self._versions: dict[int, WeightsPublished] = {}
        self._further: dict[ClaimCheck | None, WeightsPublished] = {}
        """Further ways between versions, by their objects, in the order in which they came."""

    def add_event(self, event: WeightsPublished) -> None:
        """Take in an event, and forget what nothing recent is made from."""
        if is_version(event):
            self._versions[event.version] = event
            self.head = max(self.head, event.version)
        else:
            self._further[event.weights] = event
        self._forget()

    def find_version(self, version: int) -> WeightsPublished | None:
        """Return the record of a version; None when it is forgotten or was never published."""
        return self._versions.get(version)

    def list_newest_first(self) -> list[WeightsPublished]:
        """Return the records of all versions, the newest first."""
        return [record for _, record in sorted(self._versions.copy().items(), reverse=True)]

    def find_newer(self, served: int, epoch: int) -> list[WeightsPublished]:
        """Return the versions to go to from the one that is served, the best first: none of an older epoch."""
        found = [one for one in self._versions.values() if one.version > served and one.epoch >= epoch]
        return sorted(found, key=lambda one: (-one.epoch, -one.version))

    def list_ways(self) -> list[WeightsPublished]:
        """Return all records from which a version may be made."""
        return [*self._versions.copy().values(), *self._further.copy().values()]

    def _forget(self) -> None:
        versions, further = self._versions, self._further
        if not versions:
            return
        oldest = sorted(versions)[-RECENT_VERSIONS:][0]
        anchors = [version for version, record in versions.items() if version <= oldest and record.kind == ANCHOR]
        for version in [version for version in versions if version < max(anchors, default=version)]:
            del versions[version]
        first = min(versions)
        kept = [claim for claim, record in further.items() if _first_version_needed(record) >= first][-RECENT_VERSIONS:]
        for claim in further.keys() - set(kept):
            del further[claim]


def _first_version_needed(record: WeightsPublished) -> int:
    """Return the first version that is needed for a further way to be of use."""
    return record.base_version if record.kind == MERGED else record.version
