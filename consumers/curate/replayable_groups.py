"""The curated groups of a partition that may be replayed: their identity, index and uses.

A replay names its first use by its distance in curated records. Unlike an offset, this distance depends only on the
partition's records in order, so live, replayed and archived runs give the same number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.consumers.algorithms.chain import Chain, ChainError
from headrace.consumers.algorithms.contract import Replay
from headrace.schemas.headers import Stamp
from headrace.schemas.ids import GroupId

ROOM = 256
"""Least number of groups that are kept before any is forgotten."""


@dataclass(slots=True)
class _Curated:
    at: int
    """Number of curated records of the partition before it."""
    uses: int
    """Number of curated uses."""
    stamp: Stamp
    """Stamp of the first use; every use has its own versions."""


class ReplayableGroups:
    """For each chain with replays, the groups that it kept and may replay.

    A chain is named by its first recipe revision; its groups may be of later revisions.

    Groups that a chain no longer holds are forgotten when the number of kept groups has doubled since the last time.
    Each takes some 500 bytes of memory and 30 bytes of a snapshot.
    """

    def __init__(self, run_id: str, policy: str) -> None:
        self._run_id, self._policy = run_id, policy
        self._count = 0
        """Number of curated records of the partition."""
        self._groups: dict[int, dict[GroupId, _Curated]] = {}
        self._left: dict[int, int] = {}
        """Number of groups left of each chain after the last forgetting."""

    def add(self, stamp: Stamp, chain: int | None) -> None:
        """Take in a kept group, by the stamp of its curated record, and the chain that may replay it."""
        if chain is not None:
            groups = self._groups.setdefault(chain, {})
            groups[GroupId.of(stamp)] = _Curated(self._count, 1, stamp)
        self._count += 1

    def forget_unheld(self, name: int, chain: Chain) -> None:
        """Forget the groups that a chain can no longer replay; do nothing if few were added since the last time.

        Call it after taking in all results of the chain for a group: `Chain.holds` leaves out a group as soon as the
        chain has asked for its last replay.
        """
        known = self._groups.get(name, {})
        if len(known) > 2 * self._left.get(name, 0) + ROOM:
            held = chain.holds()
            self._groups[name] = {group: one for group, one in known.items() if group in held}
            self._left[name] = len(self._groups[name])

    def forget_chain(self, chain: int) -> None:
        """Forget all groups of a chain that has ended."""
        self._groups.pop(chain, None)
        self._left.pop(chain, None)

    def replay(self, replay: Replay, chain: int) -> tuple[Stamp, int]:
        """Take in a replay that a chain requests.

        Returns the stamp of its curated record, and the distance of the first use in curated records. Raises ChainError
        unless it is the next use of a kept group, with a weight above 0 and at most 1.
        """
        asked, name = replay.use, f"{replay.use.stream}:{replay.use.number}"
        known = self._groups.get(chain, {}).get(GroupId.of(asked))
        if known is None:
            raise ChainError(
                f"the chain asked for use {asked.use} of group {name}, but never kept that group, or its `holds` no "
                "longer names the group: `holds` must name each group until its last use"
            )
        if asked.use != known.uses:
            raise ChainError(
                f"the chain asked for use {asked.use} of group {name}, but the next use of that group is "
                f"{known.uses}: a chain must ask for the uses of a group in order"
            )
        if not 0 < replay.weight <= 1:
            raise ChainError(
                f"the weight of a replay must be above 0 and at most 1; the chain asked for use {asked.use} of group "
                f"{name} with weight {replay.weight}"
            )
        back = self._count - known.at
        known.uses += 1
        self._count += 1
        stamp = replace(known.stamp, use=asked.use, min_version=replay.min_version, max_version=replay.max_version)
        return stamp, back

    def snapshot(self, chains: Mapping[int, Chain]) -> dict[str, Any]:
        """Return the state as plain JSON, without groups that the chains no longer hold."""
        held = {name: chains[name].holds() for name in self._groups}
        streams: dict[str, int] = {}
        rows = {
            str(name): [
                [streams.setdefault(group.stream, len(streams)), group.number, *_row(one)]
                for group, one in groups.items()
                if group in held[name]
            ]
            for name, groups in self._groups.items()
        }
        left = {str(name): count for name, count in self._left.items()}
        return {"count": self._count, "streams": list(streams), "groups": rows, "left": left}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a snapshot."""
        self._count = state["count"]
        self._left = {int(name): count for name, count in state["left"].items()}
        self._groups = {
            int(name): {
                GroupId(state["streams"][stream], number): self._decode_row(state["streams"][stream], number, *rest)
                for stream, number, *rest in rows
            }
            for name, rows in state["groups"].items()
        }

    def _decode_row(self, stream: str, number: int, *rest: int) -> _Curated:
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
