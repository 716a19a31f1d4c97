"""What the topics say of a trainer's past: read once, after its transactional id fenced whoever wrote before."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import structlog

from infra.errors import HeadraceError
from infra.process import MustRestart
from infra.run import Run, read_record
from infra.topic_reader import Place, TopicReader, read_all, read_range, whole_topics
from schemas.records import (
    BatchTrained,
    CheckpointPointer,
    CuratedGroup,
    GroupUse,
    WarmStartExamples,
    WeightsPublished,
)
from schemas.topics import checkpoint_prefix, examples_key

log = structlog.get_logger()

Key = tuple[str, int, int]
"""(stream, number, use)."""


class LineageBroken(HeadraceError):
    """A group that a batch names is not on the curated topic any more."""


@dataclass(slots=True)
class History:
    """A trainer's past, oldest first."""

    checkpoints: dict[int, CheckpointPointer] = field(default_factory=dict)
    """By version, all that were ever taken."""
    batches: list[BatchTrained] = field(default_factory=list)
    """Records that made a version."""
    concluded: set[tuple[int, int]] = field(default_factory=set)
    """(partition, offset) of the curated records that were trained or evicted. Places, not names: a dead record that
    was sent back stands at another place under the same name, and is to be taken."""
    published: WeightsPublished | None = None
    """The newest."""

    @property
    def checkpoint(self) -> CheckpointPointer | None:
        """The newest, None before the first."""
        return self.checkpoints[max(self.checkpoints)] if self.checkpoints else None


def read_history(run: Run, policy: str) -> History:
    """Read a policy's past up to the high watermarks of this moment."""
    topics, history = run.topics, History()
    batches, weights = topics.batches(policy), topics.weights(policy)
    for message in read_all(run.connection, [batches, weights, topics.state]):
        if message.topic == batches:
            if (batch := read_record(message, BatchTrained)) and batch.run_id == run.run_id:
                _take_batch(history, batch)
        elif message.topic == weights:
            published = read_record(message, WeightsPublished)
            if published and published.run_id == run.run_id:
                history.published = published
        elif message.key.startswith(checkpoint_prefix(policy)):
            pointer = read_record(message, CheckpointPointer)
            if pointer and pointer.run_id == run.run_id:
                history.checkpoints[pointer.version] = pointer
    history.batches.sort(key=lambda batch: batch.version)
    return history


def _take_batch(history: History, batch: BatchTrained) -> None:
    history.concluded.update((group.partition, group.offset) for group in batch.groups)
    history.concluded.update((e.group.partition, e.group.offset) for e in batch.evictions if e.group)
    if batch.version >= 0:
        history.batches.append(batch)


def key_of(group: GroupUse | CuratedGroup) -> Key:
    """Return the identity of one use of one group."""
    return (group.stream, group.number, group.use)


def groups_of(run: Run, policy: str, batches: Iterable[BatchTrained]) -> dict[Key, CuratedGroup]:
    """Return the curated groups that these batches name, read at the positions that they hint at.

    Raises LineageBroken when one is missing.
    """
    wanted = {key_of(group): group for batch in batches for group in batch.groups}
    topic = run.topics.curated(policy)
    found: dict[Key, CuratedGroup] = {}
    for partition in sorted({group.partition for group in wanted.values()}):
        offsets = {group.offset for group in wanted.values() if group.partition == partition}
        for message in read_range(run.connection, (topic, partition), min(offsets), max(offsets) + 1):
            if message.offset not in offsets:  # there may be garbage between them
                continue
            curated = read_record(message, CuratedGroup)
            if curated and curated.run_id == run.run_id and key_of(curated) in wanted:
                found[key_of(curated)] = curated
    if missing := sorted(wanted.keys() - found.keys()):
        raise LineageBroken(f"{topic} no longer holds {missing[:5]}, which a batch was trained on: was it shortened?")
    return found


def wait_for_examples(run: Run, policy: str, stop: threading.Event) -> WarmStartExamples:
    """Wait until the feeder has put worked examples into the store. Raises MustRestart when told to stop."""
    state = run.topics.state
    with TopicReader(run.connection, whole_topics(run.connection, [state]), f"examples.{policy}") as reader:
        said = time.monotonic() + 5
        while True:
            for message in reader.poll(timeout_s=0.2):
                if message.key == examples_key(policy) and (found := read_record(message, WarmStartExamples)):
                    return found
            if time.monotonic() > said:
                log.info("examples.waiting", policy=policy)
                said = time.monotonic() + 30
            if stop.is_set():
                raise MustRestart("told to stop while waiting for worked examples")


def resume_positions(history: History, places: Iterable[Place]) -> dict[Place, int]:
    """Return where to read the curated topic again so that nothing of the window is missed."""
    known = {p.partition: p.offset for p in history.checkpoint.positions} if history.checkpoint else {}
    return {place: known.get(place[1], 0) for place in places}
