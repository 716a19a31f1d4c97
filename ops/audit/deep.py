"""`headrace audit --deep`: the values of groups too, decoded, against their headers and the store."""

from __future__ import annotations

import math
from collections.abc import Iterator

from headrace.infra.kafka.clients import Message
from headrace.infra.store.object_store import ObjectStore, StoreDenied, StoreError, StoreUnavailable
from headrace.ops.audit.objects import Objects
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.headers import HeaderError, Stamp
from headrace.schemas.records import Attachment, ClaimCheck, CuratedGroup, TrajectoryGroup

Identity = tuple[str, str, int]
"""(run id, stream, number)."""


class UnfitValue(Exception):
    """A value is not what its headers and its schema promise."""


def check_trajectories(message: Message, store: ObjectStore | None) -> TrajectoryGroup:
    """Return the group that a message holds, or that lies behind its claim check; without a store as it stands.

    Raises UnfitValue, and what an unreachable store raises.
    """
    stamp = _stamp(message)
    group = _group(message.value, store)
    _same((group.run_id, group.stream, group.number), stamp)
    if group.policy != stamp.policy:
        raise UnfitValue(f"its headers say policy {stamp.policy!r}, its value {group.policy!r}")
    return group


def check_curated(message: Message, store: ObjectStore | None) -> TrajectoryGroup:
    """Return the group inside a curated record; a replay has none, and gives an empty one.

    Raises UnfitValue, and what an unreachable store raises.
    """
    stamp = _stamp(message)
    try:
        curated = codec.decode(message.value, CuratedGroup)
    except SchemaError as error:
        raise UnfitValue(str(error)) from error
    _same((curated.run_id, curated.stream, curated.number), stamp)
    if curated.use != stamp.use:
        raise UnfitValue(f"its headers say use {stamp.use}, its value {curated.use}")
    if curated.use and not curated.group:
        return TrajectoryGroup()
    group = _group(curated.group, store)
    _same((group.run_id, group.stream, group.number), stamp)
    if group.claim is None:
        _check_rewards(curated, group)
    return group


def _check_rewards(curated: CuratedGroup, group: TrajectoryGroup) -> None:
    members = len(group.trajectories)
    if len(curated.rewards) != members or any(not 0 <= index < members for index in curated.kept):
        raise UnfitValue(f"it keeps {curated.kept} and has {len(curated.rewards)} rewards, of {members} trajectories")
    odd = [index for index in curated.kept if not math.isfinite(curated.rewards[index])]
    if odd:
        raise UnfitValue(f"the rewards of its kept trajectories {odd} are not finite")


def attachments_of(group: TrajectoryGroup) -> Iterator[Attachment]:
    """Yield the attachments of a group, its trajectories and their sequences."""
    yield from group.attachments
    for trajectory in group.trajectories:
        yield from trajectory.attachments
        for sequence in trajectory.sequences:
            yield from sequence.attachments


def check_attachments(group: TrajectoryGroup, objects: Objects) -> None:
    """Read every attached object. Raises UnfitValue, or StoreAway."""
    for attachment in attachments_of(group):
        for why in objects.claim(attachment.claim):
            raise UnfitValue(f"attachment {attachment.name}: {why}")


def _stamp(message: Message) -> Stamp:
    try:
        return Stamp.from_headers(message.headers)
    except HeaderError as error:
        raise UnfitValue(str(error)) from error


def _group(value: bytes, store: ObjectStore | None) -> TrajectoryGroup:
    try:
        group = codec.decode(value, TrajectoryGroup)
        if group.claim is None or store is None:
            return group
        return codec.decode(_fetched(store, group.claim), TrajectoryGroup)
    except SchemaError as error:
        raise UnfitValue(str(error)) from error


def _fetched(store: ObjectStore, claim: ClaimCheck) -> bytes:
    try:
        return store.get(claim.key, claim.sha256, claim.size_bytes)
    except (StoreUnavailable, StoreDenied):
        raise
    except StoreError as error:
        raise UnfitValue(str(error)) from error


def _same(found: Identity, stamp: Stamp) -> None:
    wanted = (stamp.run_id, stamp.stream, stamp.number)
    if found != wanted:
        raise UnfitValue(f"its headers name {wanted}, its value {found}")
