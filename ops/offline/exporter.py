"""`headrace export`: an archive's trajectories as a Parquet file, for `datasets`, pandas and the like.

A row is a sequence of a trajectory; most trajectories have one sequence. Partitions are read one after the other, and
rows are written by the thousand. So memory holds only the outcomes of one partition's groups.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from headrace.infra.archive.reading import Archive
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.decoding import read_record
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.infra.progress import open_progress
from headrace.infra.store.object_store import ObjectCorrupt, ObjectMissing
from headrace.infra.weights.files import TOKENIZER_FILE
from headrace.ops.chosen_policy import choose_policy
from headrace.ops.discards import TRAINED
from headrace.ops.offline.archived_recipe import read_newest_recipe
from headrace.ops.offline.parquet_file import ParquetFile
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.ids import GroupId
from headrace.schemas.records import (
    BatchTrained,
    CuratedGroup,
    Outcome,
    Sequence,
    Trajectory,
    TrajectoryGroup,
    WeightsPublished,
)

EXPORT_REPORT_EVERY = 500
REPEATED, UNKNOWN = "repeated", "unknown"
"""Outcome of a repeated group, and of a group without an outcome in the archive."""

ExportedRow = dict[str, Any]
FindFate = Callable[[str], tuple[str, str, list[int]]]
"""Returns verdict, reason and versions of a trajectory by its id."""


@dataclass(slots=True)
class GroupFates:
    """The outcomes of one partition's groups."""

    groups: dict[GroupId, tuple[str, str]] = field(default_factory=dict)
    """Final verdict and reason of the first use."""
    members: dict[str, str] = field(default_factory=dict)
    """Id of each trajectory that was dropped from a kept group, to the reason."""
    versions: dict[GroupId, list[int]] = field(default_factory=dict)
    """Versions that were trained on each group, replays included."""

    def of(self, group: GroupId, trajectory_id: str) -> tuple[str, str, list[int]]:
        """Return verdict, reason and versions of a trajectory."""
        if trajectory_id in self.members:
            return "dropped", self.members[trajectory_id], []
        if group in self.versions:
            return TRAINED, "", self.versions[group]
        return (*self.groups.get(group, (UNKNOWN, "")), [])


@dataclass(slots=True)
class Exported:
    """Counts of what was written, and of what was left out."""

    rows: int = 0
    trajectories: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Number of records and sequences that cannot be read, by reason."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Number of trajectories by outcome."""


@dataclass(frozen=True, slots=True)
class TrajectoryTable:
    """A file of trajectories."""

    archive: str
    file: str
    policy: str
    topic: str
    """Topic of the trajectories, without the run's name."""
    rows: int
    trajectories: int
    texts: bool
    """Whether the file also has prompts and completions as text."""
    outcomes: dict[str, int]
    """Number of trajectories by outcome."""
    skipped: dict[str, int]
    """Number of records and sequences that cannot be read, by reason."""
    bytes: int


def export(source: str | Path, policy: str | None, file: Path) -> TrajectoryTable:
    """Write the trajectories of an archive into a new Parquet file, whole or not at all.

    Args:
        source: The archive. Its trajectories are exported, or its curated groups if it has no trajectories.
        policy: Policy of the trajectories; by default the only one.
        file: The new file.

    Raises:
        UsageError: No such archive or policy, a file that exists already, no pyarrow.
        ArchiveCorrupt: A file differs from the manifest.
    """
    archive = Archive(source)
    name, topic = choose_topic(archive, policy)
    done, tokenizer = Exported(), load_tokenizer(archive, name)
    with ParquetFile(file) as out, open_progress("exporting") as tell:
        for group, find_fate in iterate_groups(archive, name, topic, done, tell):
            for row in _build_rows(group, find_fate, tokenizer, done):
                out.write({"run": archive.manifest.run, "run_id": group.run_id, "policy": name, **row})
    return build_table(archive, str(source), file, (name, topic), done, has_texts=tokenizer is not None)


