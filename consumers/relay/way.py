"""Which published weights a region still needs: the cheapest way from what it has to the newest version. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.infra.weights.paths import NO_BASE, find_cheapest_path, is_version, is_whole, link_of
from headrace.schemas.records import WeightsPublished


@dataclass(frozen=True, slots=True)
class Published:
    """An event of a weights topic at home."""

    offset: int
    event: WeightsPublished


class RelayWay:
    """The events of one policy at home, as far as a way to the newest version may need them.

    Args:
        held: `weights_hash` of the newest version that the region has; empty for none.
        relayed: Offset at home of the event of that version; -1 for none.
    """

    def __init__(self, held: str = NO_BASE, relayed: int = -1) -> None:
        self.held, self.relayed = held, relayed
        self._events: list[Published] = []
        self._lost = set[int]()
        """Offsets at home of the events whose objects are lost there."""

    def fold_event(self, offset: int, event: WeightsPublished) -> None:
        """Take in an event, in the order of the topic, from the beginning on."""
        if link_of(event) is not None:
            self._events.append(Published(offset, event))

    def note_relayed(self, one: Published) -> None:
        """Note that the region has an event, and forget the events before the whole weights that it needs."""
        self.relayed = one.offset
        if is_version(one.event):
            self.held = one.event.weights_hash
        whole = [at for at, known in enumerate(self._events) if is_whole(known.event) and known.offset <= one.offset]
        del self._events[: whole[-1] if whole else 0]

    def leave_out(self, one: Published) -> None:
        """Note that an object of an event is lost at home: no way goes over it any more."""
        self._lost.add(one.offset)

    def plan(self) -> list[Published]:
        """Return the events to relay now, in order; empty if the region has the newest version.

        Versions that are not on the cheapest way are left out: a region that was cut off for a hundred versions
        fetches whole weights and the deltas after them, not a hundred deltas.
        """
        newer = [one for one in self._events if one.offset > self.relayed and is_version(one.event)]
        if not newer:
            return []
        there = (one for one in self._events if one.offset not in self._lost)
        links = {one.offset: link for one in there if (link := link_of(one.event)) is not None}
        way = find_cheapest_path(links.values(), self.held, newer[-1].event.weights_hash)
        offsets = {id(link): offset for offset, link in links.items()}
        found = [Published(offsets[id(link)], link.of) for link in way or ()]
        return sorted(found, key=lambda one: one.offset)
