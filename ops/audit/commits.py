"""Whether a run can continue from its committed offsets: within their topics, and not before the newest snapshot."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.group_offsets import Commit, fetch_commits
from headrace.infra.kafka.topic_offsets import fetch_begin_offsets, fetch_end_offsets
from headrace.infra.kafka.topic_reader import PartitionId, find_start_positions, name_offset, name_partition
from headrace.infra.run.run import Run
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.records import Snapshot
from headrace.schemas.topics import eval_stream, variant_of

CURATOR = "curate."
"""Beginning of the names of curators as components."""


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group: its topics, and for curators the component whose snapshots are in `state`."""

    name: str
    topic: str
    component: str = ""
    is_shadow: bool = False

    @property
    def policy_variant(self) -> str:
        """Policy or shadow of curators; empty for workers."""
        return self.component.removeprefix(CURATOR)


def list_training_consumer_groups(run: Run) -> list[Group]:
    """Return the consumer groups of a run that read training topics."""
    topics = run.topics
    workers = [Group(topics.rollout_group(w), topics.tasks(w)) for w in run.recipe.workflows]
    curators = [
        Group(topics.curate_group(one), topics.trajectories(one), f"{CURATOR}{one}", is_shadow=bool(variant_of(one)))
        for one in run.recipe.policy_variants
    ]
    return workers + curators


def list_evaluation_consumer_groups(run: Run) -> list[Group]:
    """Return the consumer groups of a run that read evaluations."""
    return [
        Group(run.topics.rollout_group(workflow), run.topics.tasks(eval_stream(workflow)))
        for workflow in run.recipe.workflows
    ]


@dataclass(frozen=True, slots=True)
class Committed:
    """The commits of a group, and the bounds of its partitions, asked for in this order: begin, commits, end."""

    begin: Mapping[PartitionId, int]
    commits: Mapping[PartitionId, Commit]
    end: Mapping[PartitionId, int]


def merge_offsets(some: Iterable[Committed]) -> dict[PartitionId, int]:
    """Return the committed offsets of groups by partition."""
    return {partition_id: commit.offset for one in some for partition_id, commit in one.commits.items()}


def fetch_committed(run: Run, groups: Iterable[Group]) -> dict[Group, Committed]:
    """Ask the broker for the commits of groups. Groups continue meanwhile, so bounds are asked before and after."""
    found = {}
    for group in groups:
        partition_ids = find_start_positions(run.connection, [group.topic])
        begin = fetch_begin_offsets(run.connection, partition_ids)
        known = fetch_commits(run.connection, group.name, [group.topic])
        found[group] = Committed(begin, known, fetch_end_offsets(run.connection, partition_ids))
    return found


def problems(
    asked: Mapping[Group, Committed],
    snapshots: Mapping[bytes, Message],
    run_id: str,
    before: Mapping[Group, Committed],
    curated_to: Mapping[tuple[str, str, int], int],
) -> Iterator[str]:
    """Yield what is wrong with commits.

    Args:
        asked: The commits.
        snapshots: The newest snapshot of each key, read before the commits were asked for.
        run_id: Id of the run.
        before: The commits as they were before the snapshots were read: what these name must have been there.
        curated_to: (policy or shadow, topic, partition) to the offset after the last delivery whose group is concluded
            by an outcome that was read before the commits were asked for.
    """
    for group, committed in asked.items():
        for (topic, partition), commit in sorted(committed.commits.items()):
            begin, end = committed.begin[topic, partition], committed.end[topic, partition]
            if not begin <= commit.offset <= end:
                yield (
                    f"consumer group {group.name} has committed offset {commit.offset} of {topic}[{partition}], but "
                    f"the offsets of that partition are {begin} to {end}"
                )
        if group.component:
            known = before[group].commits if group in before else {}
            yield from _compare_with_snapshots(group, committed, snapshots, run_id)
            yield from _find_missing_snapshots(group, known, snapshots)
            yield from _find_curated_again(group, committed, curated_to)


