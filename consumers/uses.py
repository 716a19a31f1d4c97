"""What one partition has curated, as far as it may be asked for again: identity, place and uses of the newest groups.

A replay names its first use by how many curated records ago that was written. That is a function of the partition's
records in order, as an offset is not: live, replayed and archived runs count alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from consumers.algorithms.chain import ChainError
from consumers.algorithms.contract import Again
from schemas.headers import Stamp

Numbered = tuple[str, int]
"""(stream, number)."""


@dataclass(slots=True)
class _Curated:
    at: int
    """How many curated records the partition had before it."""
    uses: int
    """How often it was curated."""
    stamp: Stamp
    """Of its first use."""


class Uses:
    """Of each recipe revision's chain the newest groups that it kept: as many as it may ask for again.

    Each takes some 500 bytes, and 60 of a snapshot.
    """

    def __init__(self, run_id: str, policy: str) -> None:
        self._run_id, self._policy = run_id, policy
        self._count = 0
        """Curated records of the partition."""
        self._groups: dict[int, dict[Numbered, _Curated]] = {}

    def add(self, stamp: Stamp, capacity: int) -> None:
        """Take in a group that was kept, by the stamp of its curated record.

        `capacity` is that of the chain that kept it.
        """
        if capacity:
            groups = self._groups.setdefault(stamp.revision, {})
            groups[stamp.stream, stamp.number] = _Curated(self._count, 1, stamp)
            for oldest in list(islice(groups, max(0, len(groups) - capacity))):
                del groups[oldest]
        self._count += 1

    def again(self, again: Again, revision: int) -> tuple[Stamp, int]:
        """Take in a replay that the chain of a revision asks for.

        Return the stamp of its curated record, and how many curated records ago the first use was written. Raises
        ChainError for one that cannot be trained on, and for one that is not the next use of a group that is known.
        """
        use, name = again.use, f"{again.use.stream}:{again.use.number}"
        members = range(len(again.rewards))
        if not again.kept or not all(index in members for index in again.kept) or not 0 <= again.weight <= 1:
            raise ChainError(
                f"use {use.use} of {name} was asked for with {len(members)} rewards, {again.kept[:8]} kept, and a "
                f"weight of {again.weight}: some must be kept, of those that there are, at a weight of 0 to 1"
            )
        known = self._groups.get(revision, {}).get((use.stream, use.number))
        if known is None:
            raise ChainError(
                f"use {use.use} of {name} was asked for, which is none of the {len(self._groups.get(revision, {}))} "
                "groups that may be: what a chain keeps at its end, the newest `capacity` of them, and that of the "
                "algorithm that has the largest"
            )
        if use.use != known.uses:
            raise ChainError(f"use {use.use} of {name} was asked for, and it is use {known.uses} that comes next")
        back = self._count - known.at
        known.uses += 1
        self._count += 1
        return replace(known.stamp, use=use.use, min_version=again.min_version), back

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON."""
        groups = {str(revision): [_row(one) for one in known.values()] for revision, known in self._groups.items()}
        return {"count": self._count, "groups": groups}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what `snapshot` returned."""
        self._count = state["count"]
        self._groups = {
            int(revision): {(row[0], row[1]): self._known(int(revision), row) for row in rows}
            for revision, rows in state["groups"].items()
        }

    def _known(self, revision: int, row: list[Any]) -> _Curated:
        stream, number, at, uses, attempt, low, high, head = row
        stamp = Stamp(
            run_id=self._run_id,
            stream=stream,
            number=number,
            attempt=attempt,
            revision=revision,
            policy=self._policy,
            min_version=low,
            max_version=high,
            head_version=head,
        )
        return _Curated(at, uses, stamp)


def _row(known: _Curated) -> list[str | int]:
    stamp = known.stamp
    versions = (stamp.min_version, stamp.max_version, stamp.head_version)
    return [stamp.stream, stamp.number, known.at, known.uses, stamp.attempt, *versions]