def build_table(
    archive: Archive, source: str, file: Path, of: tuple[str, str], done: Exported, *, has_texts: bool
) -> TrajectoryTable:
    """Return what was written for a policy's topic."""
    policy, topic = of
    return TrajectoryTable(
        archive=source,
        file=str(file),
        policy=policy,
        topic=topic.removeprefix(f"{archive.manifest.run}."),
        rows=done.rows,
        trajectories=done.trajectories,
        texts=has_texts,
        outcomes=dict(sorted(done.outcomes.items())),
        skipped=dict(sorted(done.skipped.items())),
        bytes=file.stat().st_size,
    )


def choose_topic(archive: Archive, policy: str | None) -> tuple[str, str]:
    """Return the policy and the topic of its trajectories, or of its curated groups. Raises UsageError for neither."""
    name = choose_policy(policy, tuple(read_newest_recipe(archive).policies), "run")
    both = (archive.topics.trajectories(name), archive.topics.curated(name))
    topic = next((one for one in both if one in archive.manifest.topics), None)
    if topic is None:
        raise UsageError(
            f"the archive {archive.root} holds neither trajectories nor curated groups of policy {name}: add them with "
            f"`headrace archive --topics {both[0].removeprefix(f'{archive.manifest.run}.')}`"
        )
    return name, topic


def iterate_groups(
    archive: Archive, policy: str, topic: str, done: Exported, tell: Callable[[int, int], None]
) -> Iterator[tuple[TrajectoryGroup, FindFate]]:
    """Yield the groups of a topic, each with what finds the fate of a trajectory; `tell` gets records read, and all."""
    read, whole = 0, archive.manifest.topics[topic].records
    for partition_id in archive.partitions(topic):
        fates, seen = _read_fates(archive, policy, partition_id[1]), set[GroupId]()
        for message in archive.messages(partition_id):
            read += 1
            if (group := _read_group(archive, message, done)) is not None:
                key = GroupId.of(group)
                yield group, _tell_repeated if key in seen else partial(fates.of, key)
                seen.add(key)
            if read % EXPORT_REPORT_EVERY == 0:
                tell(read, whole)


def _tell_repeated(_trajectory_id: str) -> tuple[str, str, list[int]]:
    return REPEATED, "", []


def load_tokenizer(archive: Archive, policy: str) -> Tokenizer | None:
    """Return the tokenizer of the policy's weights; None if the weights are not archived."""
    topic = archive.topics.weights(policy)
    if topic not in archive.manifest.topics:
        return None
    found = None
    for message in archive.messages((topic, 0)):
        event = read_record(message, WeightsPublished)
        found = next((file.claim for file in (event.files if event else ()) if file.name == TOKENIZER_FILE), found)
    try:
        return None if found is None else Tokenizer.from_str(archive.get(found).decode())
    except (ObjectMissing, ObjectCorrupt, ValueError):
        return None


# ---------------------------------------------------------------------------------------------------------------- fates


def _read_fates(archive: Archive, policy: str, partition: int) -> GroupFates:
    """Read what happened to the groups of a partition, which has the same number on every topic of the policy."""
    fates, run_id = GroupFates(), archive.manifest.run_id
    for message in _iterate_messages(archive, (archive.topics.outcomes(policy), partition)):
        outcome = read_record(message, Outcome)
        if outcome is None or outcome.run_id != run_id or outcome.use:
            continue
        if outcome.level == "trajectory":
            fates.members[outcome.trajectory_id] = outcome.reason
        else:
            fates.groups[GroupId.of(outcome)] = (outcome.verdict, outcome.reason)
    for message in _iterate_messages(archive, (archive.topics.batches(policy), 0)):
        batch = read_record(message, BatchTrained)
        if batch is not None and batch.run_id == run_id and batch.version >= 0:
            for use in batch.groups:
                if use.partition == partition:
                    fates.versions.setdefault(GroupId.of(use), []).append(batch.version)
    return fates


def _iterate_messages(archive: Archive, partition_id: PartitionId) -> Iterator[Message]:
    if partition_id[0] in archive.manifest.topics:
        yield from archive.messages(partition_id)


# ----------------------------------------------------------------------------------------------------------------- rows


