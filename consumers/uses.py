"""What one partition has curated, as far as it may be asked for again: identity, place and uses of groups.

A replay names its first use by how many curated records ago that was written. That is a function of the partition's
records in order, as an offset is not: live, replayed and archived runs count alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from consumers.algorithms.chain import Chain, ChainError
from consumers.algorithms.contract import Again
from schemas.headers import Stamp

Numbered = tuple[str, int]
"""(stream, number)."""

ROOM = 256
"""Groups that are known at least before any is forgotten."""


@dataclass(slots=True)
class _Curated:
    at: int
    """How many curated records the partition had before it."""
    uses: int
    """How often it was curated."""
    stamp: Stamp
    """Of its first use; every use says its own versions."""


class Uses:
    """Of each recipe revision's chain the groups that it kept and may ask for again; of a chain without replays none.

    What a chain holds no more is forgotten when more than twice as many are known as were left the last time. Each
    takes some 500 bytes, and 30 of a snapshot, in which the name of a stream stands once.
    """

    def __init__(self, run_id: str, policy: str) -> None:
        self._run_id, self._policy = run_id, policy
        self._count = 0
        """Curated records of the partition."""
        self._groups: dict[int, dict[Numbered, _Curated]] = {}
        self._left: dict[int, int] = {}
        """How many were left of each revision the last time that some were forgotten."""

    def add(self, stamp: Stamp, *, replays: bool) -> None:
        """Take in a group that was kept, by the stamp of its curated record, and whether its chain may ask for it."""
        if replays:
            groups = self._groups.setdefault(stamp.revision, {})
            groups[stamp.stream, stamp.number] = _Curated(self._count, 1, stamp)
        self._count += 1

    def forget(self, revision: int, chain: Chain) -> None:
        """Forget what the chain of a revision holds no more, if there may be much of it.

        To be called when all that the chain said of a group was taken in: what it asks for the last time it holds no
        more.
        """
        known = self._groups.get(revision, {})
        if len(known) > 2 * self._left.get(revision, 0) + ROOM:
            held = chain.holds()
            self._groups[revision] = {numbered: one for numbered, one in known.items() if numbered in held}
            self._left[revision] = len(self._groups[revision])

    def drop(self, revision: int) -> None:
        """Forget all groups of a revision whose chain is over."""
        self._groups.pop(revision, None)
        self._left.pop(revision, None)

    def again(self, again: Again, revision: int) -> tuple[Stamp, int]:
        """Take in a replay that the chain of a revision asks for.

        Return the stamp of its curated record, and how many curated records ago the first use was written. Raises
        ChainError for one that is not the next use of a group that is known, and for a weight that is none.
        """
        use, name = again.use, f"{again.use.stream}:{again.use.number}"
        known = self._groups.get(revision, {}).get((use.stream, use.number))
        if known is None:
            raise ChainError(
                f"use {use.use} of {name} was asked for, and the chain never kept that group, or did not say by "
                "`holds` that it may be asked for again"
            )
        if use.use != known.uses:
            raise ChainError(f"use {use.use} of {name} was asked for, and it is use {known.uses} that comes next")
        if not 0 < again.weight <= 1:
            raise ChainError(f"use {use.use} of {name} was asked for with weight {again.weight}: above 0, at most 1")
        back = self._count - known.at
        known.uses += 1
        self._count += 1
        stamp = replace(known.stamp, use=use.use, min_version=again.min_version, max_version=again.max_version)
        return stamp, back

    def snapshot(self, chains: Mapping[int, Chain]) -> dict[str, Any]:
        """Return the state as plain JSON, without what the chains hold no more."""
        held = {revision: chains[revision].holds() for revision in self._groups}
        streams: dict[str, int] = {}
        rows = {
            str(revision): [
                [streams.setdefault(stream, len(streams)), number, *_row(one)]
                for (stream, number), one in groups.items()
                if (stream, number) in held[revision]
            ]
            for revision, groups in self._groups.items()
        }
        left = {str(revision): count for revision, count in self._left.items()}
        return {"count": self._count, "streams": list(streams), "groups": rows, "left": left}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what `snapshot` returned."""
        self._count = state["count"]
        self._left = {int(revision): count for revision, count in state["left"].items()}
        self._groups = {
            int(revision): {
                (state["streams"][stream], number): self._known(int(revision), state["streams"][stream], number, *rest)
                for stream, number, *rest in rows
            }
            for revision, rows in state["groups"].items()
        }

    def _known(self, revision: int, stream: str, number: int, *rest: int) -> _Curated:
        at, uses, attempt, head = rest
        stamp = Stamp(
            run_id=self._run_id,
            stream=stream,
            number=number,
            attempt=attempt,
            revision=revision,
            policy=self._policy,
            head_version=head,
        )
        return _Curated(at, uses, stamp)


def _row(known: _Curated) -> list[int]:
    return [known.at, known.uses, known.stamp.attempt, known.stamp.head_version]
