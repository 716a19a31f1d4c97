"""What one partition has curated, as far as it may be asked for again: identity, place and uses of groups.

A replay names its first use by how many curated records ago that was written. That is a function of the partition's
records in order, as an offset is not: live, replayed and archived runs count alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.consumers.algorithms.chain import Chain, ChainError
from headrace.consumers.algorithms.contract import Again
from headrace.schemas.headers import Stamp

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
    """Of each chain the groups that it kept and may ask for again; of one without replays none.

    A chain is named by the first recipe revision that has it; its groups may be of later ones.

    What a chain holds no more is forgotten when more than twice as many are known as were left the last time. Each
    takes some 500 bytes, and 30 of a snapshot, in which the name of a stream stands once.
    """

    def __init__(self, run_id: str, policy: str) -> None:
        self._run_id, self._policy = run_id, policy
        self._count = 0
        """Curated records of the partition."""
        self._groups: dict[int, dict[Numbered, _Curated]] = {}
        self._left: dict[int, int] = {}
        """How many were left of each chain the last time that some were forgotten."""

    def add(self, stamp: Stamp, chain: int | None) -> None:
        """Take in a group that was kept, by the stamp of its curated record, and the chain that may ask for it."""
        if chain is not None:
            groups = self._groups.setdefault(chain, {})
            groups[stamp.stream, stamp.number] = _Curated(self._count, 1, stamp)
        self._count += 1

    def forget(self, name: int, chain: Chain) -> None:
        """Forget what a chain holds no more, if there may be much of it.

        To be called when all that the chain said of a group was taken in: what it asks for the last time it holds no
        more.
        """
        known = self._groups.get(name, {})
        if len(known) > 2 * self._left.get(name, 0) + ROOM:
            held = chain.holds()
            self._groups[name] = {numbered: one for numbered, one in known.items() if numbered in held}
            self._left[name] = len(self._groups[name])

    def drop(self, chain: int) -> None:
        """Forget all groups of a chain that is over."""
        self._groups.pop(chain, None)
        self._left.pop(chain, None)

    def again(self, again: Again, chain: int) -> tuple[Stamp, int]:
        """Take in a replay that a chain asks for.

        Return the stamp of its curated record, and how many curated records ago the first use was written. Raises
        ChainError for one that is not the next use of a group that is known, and for a weight that is none.
        """
        use, name = again.use, f"{again.use.stream}:{again.use.number}"
        known = self._groups.get(chain, {}).get((use.stream, use.number))
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
        held = {name: chains[name].holds() for name in self._groups}
        streams: dict[str, int] = {}
        rows = {
            str(name): [
                [streams.setdefault(stream, len(streams)), number, *_row(one)]
                for (stream, number), one in groups.items()
                if (stream, number) in held[name]
            ]
            for name, groups in self._groups.items()
        }
        left = {str(name): count for name, count in self._left.items()}
        return {"count": self._count, "streams": list(streams), "groups": rows, "left": left}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what `snapshot` returned."""
        self._count = state["count"]
        self._left = {int(name): count for name, count in state["left"].items()}
        self._groups = {
            int(name): {
                (state["streams"][stream], number): self._known(state["streams"][stream], number, *rest)
                for stream, number, *rest in rows
            }
            for name, rows in state["groups"].items()
        }

    def _known(self, stream: str, number: int, *rest: int) -> _Curated:
        at, uses, attempt, head, revision = rest
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
    return [known.at, known.uses, known.stamp.attempt, known.stamp.head_version, known.stamp.revision]
