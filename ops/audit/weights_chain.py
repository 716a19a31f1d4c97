"""Checks that the versions of a policy form a chain: hashes, epochs, events, checkpoints. No I/O.

A batch begins from the weights that the batch before it made: `base_hash` of version k is `weights_hash` of k - 1. If a
trainer could not make those weights again (on other hardware), the chain is cut, and `epoch` grows by one. Usually a
batch begins the new epoch. If the store has lost the objects of the newest version, so that no worker could play, an
anchor of that version begins it, and the next batch begins from its weights. Some hundred bytes are kept for every
version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace.ops.audit.problems import Problems
from headrace.ops.audit.trainer_positions import TrainerPositions


@dataclass(frozen=True, slots=True)
class ChainLink:
    """The facts about a version's weights in one record, and the record's position."""

    epoch: int
    base: str
    result: str
    where: str


class WeightsChain:
    """The versions of one policy; records of one topic come in its order.

    Args:
        policy: Name of the policy, or of the shadow as `policy.variant`.
        curated: Name of the curated topic, on which batches give the trainer's positions.
        steps: Its last version.
        earliest_end: The earliest last version of all recipes of the run; None if that is `steps`.
    """

    def __init__(self, policy: str, curated: str, steps: int, earliest_end: int | None = None) -> None:
        self.policy = policy
        self.steps = steps
        self._earliest_end = steps if earliest_end is None else earliest_end
        self.broken = Problems()
        """Problems of the chain that are found while the records are read."""
        self.positions = TrainerPositions(curated)
        self._batches: dict[int, ChainLink] = {}
        self._made_last: set[int] = set()
        """Versions that were the last ones by the recipe under which they were made."""
        self._unmarked: tuple[int, str] | None = None
        """Version and position of the newest event if it is the recipe's last version, but not marked as final."""
        self._events: dict[int, ChainLink] = {}
        self._bases: dict[int, int] = {}
        """Version that is published as a delta to the version that the delta is based on."""
        self._begun: dict[int, ChainLink] = {}
        """Anchors that publish an earlier version again, under the next epoch."""
        self._checkpoints: dict[int, ChainLink] = {}
        self._final: dict[int, str] = {}
        """Version before the end by any known recipe, but marked as final, to the position of its event."""
        self._sampled: dict[int, tuple[str, int, int]] = {}
        """Version that a group names to the first record that names it."""
        self._anchor = -1
        """Offset of the newest whole weights."""

    def fold_batch(self, version: int, link: ChainLink, *, is_last: bool = False) -> None:
        """Take in a record that made a version; `is_last` by the recipe revision of the record."""
        self._add_link(self._batches, version, link, "was trained")
        if is_last:
            self._made_last.add(version)

    def fold_event(self, version: int, link: ChainLink, base_version: int = -1, *, final: bool = False) -> None:
        """Record that a version is published: as a delta if `base_version` is a version; `final` if it is the last."""
        self._unmarked = (version, link.where) if version == self.steps and not final else None
        if final and version < self._earliest_end:
            self._final[version] = link.where
        before = self._begun.get(version) or self._events.get(version)
        is_newest = version == next(reversed(self._events), -1)
        if before is not None and is_newest and base_version < 0 and link.epoch == before.epoch + 1:
            self._begun[version] = link
            return
        self._add_link(self._events, version, link, "was published")
        if base_version >= 0:
            self._bases[version] = base_version

    def fold_anchor(self, offset: int) -> None:
        """Record the offset of whole weights."""
        self._anchor = offset

    def match_anchor(self, offset: int, where: str) -> None:
        """Take in the offset of the nearest whole weights that a delta names; -1 if it names none."""
        if 0 <= offset != self._anchor >= 0:
            self.broken.add_sentence(
                f"{where} names offset {offset} as its anchor, but the nearest whole weights are at offset "
                f"{self._anchor}"
            )

    def fold_whole(self, version: int, link: ChainLink) -> None:
        """Record that a version's weights were published again, whole; this comes after the version's event."""
        event = self._find_event(version)
        if event is None or (event.result, event.epoch) != (link.result, link.epoch):
            self.broken.add_sentence(
                f"the whole weights of version {version} of {self.policy} are {_shorten(link.result)} of epoch "
                f"{link.epoch}, but that version {_describe_event(event)}: {link.where}"
            )

    def fold_checkpoint(self, version: int, link: ChainLink) -> None:
        """Take in a pointer to a checkpoint; a later one of the same version replaces it."""
        self._checkpoints[version] = link

    def _add_link(self, links: dict[int, ChainLink], version: int, link: ChainLink, done: str) -> None:
        if version in links:
            first = links[version].where
            self.broken.add_sentence(f"version {version} of {self.policy} {done} twice: {first} and {link.where}")
            return
        newest = next(reversed(links), -1)
        if version < newest:
            self.broken.add_sentence(f"version {version} of {self.policy} {done} after version {newest}: {link.where}")
        links[version] = link

    def note_sampled(self, versions: Iterable[int], record_id: tuple[str, int, int]) -> None:
        """Take in the versions that a group of this policy names, and (topic, partition, offset) of its record."""
        for version in versions:
            if version >= 0:
                self._sampled.setdefault(version, record_id)

    @property
    def checkpoints(self) -> Iterable[int]:
        """Versions that have a checkpoint pointer."""
        return self._checkpoints.keys()

    @property
    def newest(self) -> int:
        """The newest version that was trained; -1 for none."""
        return max(self._batches, default=-1)

    def problems(self, *, still: bool, over: bool = False) -> Problems:
        """Return all problems of the chain.

        Args:
            still: Whether no process writes now; else events and checkpoints may be newer than the batches read.
            over: Whether no more versions will be made, so that the newest must be published.
        """
        found = Problems()
        found.extend(self.broken)
        # A later recipe may end the run at a version that was published when it was not the last one.
        if self._unmarked and self._unmarked[0] in self._made_last:
            found.add_sentence(f"the last version of {self.policy} is not marked as final: {self._unmarked[1]}")
        for version, where in self._final.items():
            # While the run goes on, a new recipe may have ended it there after the recipes were read.
            if still or version < self.newest:
                found.add_sentence(
                    f"version {version} of {self.policy} is marked as final, but no recipe of the run ends with it or "
                    f"before it: {where}"
                )
        here = (*self._find_gaps(), *self._find_cuts(), *self._find_wrong_bases(), *self._find_unpublished())
        for what in (*here, *self._find_disagreements(still=still), *self._find_left_out(still=still, over=over)):
            found.add_sentence(what)
        return found

    def _find_gaps(self) -> Iterator[str]:
        versions = sorted(self._batches)
        begin = min({*self._events, *self._checkpoints}, default=0)
        for before, version in zip([begin, *versions], versions, strict=False):
            if version > before + 1:
                gap = f"versions {before + 1} to {version - 1}" if version > before + 2 else f"version {before + 1}"
                following = f"the next batch record, {self._batches[version].where}, names version {version}"
                yield f"no batch record names {gap} of {self.policy}: {following}"

    def _find_cuts(self) -> Iterator[str]:
        for version in sorted(self._batches):
            link, before = self._batches[version], self._find_link_before(version)
            if before is None:
                continue
            name = f"version {version} of {self.policy}"
            if link.epoch == before.epoch and link.base != before.result:
                yield (
                    f"{name} was trained from weights {_shorten(link.base)}, but the version before it has weights "
                    f"{_shorten(before.result)}: {before.where} and {link.where}"
                )
            elif link.epoch not in (before.epoch, before.epoch + 1):
                yield (
                    f"{name} is of epoch {link.epoch}, but after a version of epoch {before.epoch} it can only be "
                    f"{before.epoch} or {before.epoch + 1}: {link.where}"
                )

    def _find_wrong_bases(self) -> Iterator[str]:
        """Yield the deltas whose base weights are not those of the version that they name."""
        for version, base in self._bases.items():
            link, before = self._events[version], self._find_event(base)
            if before is None or (before.result, before.epoch) != (link.base, link.epoch):
                yield (
                    f"version {version} of {self.policy} is a delta of epoch {link.epoch} on weights "
                    f"{_shorten(link.base)}, but its base, version {base}, {_describe_event(before)}: {link.where}"
                )

    def _find_left_out(self, *, still: bool, over: bool) -> Iterator[str]:
        """Yield the unpublished versions that must be published: those with a checkpoint, and the last."""
        published, newest = max(self._events, default=-1), max(self._batches, default=-1)
        for version, link in sorted(self._checkpoints.items()):
            if version not in self._events and (still or version < published):
                yield f"version {version} of {self.policy} has a checkpoint, but is not published: {link.where}"
        if over and newest > published and newest not in self._checkpoints:
            where = self._batches[newest].where
            yield f"version {newest} of {self.policy} is the last one, but is not published: {where}"

    def _find_unpublished(self) -> Iterator[str]:
        """Yield the versions that groups name and that were never published: no worker can have had them.

        That includes versions between two published ones that were only hashed. The events must be read after the
        groups. Without any event (groups copied to another cluster) nothing is said.
        """
        for version in sorted(self._sampled.keys() - self._events.keys()) if self._events else ():
            topic, partition, offset = self._sampled[version]
            yield f"version {version} of {self.policy} is not published, but {topic}[{partition}]@{offset} names it"

    def _find_event(self, version: int) -> ChainLink | None:
        """Return the newest event of a version; None if it is not published."""
        return self._begun.get(version) or self._events.get(version)

    def _find_epoch_anchor(self, version: int) -> ChainLink | None:
        """Return the anchor that begins a new epoch at a version of the epoch before."""
        event, batch = self._events.get(version), self._batches.get(version)
        if version in self._begun or event is None or batch is None or version in self._bases:
            return self._begun.get(version)
        return event if event.epoch == batch.epoch + 1 else None

    def _find_link_before(self, version: int) -> ChainLink | None:
        """Return the version from which the batch of a version began."""
        before = version - 1
        found = self._find_epoch_anchor(before) or self._batches.get(before) or self._events.get(before)
        return found or self._checkpoints.get(before)

    def _find_disagreements(self, *, still: bool) -> Iterator[str]:
        first, newest = min(self._events, default=0), max(self._batches, default=-1)
        for what, links in (("event", self._events), ("checkpoint", self._checkpoints)):
            for version, link in sorted(links.items()):
                batch = self._batches.get(version) or (self._events.get(version) if version == first else None)
                if batch is None:
                    if still or version <= newest:
                        yield f"no batch record names version {version} of {self.policy}, but {link.where} does"
                elif (batch.result, batch.epoch) != (link.result, link.epoch) and self._find_epoch_anchor(
                    version
                ) != link:
                    yield (
                        f"version {version} of {self.policy} has weights {_shorten(batch.result)} of epoch "
                        f"{batch.epoch} in {batch.where}, but weights {_shorten(link.result)} of epoch {link.epoch} "
                        f"in the {what} {link.where}"
                    )


def _describe_event(event: ChainLink | None) -> str:
    """Return the weights of a version's event, after the version's name."""
    return "is not published" if event is None else f"has weights {_shorten(event.result)} of epoch {event.epoch}"


def _shorten(weights_hash: str) -> str:
    return weights_hash[:12] or "without a hash"
