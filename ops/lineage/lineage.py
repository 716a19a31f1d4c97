"""Which groups a version was trained on: `headrace lineage --version`, from the ledger and the topics.

The groups are read at the positions that BatchTrained gives; if a group is not there, the whole topic is searched. The
classes below are what `--json` prints, field by field.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.topic_reader import read_key, read_offsets
from headrace.infra.run.run import Run, find_groups_run
from headrace.infra.store.object_store import StoreError
from headrace.infra.weights.paths import size_of
from headrace.ledger.follow import ask_ledger
from headrace.ledger.ledger import Ledger
from headrace.ledger.trained_streams import TrainedStreams
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.headers import HeaderError, Stamp, task_key
from headrace.schemas.records import (
    BatchTrained,
    CuratedGroup,
    GroupUse,
    Trajectory,
    TrajectoryGroup,
    UsedEnvironment,
    WeightsPublished,
)
from headrace.trainers.batches.trained_groups import add_payloads, find_records

_EVENT = "SELECT value FROM weights WHERE variant = ? AND version = ? AND publishes ORDER BY id DESC LIMIT 1"
_VERSIONS = """
    SELECT min(version), max(version) FROM (SELECT variant, version FROM batch WHERE version >= 0
    UNION ALL SELECT variant, version FROM weights WHERE publishes) WHERE variant = ?
"""
_BATCH = """
    SELECT partition, offset FROM batch JOIN partition ON partition.id = partition_id
    WHERE variant = ? AND version = ? ORDER BY batch.id DESC LIMIT 1
"""
PLACE_IN_BATCH = "trained.id - (SELECT min(id) FROM trained WHERE batch_id = batch.id)"
"""Index of a trained group in its batch, from 0."""


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


def version_lineage(run: Run, policy: str | None, version: int, ledger: Path | None = None) -> VersionLineage:
    """Return the groups and facts of a version of a policy, by default the only one.

    `ledger` is the file of the run's ledger; None to read its topics into memory. Raises UsageError if there is no such
    version.
    """
    name = run.resolve(policy)
    return ask_ledger(run, ledger, lambda one: _find_version(run, one, name, version))


def _find_version(run: Run, ledger: Ledger, policy: str, version: int) -> VersionLineage:
    batch, event = read_batch(run, ledger, policy, version), _find_event(ledger, policy, version)
    if batch is None and event is None:
        missing = _describe_missing_version(ledger, policy, version)
        raise UsageError(f"policy {policy} of run {run.address.run} has {missing}")
    event = event or WeightsPublished()
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


def _find_event(ledger: Ledger, policy: str, version: int) -> WeightsPublished | None:
    """Return the newest event that published a version: training continues from it."""
    rows = ledger.query(_EVENT, policy, version)
    return codec.decode(rows[0][0], WeightsPublished) if rows else None


def _describe_missing_version(ledger: Ledger, policy: str, version: int) -> str:
    """Return the end of a sentence: that a version does not exist, and which versions do."""
    [(first, last)] = ledger.query(_VERSIONS, policy)
    there = "no version is published yet" if first is None else describe_range(first, last)
    return f"no version {version}: {there}"


def describe_range(first: object, last: object) -> str:
    """Return `there are 3 to 7`, or `there is only 3`."""
    return f"there is only {first}" if first == last else f"there are {first} to {last}"


def read_batch(run: Run, ledger: Ledger, policy: str, version: int) -> BatchTrained | None:
    """Return the batch of a version; None if there is none."""
    places = ledger.query(_BATCH, policy, version)
    return next((batch for _, batch in read_at(run, run.topics.batches(policy), BatchTrained, places)), None)


def _describe_groups(run: Run, policy: str, uses: tuple[GroupUse, ...]) -> Iterator[MadeOf]:
    topic = run.topics.curated(policy)
    found = add_payloads(run, topic, find_records(run, topic, set(uses)))
    for use in uses:
        blank = MadeOf(use.stream, use.number, use.use, use.partition, use.offset)
        yield _describe_group(run, blank, *found[use]) if use in found else replace(blank, missing=True)


def _describe_group(run: Run, blank: MadeOf, message: Message, curated: CuratedGroup) -> MadeOf:
    """Describe a group by its curated record, with its message."""
    try:
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


def read_at(run: Run, topic: str, kind: type[Any], places: Iterable[Sequence[int]]) -> Iterator[tuple[Message, Any]]:
    """Yield the readable records of this run at places (partition, offset), each with its message."""
    offsets: defaultdict[int, set[int]] = defaultdict(set)
    for partition, offset in places:
        offsets[partition].add(offset)
    return decode_readable(run, read_offsets(run.connection, topic, offsets), kind)


def search_number(run: Run, topic: str, stream: str, number: int) -> Iterator[Message]:
    """Yield the records of a number from the partition of a topic where all of them are."""
    partition_id = (topic, number % run.partitions)
    return read_key(run.connection, partition_id, task_key(stream, number))


def decode_readable(run: Run, messages: Iterable[Message], kind: type[Any]) -> Iterator[tuple[Message, Any]]:
    """Yield the messages that hold a record of this run, each with its record; other messages are skipped."""
    for message in messages:
        try:
            record = codec.decode(message.value, kind)
        except SchemaError:
            continue
        if record.run_id == run.run_id:
            yield message, record


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