def _read_group(archive: Archive, message: Message, done: Exported) -> TrajectoryGroup | None:
    """Return the group of a trajectories or curated record; count a record without a group, and return None."""
    try:
        value = message.value
        if message.topic.startswith(archive.topics.curated("")):
            curated = codec.decode(value, CuratedGroup)
            if curated.use:
                return None  # a replay, whose trajectories were written with its first use
            value = curated.group
        group = codec.decode(value, TrajectoryGroup)
        if group.claim is not None:
            group = codec.decode(archive.get_group(group.claim), TrajectoryGroup)
    except SchemaError:
        done.skipped["undecodable"] += 1
        return None
    except (ObjectMissing, ObjectCorrupt):
        done.skipped["missing_object"] += 1
        return None
    if group.run_id != archive.manifest.run_id:
        done.skipped["other_run"] += 1
        return None
    return group


def _build_rows(
    group: TrajectoryGroup, find_fate: FindFate, tokenizer: Tokenizer | None, done: Exported
) -> Iterator[ExportedRow]:
    beside = _build_group_columns(group)
    for trajectory in group.trajectories:
        outcome, reason, versions = find_fate(trajectory.id)
        done.trajectories += 1
        done.outcomes[outcome] += 1
        beside |= {"outcome": outcome, "reason": reason, "trained_versions": versions}
        for index, sequence in enumerate(trajectory.sequences):
            try:
                tokens = _build_token_columns(sequence)
            except ValueError:
                done.skipped["malformed"] += 1
                continue
            done.rows += 1
            yield {
                **beside,
                **_build_trajectory_columns(trajectory, index),
                **tokens,
                **_decode_texts(tokens, tokenizer),
            }


def _build_group_columns(group: TrajectoryGroup) -> ExportedRow:
    return {
        "stream": group.stream,
        "number": group.number,
        "attempt": group.attempt,
        "task_id": group.task_id,
        "tier": group.tier,
        "env": group.env,
        "revision": group.revision,
        "head_version": group.head_version,
        "engine": group.engine,
        "worker": group.worker,
        "logprob_convention": group.logprob_convention,
        "started_ms": group.started_ms,
        "finished_ms": group.finished_ms,
    }


def _build_trajectory_columns(trajectory: Trajectory, index: int) -> ExportedRow:
    sequence = trajectory.sequences[index]
    return {
        "trajectory": trajectory.id,
        "sequence": index,
        "sequences": len(trajectory.sequences),
        "role": sequence.role,
        "agent_id": sequence.agent_id,
        "reward": trajectory.reward,
        "sequence_reward": sequence.reward,
        "reward_parts": json.dumps(trajectory.reward_parts, sort_keys=True),
    }


def _build_token_columns(sequence: Sequence) -> ExportedRow:
    """Return a sequence's tokens, split before the first generated one.

    Raises ValueError if the spans do not cover it, and for a negative id, which no tokenizer can decode.
    """
    if sequence.ids.min(initial=0) < 0:
        raise ValueError(f"token id {sequence.ids.min()} is negative")
    generated = np.array([span.kind == "generated" for span in sequence.spans], np.bool_)
    mask = _repeat_values(generated, [span.length for span in sequence.spans], sequence.ids.size)
    versions = _repeat_values(sequence.version_runs[::2], sequence.version_runs[1::2].tolist(), sequence.ids.size)
    cut = int(mask.argmax()) if mask.any() else sequence.ids.size
    return {
        "prompt_ids": sequence.ids[:cut],
        "completion_ids": sequence.ids[cut:],
        "completion_mask": mask[cut:],
        "completion_logprobs": sequence.logprobs[cut:],
        "completion_versions": versions[cut:],
        "finish_reason": next((span.finish_reason for span in reversed(sequence.spans) if span.finish_reason), ""),
    }


def _repeat_values(values: npt.NDArray[Any], lengths: list[int], size: int) -> npt.NDArray[Any]:
    """Repeat each value. Wrong lengths are refused first, because they could allocate huge memory."""
    if len(values) != len(lengths) or min(lengths, default=0) < 0 or sum(lengths) != size:
        raise ValueError(f"{len(lengths)} spans or version runs do not cover {size} tokens")
    return np.repeat(values, lengths)


def _decode_texts(tokens: ExportedRow, tokenizer: Tokenizer | None) -> ExportedRow:
    if tokenizer is None:
        return {"prompt": None, "completion": None}
    both = (tokens["prompt_ids"].tolist(), tokens["completion_ids"].tolist())
    prompt, completion = (tokenizer.decode(ids, skip_special_tokens=False) for ids in both)
    return {"prompt": prompt, "completion": completion}
