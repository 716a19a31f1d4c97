"""`headrace audit --deep`: decodes the values of groups, and compares them with their headers and the store."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, fields, replace

from headrace.infra.kafka.clients import Message
from headrace.infra.store.object_store import ObjectStore, StoreDenied, StoreError, StoreUnavailable
from headrace.ops.audit.objects import ObjectChecks
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.headers import HeaderError, Stamp, task_key, task_stamp
from headrace.schemas.records import Attachment, ClaimCheck, CuratedGroup, Outcome, Task, Trajectory, TrajectoryGroup
from headrace.schemas.versions import find_version_range

GroupIdentity = tuple[str, str, int]
"""(run id, stream, number)."""
IDENTITY = ("run id", "stream", "number")
"""Names of the parts of a GroupIdentity."""


class UnfitValue(Exception):
    """A value does not fit its headers or its schema."""


def read_checked_group(message: Message, store: ObjectStore | None) -> TrajectoryGroup:
    """Return the group that a message holds, or that its claim check names; without a store, as it is in the message.

    Raises UnfitValue, and what an unreachable store raises.
    """
    stamp = _read_stamp(message)
    group = _decode_group(message.value, store)
    _check_identity((group.run_id, group.stream, group.number), stamp)
    _check_versions(group.trajectories, stamp, has_all=group.claim is None)
    names = ("policy", "attempt", "purpose", "revision", "head_version")
    said, found = ([getattr(one, name) for name in names] for one in (stamp, group))
    if said != found:
        raise UnfitValue(describe_differences(names, said, found))
    if stamp.use:
        raise UnfitValue(f"its headers say use {stamp.use}, but only curated records are of a later use than 0")
    return group


def read_checked_curated(message: Message, store: ObjectStore | None) -> tuple[CuratedGroup, TrajectoryGroup]:
    """Return a curated record and the group inside; a replay holds no group, and gives an empty one.

    Raises UnfitValue, and what an unreachable store raises.
    """
    stamp = _read_stamp(message)
    try:
        curated = codec.decode(message.value, CuratedGroup)
    except SchemaError as error:
        raise UnfitValue(str(error)) from error
    _check_identity((curated.run_id, curated.stream, curated.number), stamp)
    said, headers = (curated.use, curated.revision, curated.min_version), (stamp.use, stamp.revision, stamp.min_version)
    if said != headers and not (curated.use and said[:2] == headers[:2]):
        raise UnfitValue(describe_differences(("use", "recipe revision", "oldest version"), headers, said))
    if curated.use and not curated.group:
        return curated, TrajectoryGroup()
    group = _decode_group(curated.group, store)
    _check_identity((group.run_id, group.stream, group.number), stamp)
    if group.claim is None:
        _check_kept_and_rewards(curated, group)
        _check_versions([group.trajectories[index] for index in curated.kept], stamp)
    return curated, group


def _check_kept_and_rewards(curated: CuratedGroup, group: TrajectoryGroup) -> None:
    members, failures = len(group.trajectories), len(group.failures)
    fits = len(curated.rewards) in (members, members + failures)  # those of failed episodes follow if they count
    if not fits or any(not 0 <= index < members for index in curated.kept):
        raise UnfitValue(
            f"it must have a reward for each of its {members} trajectories, and `kept` must be indices of these "
            f"trajectories, but it has {len(curated.rewards)} rewards, and `kept` is {curated.kept}"
        )
    odd = [index for index in curated.kept if not math.isfinite(curated.rewards[index])]
    if odd:
        raise UnfitValue(f"the rewards of its kept trajectories {odd} are not finite")


def read_checked_task(message: Message) -> Task:
    """Return a task. Raises UnfitValue if its value, headers and key name different tasks."""
    stamp = _read_stamp(message)
    try:
        task = codec.decode(message.value, Task)
    except SchemaError as error:
        raise UnfitValue(str(error)) from error
    own, named = task_stamp(task, stamp.policy), replace(stamp, min_version=-1, max_version=-1, head_version=-1)
    if own != named:
        raise UnfitValue(describe_differences([one.name for one in fields(Stamp)], astuple(named), astuple(own)))
    if message.key != stamp.key:
        raise UnfitValue(f"its key is {message.key!r:.60}, but its headers name {stamp.stream}:{stamp.number}")
    return task


def check_outcome_names(message: Message, outcome: Outcome, partitions: int) -> None:
    """Compare key, headers and partition of an outcome with its value. Raises UnfitValue.

    `headrace lineage` finds outcomes by key and partition. A header that is missing is of an older release. A shadow's
    outcome of a record that it could not read is on the partition of this record, whatever its number.
    """
    headers, names = dict(message.headers), ("run_id", "stream", "number", "use", "policy")
    values = [str(getattr(outcome, name)).encode() for name in names]
    said = [headers.get(name, value) for name, value in zip(names, values, strict=True)]
    if said != values:
        raise UnfitValue(describe_differences(names, said, values))
    key = task_key(outcome.stream, outcome.number)
    if message.key and message.key != key:
        raise UnfitValue(f"its key is {message.key!r:.60}, but its value names {outcome.stream}:{outcome.number}")
    if outcome.n_asked and message.partition != outcome.number % partitions:
        raise UnfitValue(
            f"it is an outcome of number {outcome.number}, so it must be on partition {outcome.number % partitions}"
        )


def _check_versions(trajectories: Sequence[Trajectory], stamp: Stamp, *, has_all: bool = True) -> None:
    """Compare the versions of tokens with the headers, and their number with that of the tokens."""
    if not has_all:
        return
    for trajectory in trajectories:
        for sequence in trajectory.sequences:
            if int(sequence.version_runs[1::2].sum()) != len(sequence.ids):
                raise UnfitValue(
                    f"a sequence has {len(sequence.ids)} tokens, but its version_runs give versions to "
                    f"{sequence.version_runs[1::2].sum()} tokens"
                )
    found = find_version_range(trajectories)
    if found != (stamp.min_version, stamp.max_version):
        raise UnfitValue(
            f"its tokens are of versions {found[0]} to {found[1]}, but its headers say {stamp.min_version} to "
            f"{stamp.max_version}"
        )


def attachments_of(group: TrajectoryGroup) -> Iterator[Attachment]:
    """Yield the attachments of a group, its trajectories and their sequences."""
    yield from group.attachments
    for trajectory in group.trajectories:
        yield from trajectory.attachments
        for sequence in trajectory.sequences:
            yield from sequence.attachments


def check_attachments(group: TrajectoryGroup, objects: ObjectChecks) -> None:
    """Read every attached object. Raises UnfitValue, or StoreAway."""
    for attachment in attachments_of(group):
        for why in objects.claim(attachment.claim):
            raise UnfitValue(f"attachment {attachment.name}: {why}")


def _read_stamp(message: Message) -> Stamp:
    try:
        return Stamp.from_headers(message.headers)
    except HeaderError as error:
        raise UnfitValue(str(error)) from error


def _decode_group(value: bytes, store: ObjectStore | None) -> TrajectoryGroup:
    try:
        group = codec.decode(value, TrajectoryGroup)
        if group.claim is None or store is None:
            return group
        whole = codec.decode(_fetch(store, group.claim), TrajectoryGroup)
    except SchemaError as error:
        raise UnfitValue(str(error)) from error
    if whole.claim is not None or replace(whole, trajectories=(), claim=group.claim) != group:
        raise UnfitValue("the group in the object store does not match the record that points to it")
    return whole


def _fetch(store: ObjectStore, claim: ClaimCheck) -> bytes:
    try:
        return store.get(claim.key, claim.sha256, claim.size_bytes)
    except (StoreUnavailable, StoreDenied):
        raise
    except StoreError as error:
        raise UnfitValue(str(error)) from error


def _check_identity(found: GroupIdentity, stamp: Stamp) -> None:
    wanted = (stamp.run_id, stamp.stream, stamp.number)
    if found != wanted:
        raise UnfitValue(describe_differences(IDENTITY, wanted, found))


def describe_differences(names: Sequence[str], headers: Sequence[object], value: Sequence[object]) -> str:
    """Return in words which facts of a record differ between its headers and its value."""
    return "; ".join(
        f"its {name} is {one!r:.60} by its headers, but {other!r:.60} by its value"
        for name, one, other in zip(names, headers, value, strict=True)
        if one != other
    )
