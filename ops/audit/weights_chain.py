"""Whether the versions of a policy hang together: hashes, epochs, events, checkpoints, positions. No I/O.

A batch begins from the weights that the batch before it gave: `base_hash` of version k is `weights_hash` of k - 1.
Where a trainer could not come back to those weights (other hardware) the chain is cut, and `epoch` grows by one.
Some hundred bytes are kept of every version, of which there is one to many groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from headrace.ops.audit.problems import Problems


@dataclass(frozen=True, slots=True)
class Link:
    """What a record says of a version's weights, and where it stands."""

    epoch: int
    base: str
    result: str
    place: str


class WeightsChain:
    """The versions of one policy; records of one topic come in the order in which they stand there.

    Args:
        policy: Whose, or the shadow's, `policy.variant`.
        curated: Name of the curated topic, whose positions the batches tell.
    """

    def __init__(self, policy: str, curated: str) -> None:
        self.policy = policy
        self.broken = Problems()
        """What is wrong with the chain, as far as it shows while the records come."""
        self.backwards = Problems()
        """Positions that went back."""
        self._curated = curated
        self._batches: dict[int, Link] = {}
        self._events: dict[int, Link] = {}
        self._bases: dict[int, int] = {}
        """Of versions that are published as deltas, the version that each is one on."""
        self._checkpoints: dict[int, Link] = {}
        self._positions: dict[int, int] = {}

    def batch(self, version: int, link: Link) -> None:
        """Take in a record that made a version."""
        self._take(self._batches, version, link, "was trained")

    def event(self, version: int, link: Link, base_version: int = -1) -> None:
        """Take in the word that a version is published; as a delta when `base_version` is one."""
        self._take(self._events, version, link, "was published")
        if base_version >= 0:
            self._bases[version] = base_version

    def merged(self, version: int, link: Link, base_version: int) -> None:
        """Take in that the deltas between two versions are there as one, which is said after both are published."""
        for which, said in ((base_version, link.base), (version, link.result)):
            event = self._events.get(which)
            if event is None or (event.result, event.epoch) != (said, link.epoch):
                found = "is not published" if event is None else f"is {_short(event.result)} of epoch {event.epoch}"
                self.broken.say(
                    f"the merged delta of versions {base_version} to {version} of {self.policy} takes version {which} "
                    f"for {_short(said)} of epoch {link.epoch}, and it {found}: {link.place}"
                )

    def checkpoint(self, version: int, link: Link) -> None:
        """Take in a pointer to a checkpoint; a later one of the same version replaces it."""
        self._checkpoints[version] = link

    def _take(self, links: dict[int, Link], version: int, link: Link, done: str) -> None:
        if version in links:
            first = links[version].place
            self.broken.say(f"version {version} of {self.policy} {done} twice: {first} and {link.place}")
            return
        newest = next(reversed(links), -1)
        if version < newest:
            self.broken.say(f"version {version} of {self.policy} {done} after version {newest}: {link.place}")
        links[version] = link

    def positions(self, positions: Iterable[tuple[int, int]], place: str) -> None:
        """Take in how far the trainer had read the curated topic: (partition, offset)."""
        for partition, offset in positions:
            before = self._positions.get(partition, 0)
            if offset < before:
                where = f"{self._curated}[{partition}]"
                self.backwards.say(f"the trainer's position on {where} went back from {before} to {offset}: {place}")
            self._positions[partition] = offset

    @property
    def newest(self) -> int:
        """The newest version that was trained; -1 for none."""
        return max(self._batches, default=-1)

    @property
    def last_positions(self) -> Mapping[int, int]:
        """Partition of the curated topic to the trainer's next offset, as last told."""
        return self._positions

    def problems(self, *, still: bool, over: bool = False) -> Problems:
        """Return what is wrong with the chain of all that was taken in.

        Args:
            still: Whether nobody writes now; else events and checkpoints may be newer than the batches that were read.
            over: Whether no version comes any more, so that the newest is published.
        """
        found = Problems()
        found.extend(self.broken)
        here = (*self._gaps(), *self._cuts(), *self._loose())
        for what in (*here, *self._disagreements(still=still), *self._left_out(still=still, over=over)):
            found.say(what)
        return found

    def _gaps(self) -> Iterator[str]:
        versions = sorted(self._batches)
        begin = min({*self._events, *self._checkpoints}, default=0)
        for before, version in zip([begin, *versions], versions, strict=False):
            if version > before + 1:
                gap = f"versions {before + 1} to {version - 1}" if version > before + 2 else f"version {before + 1}"
                yield f"no batch record tells of {gap} of {self.policy}: {self._batches[version].place} follows"

    def _cuts(self) -> Iterator[str]:
        for version in sorted(self._batches):
            link, before = self._batches[version], self._before(version)
            if before is None:
                continue
            name = f"version {version} of {self.policy}"
            if link.epoch == before.epoch and link.base != before.result:
                yield (
                    f"{name} was trained from weights {_short(link.base)}, and the version before it is "
                    f"{_short(before.result)}: {before.place} and {link.place}"
                )
            elif link.epoch not in (before.epoch, before.epoch + 1):
                yield f"{name} is of epoch {link.epoch}, the version before of {before.epoch}: {link.place}"

    def _loose(self) -> Iterator[str]:
        """Deltas on other weights than those of the version that they name."""
        for version, base in self._bases.items():
            link, before = self._events[version], self._events.get(base)
            if before is None or (before.result, before.epoch) != (link.base, link.epoch):
                found = "is not published" if before is None else f"is {_short(before.result)} of epoch {before.epoch}"
                yield (
                    f"version {version} of {self.policy} is a delta of epoch {link.epoch} on {_short(link.base)}, and "
                    f"version {base}, which it names, {found}: {link.place}"
                )

    def _left_out(self, *, still: bool, over: bool) -> Iterator[str]:
        """Versions that are not published and had to be: those with a checkpoint, and the last."""
        published, newest = max(self._events, default=-1), max(self._batches, default=-1)
        for version, link in sorted(self._checkpoints.items()):
            if version not in self._events and (still or version < published):
                yield f"version {version} of {self.policy} has a checkpoint and is not published: {link.place}"
        if over and newest > published and newest not in self._checkpoints:
            place = self._batches[newest].place
            yield f"version {newest} of {self.policy} is the last one and is not published: {place}"

    def _before(self, version: int) -> Link | None:
        return self._batches.get(version - 1) or self._events.get(version - 1) or self._checkpoints.get(version - 1)

    def _disagreements(self, *, still: bool) -> Iterator[str]:
        first, newest = min(self._events, default=0), max(self._batches, default=-1)
        for what, links in (("event", self._events), ("checkpoint", self._checkpoints)):
            for version, link in sorted(links.items()):
                batch = self._batches.get(version) or (self._events.get(version) if version == first else None)
                if batch is None:
                    if still or version <= newest:
                        yield f"no batch record tells of version {version} of {self.policy}: {link.place} does"
                elif (batch.result, batch.epoch) != (link.result, link.epoch):
                    yield (
                        f"version {version} of {self.policy} is {_short(batch.result)} of epoch {batch.epoch} by "
                        f"{batch.place}, and {_short(link.result)} of epoch {link.epoch} by the {what} {link.place}"
                    )


def _short(weights_hash: str) -> str:
    return weights_hash[:12] or "without a hash"
