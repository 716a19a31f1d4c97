"""Which deltas of a policy are due to be merged: a fold over its WeightsPublished, in the order of the topic. No I/O.

The deltas after the newest anchor are one stretch; each is based on the one before. A merged delta leads from the
anchor to a version of the stretch. The next merged delta is made of the last one and of the deltas after it, so that
each object is read once. If the chain has a gap, or an object is bad, nothing is merged until the next anchor: a
joining worker cannot get past that place either.
"""

from __future__ import annotations

from headrace.infra.weights.paths import DELTA, MERGED, is_whole
from headrace.schemas.records import ClaimCheck, WeightsPublished

EVERY = 16
"""Largest number of deltas that a joining worker takes one by one."""


class Compaction:
    """The stretch of deltas after one policy's newest anchor.

    Args:
        every: Deltas are merged as soon as more than this number are in no merged delta.
    """

    def __init__(self, every: int = EVERY) -> None:
        self.left_out = ""
        """Why nothing is merged before the next anchor; empty if merging is possible."""
        self._every = every
        self._anchor: WeightsPublished | None = None
        self._deltas: list[WeightsPublished] = []
        self._merged: WeightsPublished | None = None
        self._refused: set[ClaimCheck] = set()

    def fold_event(self, event: WeightsPublished) -> None:
        """Take in the next event of the policy's topic; a repeated event counts once."""
        if is_whole(event):
            self._anchor, self._deltas, self._merged, self.left_out = event, [], None, ""
        elif self._anchor is not None and event.kind == DELTA:
            self._add_delta(event, (self._deltas or [self._anchor])[-1])
        elif self._anchor is not None and event.kind == MERGED:
            self._set_merged(event, self._anchor)

    def _add_delta(self, event: WeightsPublished, last: WeightsPublished) -> None:
        if event.version <= last.version:
            return
        if event.weights is None or (event.base_hash, event.epoch) != (last.weights_hash, last.epoch):
            what = "has no object" if event.weights is None else f"is not based on version {last.version}"
            self.stop_until_anchor(f"the delta of version {event.version} {what}")
            return
        self._deltas.append(event)

    def _set_merged(self, event: WeightsPublished, anchor: WeightsPublished) -> None:
        reached = {delta.version: delta.weights_hash for delta in self._deltas}
        if (
            (event.base_hash, event.epoch) == (anchor.weights_hash, anchor.epoch)
            and reached.get(event.version) == event.weights_hash
            and event.weights is not None
            and event.weights not in self._refused
            and (self._merged is None or event.version > self._merged.version)
        ):
            self._merged = event

    def deltas_to_merge(self) -> tuple[WeightsPublished, ...]:
        """Return the objects to merge now, in order: the last merged delta, if there is one, and later deltas."""
        covered = self._merged.version if self._merged else -1
        rest = tuple(delta for delta in self._deltas if delta.version > covered)
        if len(rest) <= self._every:
            return ()
        return (self._merged, *rest) if self._merged else rest

    def explain_no_merge(self) -> str:
        """Return why nothing is to be merged now."""
        if self.left_out:
            return f"merging waits for the next anchor (whole weights): {self.left_out}"
        if self._anchor is None:
            return "no version is published yet"
        since = self._merged or self._anchor
        count = sum(delta.version > since.version for delta in self._deltas)
        newer = "one delta is newer" if count == 1 else f"{count} deltas are newer"
        which = "where the last merged delta ends" if self._merged else "the last anchor (whole weights)"
        return (
            f"{newer} than version {since.version}, {which}; deltas are merged when more than {self._every} are not "
            "merged yet (--every)"
        )

    def mark_bad(self, event: WeightsPublished, why: str) -> None:
        """Record that an object of `deltas_to_merge` is bad. A bad merged delta can be replaced by its parts."""
        if event.kind == MERGED and event.weights is not None:
            self._merged = None
            self._refused.add(event.weights)
        else:
            self.stop_until_anchor(why)

    def stop_until_anchor(self, why: str) -> None:
        """Merge nothing before the next anchor."""
        self._anchor, self._deltas, self._merged, self.left_out = None, [], None, why
