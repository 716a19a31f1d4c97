"""Which groups a version was trained on: `headrace lineage --version`, from the topics alone.

The groups are read at the positions that BatchTrained gives; if a group is not there, the whole topic is searched. The
classes below are what `--json` prints, field by field.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.topic_reader import read_all, read_offsets
from headrace.infra.run.first_uses import CuratedReplay, complete_replay, find_first_uses
from headrace.infra.run.run import Run, find_groups_run
from headrace.infra.store.object_store import StoreError
from headrace.infra.weights.paths import find_newest_events, size_of
from headrace.ledger.trained_streams import TrainedStreams
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.headers import HeaderError, Stamp
from headrace.schemas.ids import UseId
from headrace.schemas.records import (
    BatchTrained,
    CuratedGroup,
    GroupUse,
    Trajectory,
    TrajectoryGroup,
    UsedEnvironment,
    WeightsPublished,
)


@dataclass(frozen=True, slots=True)
class MadeOf:
    """A group that a version was trained on. If its record is missing, only the first five fields are known."""

    stream: str
    number: int
    use: int
    partition: int
    """Partition of the curated topic."""
    offset: int
    missing: bool = False
    """True if the curated topic no longer holds the group or its first use, or if the record cannot be read."""
    task_id: str = ""
    tier: str = ""
    attempt: int = 0
    worker: str = ""
    region: str = ""
    revision: int = 0
    head_version: int = -1
    """Newest version that the worker knew when it finished the group."""
    min_version: int = -1
    """Oldest version among the generated tokens of its kept trajectories."""
    max_version: int = -1
    version_shares: dict[str, float] = field(default_factory=dict)
    """Version to its share of the group's generated tokens; empty if the group's object cannot be fetched."""
    rewards: tuple[float | None, ...] = ()
    """Shaped reward of each member, as the advantages use it; None for a malformed member."""
    reward_mean: float | None = None
    """Mean over members that are not malformed."""
    kept: tuple[int, ...] = ()
    """Number of members that were trained on."""


@dataclass(frozen=True, slots=True)
class VersionLineage:
    """One version of a policy."""

    run: str
    run_id: str
    policy: str
    version: int
    epoch: int
    """Number of times that the hash chain was cut before this version."""
    revision: int
    """Recipe revision of the version."""
    base_version: int
    """Version that the batch began from; -1 for version 0, which has no batch."""
    base_hash: str
    """`weights_hash` of the base version."""
    weights_hash: str
    object_key: str
    """Key of the weights in the store; empty if this version was not published."""
    object_sha256: str
    object_bytes: int
    fingerprint: dict[str, str]
    """The software and hardware that, besides batch and settings, decide the bits of the weights."""
    metrics: dict[str, float]
    created_ms: int
    groups: tuple[MadeOf, ...]
    """Groups in the order in which they were trained."""
    parent: str = ""
    """For version 0 of a branch: run id and versions that the run began with, `RUN-ID solver@40`."""
    environments: tuple[UsedEnvironment, ...] = ()
    """Environment and data of each workflow under that revision."""


def version_lineage(run: Run, policy: str, version: int) -> VersionLineage:
    """Return the groups and facts of a version. Raises UsageError if there is no such version."""
    batches = {batch.version: batch for batch in read_batches(run, policy) if batch.version >= 0}
    events = read_records(run, run.topics.weights(policy), WeightsPublished)
    published = find_newest_events(events)
    batch, event = batches.get(version), published.get(version, WeightsPublished())
    if batch is None and version not in published:
        raise UsageError(
            f"policy {policy} of run {run.address.run} has {describe_missing_version(version, batches, published)}"
        )
    batch = batch or BatchTrained(run_id=event.run_id, policy=policy, version=version, epoch=event.epoch)
    claim = event.weights
    return VersionLineage(
        run=run.address.run,
        run_id=run.run_id,
        policy=policy,
        version=version,
        epoch=batch.epoch,
        revision=batch.revision,
        base_version=version - 1 if batch.groups else -1,
        base_hash=batch.base_hash,
        weights_hash=batch.weights_hash or event.weights_hash,
        object_key=claim.key if claim else "",
        object_sha256=claim.sha256 if claim else "",
        object_bytes=size_of(event),
        fingerprint=batch.fingerprint,
        metrics=batch.metrics,
        created_ms=batch.created_ms or event.created_ms,
        groups=tuple(_describe_groups(find_groups_run(run), policy, batch.groups)),
        parent="" if version else run.parent,
        environments=run.environments_at(batch.revision),
    )


def describe_missing_version(version: int, *known: Iterable[int]) -> str:
    """Return the end of a sentence: that a version does not exist, and which versions do."""
    there = sorted({one for some in known for one in some})
    if not there:
        return f"no version {version}: no version is published yet"
    return f"no version {version}: {describe_range(there[0], there[-1])}"


def describe_range(first: object, last: object) -> str:
    """Return `there are 3 to 7`, or `there is only 3`."""
    return f"there is only {first}" if first == last else f"there are {first} to {last}"


def read_batches(run: Run, policy: str) -> list[BatchTrained]:
    """Return all of a policy's BatchTrained records of this run, oldest first; they are small."""
    return read_records(run, run.topics.batches(policy), BatchTrained)


