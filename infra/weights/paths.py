"""The cheapest way from the weights that are held to the weights that are wanted, by objects in the store."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.infra.weights.delta_header import Header
from headrace.schemas.records import CheckpointPointer, ClaimCheck, WeightsPublished

ANCHOR, DELTA, MERGED, WHOLE = "anchor", "delta", "merged", "whole"
"""Kinds of a WeightsPublished. The last two publish no version. A merged delta is of an older run, and readers skip it:
it stands for several deltas that are there, too."""
KINDS = frozenset({ANCHOR, DELTA, WHOLE})
"""Kinds that are read."""
RECENT_VERSIONS = 64
"""Versions that a worker begins with, and what is before them back to an anchor; `headrace gc` keeps no fewer."""
NO_BASE = ""
"""Base hash of whole weights, which need no base."""
Object = TypeVar("Object")


@dataclass(frozen=True, slots=True)
class Link(Generic[Object]):
    """An object that changes one set of weights into another, each named by its hash."""

    source: str
    target: str
    size_bytes: int
    of: Object
    """The record or object that names it."""


def is_version(event: WeightsPublished) -> bool:
    """Return whether an event publishes a version."""
    return event.kind not in {MERGED, WHOLE}


def find_newest_events(events: Iterable[WeightsPublished]) -> dict[int, WeightsPublished]:
    """Return the newest event of each version: training continues from a version as it was last published."""
    return {event.version: event for event in events if is_version(event)}


def is_whole(event: WeightsPublished) -> bool:
    """Return whether an event's object contains all of a version's weights."""
    return event.kind in {ANCHOR, WHOLE}


def link_of(event: WeightsPublished) -> Link[WeightsPublished] | None:
    """Return the link of an event's object; None for an event without an object, or of an unknown kind or size."""
    if event.weights is None or event.kind not in KINDS or not event.weights_hash:
        return None
    if any(claim.size_bytes < 0 for claim in list_claims(event)):  # going round a circle would become ever cheaper
        return None
    source = NO_BASE if is_whole(event) else event.base_hash
    return Link(source, event.weights_hash, size_of(event), event)


def list_claims(record: WeightsPublished | CheckpointPointer) -> list[ClaimCheck]:
    """Return the claim checks of a version or a checkpoint: one, or an index and the objects that it names, or none."""
    if isinstance(record, WeightsPublished):
        whole, parts = record.weights, record.shards
    else:
        whole, parts = record.checkpoint, record.parts
    return [claim for claim in (whole, *(part.claim for part in parts)) if claim is not None]


def size_of(event: WeightsPublished) -> int:
    """Return the bytes of an event's objects."""
    return sum(claim.size_bytes for claim in list_claims(event))


def describe_mislabelling(header: Header, event: WeightsPublished) -> str:
    """Return in which values the header of a delta differs from its event; an empty text if in none."""
    values = {name: getattr(header.label, name) for name in ("policy", "epoch", "base_version", "version")}
    values |= {"base_hash": header.base_hash, "weights_hash": header.weights_hash}
    wrong = {name: value for name, value in values.items() if value != getattr(event, name)}
    return ", ".join(f"{name} is {value!r} instead of {getattr(event, name)!r}" for name, value in wrong.items())


def find_cheapest_path(links: Iterable[Link[Object]], held: str, target: str) -> list[Link[Object]] | None:
    """Return the links from `held` (or from nothing) to `target` with the fewest bytes; None when there are none.

    Dijkstra's algorithm; of two ways of equal size the one with fewer objects. Empty when `target` is held.
    """
    leaving: defaultdict[str, list[Link[Object]]] = defaultdict(list)
    for link in links:
        leaving[link.source].append(link)
    came: dict[str, Link[Object]] = {}
    best = {NO_BASE: (0, 0), held: (0, 0)}
    queue = [(cost, name) for name, cost in best.items()]
    heapq.heapify(queue)
    while queue:
        (size, count), here = heapq.heappop(queue)
        if here == target:
            break
        if (size, count) > best[here]:
            continue
        for link in leaving[here]:
            cost = (size + link.size_bytes, count + 1)
            if link.target not in best or cost < best[link.target]:
                best[link.target], came[link.target] = cost, link
                heapq.heappush(queue, (cost, link.target))
    if target not in best or not target:
        return None
    way: list[Link[Object]] = []
    while target in came:
        way.append(came[target])
        target = came[target].source
    return way[::-1]