def _find_missing_snapshots(
    group: Group, known: Mapping[PartitionId, Commit], snapshots: Mapping[bytes, Message]
) -> Iterator[str]:
    for partition_id, commit in known.items():
        newest = snapshots.get(_get_key(group, partition_id))
        if newest is not None and _find_snapshot_offset(commit) > newest.offset:
            yield (
                f"the commit of consumer group {group.name} for {name_partition(partition_id)} names "
                f"{_name_snapshot(commit)}, but that snapshot is missing: the newest one is {name_offset(newest)}"
            )


def _find_curated_again(
    group: Group, committed: Committed, curated_to: Mapping[tuple[str, str, int], int]
) -> Iterator[str]:
    """Yield the commits before a delivery that is concluded: outcome and commit are in one transaction."""
    for partition_id, commit in committed.commits.items():
        end = curated_to.get((group.policy_variant, *partition_id), 0)
        if commit.offset < end:
            yield (
                f"consumer group {group.name} has committed offset {commit.offset} of {name_partition(partition_id)}, "
                f"but the group delivered at offset {end - 1} has an outcome: it would be curated again"
            )


def _get_key(group: Group, partition_id: PartitionId) -> bytes:
    """Return the key of a curator's snapshots of a partition."""
    topic, partition = partition_id
    return f"{group.component}|{topic}|{partition}".encode()


def _compare_with_snapshots(
    group: Group, committed: Committed, snapshots: Mapping[bytes, Message], run_id: str
) -> Iterator[str]:
    for topic, partition in committed.end:
        name = name_partition((topic, partition))
        newest = snapshots.get(_get_key(group, (topic, partition)))
        commit = committed.commits.get((topic, partition))
        if newest is None:
            if commit is not None and _find_snapshot_offset(commit) >= 0:
                offset = _find_snapshot_offset(commit)
                yield (
                    f"consumer group {group.name} restores {name} from the snapshot at offset {offset} of `state`, but "
                    "that snapshot is missing"
                )
            continue
        try:
            snapshot = codec.decode(newest.value, Snapshot)
            position = _find_position(snapshot, name)
        except SchemaError as error:
            yield f"the snapshot {name_offset(newest)} of {name} cannot be read: {error}"
            continue
        if snapshot.run_id != run_id:
            yield f"the snapshot {name_offset(newest)} of {name} is of another run, with the id {snapshot.run_id!r:.60}"
        elif commit is None:
            if committed.commits:  # Kafka forgets all commits of a group that was stopped for days
                yield (
                    f"consumer group {group.name} has no committed offset of {name}, but its snapshot "
                    f"{name_offset(newest)} was taken at offset {position} of that partition"
                )
        else:
            yield from _compare_commit(f"consumer group {group.name}", name, commit, newest, position)


def _compare_commit(group: str, name: str, commit: Commit, newest: Message, position: int) -> Iterator[str]:
    if commit.offset < position:
        yield (
            f"{group} has committed offset {commit.offset} of {name}, but its snapshot {name_offset(newest)} was taken "
            f"at the later offset {position} of that partition"
        )
    elif _find_snapshot_offset(commit) < newest.offset:
        yield (
            f"the commit of {group} for {name} names {_name_snapshot(commit)}, but the snapshot {name_offset(newest)} "
            "is newer, and no commit names it"
        )


def _find_position(snapshot: Snapshot, name: str) -> int:
    """Return the offset up to which a snapshot's partition was read. Raises SchemaError if it gives none."""
    if name not in snapshot.positions:
        raise SchemaError(f"it does not give the offset up to which {name} was read")
    return snapshot.positions[name]


def _name_snapshot(commit: Commit) -> str:
    offset = _find_snapshot_offset(commit)
    return "no snapshot" if offset < 0 else f"the snapshot at offset {offset} of `state`"


def _find_snapshot_offset(commit: Commit) -> int:
    """Return the offset, in `state`, of the snapshot that a commit names; -1 for none."""
    try:
        return int(json.loads(commit.metadata)["snapshot"])
    except (ValueError, KeyError, TypeError):
        return -1