def _describe_groups(run: Run, policy: str, uses: tuple[GroupUse, ...]) -> Iterator[MadeOf]:
    found = _find_curated(run, policy, uses)
    firsts = _find_first_uses(run, policy, found)
    for use in uses:
        blank = MadeOf(use.stream, use.number, use.use, use.partition, use.offset)
        key = UseId.of(use)
        message, first = found.get(key), firsts.get(key) if use.use else found.get(key)
        if message is None or first is None:
            yield replace(blank, missing=True)
        else:
            yield _describe_group(run, blank, message, first)


def _find_curated(run: Run, policy: str, uses: Iterable[GroupUse]) -> dict[UseId, Message]:
    """Return the curated records of these uses, from their given positions, else from a search of the topic."""
    topic = run.topics.curated(policy)
    wanted = {UseId.of(use) for use in uses}
    hints: dict[int, set[int]] = {}
    for use in uses:
        if use.partition >= 0:
            hints.setdefault(use.partition, set()).add(use.offset)
    found: dict[UseId, Message] = {}
    for some in (read_offsets(run.connection, topic, hints), read_all(run.connection, [topic])):
        if len(found) == len(wanted):
            break
        found |= {key: message for message in some if (key := _read_use(message)) in wanted}
    return found


def _find_first_uses(run: Run, policy: str, found: Mapping[UseId, Message]) -> dict[UseId, Message]:
    """Return the first-use records of the replays among these; a record that is gone is left out."""
    replays = {
        key: CuratedReplay(message.partition, message.offset, key.stream, key.number, _read_first_back(message))
        for key, message in found.items()
        if key.use_number
    }
    firsts = find_first_uses(run.connection, run.topics.curated(policy), run.run_id, replays.values())
    return {key: firsts[replay] for key, replay in replays.items() if replay in firsts}


def _read_first_back(message: Message) -> int:
    try:
        return codec.decode(message.value, CuratedGroup).first_back
    except SchemaError:
        return 0


def _read_use(message: Message) -> UseId | None:
    try:
        stamp = Stamp.from_headers(message.headers)
    except HeaderError:
        return None
    return UseId.of(stamp)


def _describe_group(run: Run, blank: MadeOf, message: Message, first: Message) -> MadeOf:
    """Describe a group by its curated record and the record of its first use, which may be the same."""
    try:
        curated = complete_replay(codec.decode(message.value, CuratedGroup), codec.decode(first.value, CuratedGroup))
        group = codec.decode(curated.group, TrajectoryGroup)
        stamp = Stamp.from_headers(message.headers)
    except (SchemaError, HeaderError):
        return replace(blank, missing=True)
    rewards = tuple(None if math.isnan(reward) else reward for reward in curated.rewards)
    good = [reward for reward in rewards if reward is not None]
    return replace(
        blank,
        task_id=group.task_id,
        tier=group.tier,
        attempt=group.attempt,
        worker=group.worker,
        region=group.region,
        revision=curated.revision,
        head_version=group.head_version,
        min_version=stamp.min_version,
        max_version=stamp.max_version,
        version_shares=version_shares(_fetch_trajectories(run, group)),
        rewards=rewards,
        reward_mean=sum(good) / len(good) if good else None,
        kept=curated.kept,
    )


def _fetch_trajectories(run: Run, group: TrajectoryGroup) -> tuple[Trajectory, ...]:
    """Return a group's trajectories, fetched from the store if they are there; empty if they cannot be fetched."""
    if group.claim is None:
        return group.trajectories
    try:
        data = run.store.get(group.claim.key, group.claim.sha256, group.claim.size_bytes)
        return codec.decode(data, TrajectoryGroup).trajectories
    except (StoreError, SchemaError):
        return ()


def version_shares(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Return each weight version's share of the generated tokens, oldest first."""
    tokens: Counter[int] = Counter()
    for trajectory in trajectories:
        for sequence in trajectory.sequences:
            for version, length in sequence.version_runs.reshape(-1, 2).tolist():
                tokens[version] += length if version >= 0 else 0
    total = tokens.total()
    return {str(version): count / total for version, count in sorted(tokens.items()) if count}


def read_records(run: Run, topic: str, kind: type[Any]) -> list[Any]:
    """Return the readable records of this run on a topic."""
    return [record for _, record in decode_readable(run, read_all(run.connection, [topic]), kind)]


def decode_readable(run: Run, messages: Iterable[Message], kind: type[Any]) -> Iterator[tuple[Message, Any]]:
    """Yield the messages that hold a record of this run, each with its record; other messages are skipped."""
    for message in messages:
        try:
            record = codec.decode(message.value, kind)
        except SchemaError:
            continue
        if record.run_id == run.run_id:
            yield message, record


def look_up_version(run: Run, policy: str | None, version: int) -> VersionLineage:
    """Return the groups and facts of a version of a policy, by default the only one. Raises UsageError."""
    return version_lineage(run, run.resolve(policy), version)


def find_trained_policies(run: Run, stream: str) -> tuple[str, ...]:
    """Return the policies that a training stream trains, or trained under an earlier recipe.

    Raises UsageError for a stream that the run never had, or that no longer trains a policy.
    """
    streams = TrainedStreams(run.revisions)
    if stream.partition(".")[0] not in streams.workflows:
        raise UsageError(f"run {run.address.run} has no stream {stream!r}: it has {', '.join(streams.workflows)}")
    if not (policies := streams.policies_of(stream)):
        raise UsageError(f"stream {stream!r} of run {run.address.run} trains no policy of the run's newest recipe")
    return policies
