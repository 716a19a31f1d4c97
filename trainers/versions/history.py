"""A trainer's history from its topics: read once, after its transactional id has fenced earlier trainers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import structlog

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.decoding import read_record
from headrace.infra.kafka.topic_offsets import fetch_end_offsets
from headrace.infra.kafka.topic_reader import (
    PartitionId,
    TopicReader,
    find_start_positions,
    read_one,
    read_partition,
    read_range,
)
from headrace.infra.process.signals import StopRequested
from headrace.infra.run.retired import CHECKPOINTS, Retired
from headrace.infra.run.run import Run
from headrace.infra.weights.paths import is_version, is_whole, size_of
from headrace.schemas.records import (
    BatchTrained,
    CheckpointPointer,
    CuratedGroup,
    NamedObject,
    Position,
    WarmStartExamples,
    WeightsPublished,
)
from headrace.schemas.topics import (
    Topics,
    checkpoint_prefix,
    examples_key,
    policy_variant_of,
    trainer_component,
)
from headrace.trainers.health import HEALTH_LOOK_BACK
from headrace.trainers.versions.batch_offsets import BatchOffsets

log = structlog.get_logger()

LAST_RECORDS = 64
"""Offsets at the end of the weights topic that contain at least one record besides transaction markers."""


@dataclass(frozen=True, slots=True)
class WeightStretch:
    """The newest whole weights of a policy and all later deltas, from which a new worker gets the newest version."""

    whole: WeightsPublished | None = None
    deltas: tuple[WeightsPublished, ...] = ()
    delta_bytes: int = 0
    """Size of their objects."""

    @property
    def events(self) -> tuple[WeightsPublished, ...]:
        """All events, in the order in which a worker applies them."""
        return () if self.whole is None else (self.whole, *self.deltas)

    @property
    def whole_bytes(self) -> int:
        """Size of the whole weights."""
        return size_of(self.whole) if self.whole else 0

    def with_event(self, event: WeightsPublished) -> WeightStretch:
        """Return the stretch after this event is published too."""
        if is_whole(event):
            return WeightStretch(event)
        return replace(self, deltas=(*self.deltas, event), delta_bytes=self.delta_bytes + size_of(event))


@dataclass(slots=True)
class History:
    """A trainer's history."""

    checkpoints: dict[int, CheckpointPointer] = field(default_factory=dict)
    """Pointers of all checkpoints by version, except retired ones."""
    retired: tuple[int, ...] = ()
    """Versions of the checkpoints that `headrace gc` has deleted or is about to delete."""
    batches: list[BatchTrained] = field(default_factory=list)
    """Records with a version, oldest first."""
    last: BatchTrained | None = None
    """The newest record, with a version or with evictions only."""
    concluded: set[tuple[int, int]] = field(default_factory=set)
    """(partition, offset) of the curated records that were trained, evicted or refused."""
    published: WeightsPublished | None = None
    """The newest weights event of a version."""
    stretch: WeightStretch = WeightStretch()
    anchor_offset: int = -1
    """Offset of the record of its whole weights on the weights topic."""
    files: tuple[NamedObject, ...] = ()
    """Config and tokenizer, as the newest anchor names them."""
    offsets: BatchOffsets = field(default_factory=BatchOffsets)
    """Offsets of the records on `batches`."""

    @property
    def checkpoint(self) -> CheckpointPointer | None:
        """Pointer of the newest checkpoint; None before the first."""
        return self.checkpoints[max(self.checkpoints)] if self.checkpoints else None


def read_history(run: Run, policy_variant: str, *, recent: bool = False) -> History:
    """Read a policy's history up to the current high watermarks.

    Args:
        run: The run.
        policy_variant: The policy or shadow.
        recent: Read only what a trainer needs to resume from the newest checkpoint: the batches since then, and the
            weights since the newest whole weights.
    """
    topics, fold = run.topics, _Fold(run.run_id, run.topics, policy_variant, recent=recent)
    state = run.state_partition_id(trainer_component(policy_variant))
    if not recent:
        begin = find_start_positions(run.connection, [topics.batches(policy_variant), topics.weights(policy_variant)])
        with TopicReader(run.connection, {**begin, state: 0}, f"history.{policy_variant}") as reader:
            return fold.of(reader.catch_up())
    history = fold.of(read_partition(run.connection, state))
    batches = 0 if history.checkpoint is None else max(0, history.checkpoint.batches_offset)
    history.offsets = BatchOffsets(batches)
    begin = {
        (topics.batches(policy_variant), 0): batches,
        (topics.weights(policy_variant), 0): _find_newest_anchor(run, policy_variant),
    }
    with TopicReader(run.connection, begin, f"history.{policy_variant}") as reader:
        return fold.of(reader.catch_up())


def _find_newest_anchor(run: Run, policy_variant: str) -> int:
    """Return the offset of the newest whole weights' record, as named by the newest record; 0 if there is none."""
    partition_id = (run.topics.weights(policy_variant), 0)
    end = fetch_end_offsets(run.connection, [partition_id])[partition_id]
    found = 0
    for message in read_range(run.connection, partition_id, max(0, end - LAST_RECORDS), end):
        if (event := read_record(message, WeightsPublished)) and event.run_id == run.run_id:
            found = message.offset if is_whole(event) else event.anchor_offset
    whole = read_one(run.connection, partition_id, found) if found > 0 else None
    event = read_record(whole, WeightsPublished) if whole is not None else None
    return found if event is not None and is_whole(event) else 0


def fold_history(messages: Iterable[Message], run_id: str, topics: Topics, policy_variant: str) -> History:
    """Return a policy's history from the messages of its topics batches, weights and state."""
    return _Fold(run_id, topics, policy_variant, recent=False).of(messages)


class _Fold:
    """Takes in messages of a policy's topics; for a recent history those of `state` must come first."""

    def __init__(self, run_id: str, topics: Topics, policy_variant: str, *, recent: bool) -> None:
        self._run_id, self._topics, self._policy_variant, self._recent = run_id, topics, policy_variant, recent
        self._history, self._retired = History(), Retired(run_id, [policy_variant])

    def of(self, messages: Iterable[Message]) -> History:
        """Return the history after these and all earlier messages."""
        history = self._history
        batches, weights = self._topics.batches(self._policy_variant), self._topics.weights(self._policy_variant)
        for message in messages:
            if message.topic == batches:
                if (batch := read_record(message, BatchTrained)) and batch.run_id == self._run_id:
                    self._fold_batch(batch, message.offset)
            elif message.topic == weights:
                event = read_record(message, WeightsPublished)
                if event and event.run_id == self._run_id:
                    _fold_event(history, event, message.offset)
            else:
                self._fold_state(message)
        history.batches.sort(key=lambda batch: batch.version)
        checkpoints = sorted({*history.checkpoints, *history.retired})
        history.retired = tuple(
            v for v in checkpoints if self._retired.has_version(self._policy_variant, CHECKPOINTS, v)
        )
        for version in history.retired:
            history.checkpoints.pop(version, None)
        return history

    def _fold_state(self, message: Message) -> None:
        history = self._history
        if not self._retired.fold_message(message) and message.key.startswith(checkpoint_prefix(self._policy_variant)):
            pointer = read_record(message, CheckpointPointer)
            is_own = pointer and policy_variant_of(pointer.policy, pointer.variant) == self._policy_variant
            if pointer and pointer.run_id == self._run_id and is_own:
                history.checkpoints[pointer.version] = pointer

    def _fold_batch(self, batch: BatchTrained, offset: int) -> None:
        history, newest = self._history, self._history.checkpoint if self._recent else None
        history.last = batch
        history.offsets.note_concluded(batch)
        positions = {} if newest is None else {one.partition: one.offset for one in newest.positions}
        evicted = [eviction.group for eviction in batch.evictions if eviction.group]
        history.concluded.update(
            (use.partition, use.offset)
            for use in (*batch.groups, *evicted)
            if use.offset >= positions.get(use.partition, 0)
        )
        if batch.version < 0:
            return
        history.batches.append(batch)
        history.offsets.note_version_offset(offset)
        if newest is not None:
            history.offsets.find_first_needed(positions)
            if len(history.batches) > HEALTH_LOOK_BACK and history.batches[0].version <= newest.version:
                del history.batches[0]


def _fold_event(history: History, event: WeightsPublished, offset: int) -> None:
    if is_whole(event):
        history.anchor_offset = offset
    elif not is_version(event):
        return
    history.stretch = history.stretch.with_event(event)
    if is_version(event) or history.published is None:  # a recent history may begin with reuploaded whole weights
        history.published = event
    history.files = event.files or history.files


def read_waiting_groups(
    run: Run, policy_variant: str, history: History
) -> tuple[list[Message], dict[PartitionId, int]]:
    """Return the curated records in the last trainer's window, and the positions to which it had read.

    These are all records between the newest checkpoint's positions and the last record's positions that were not
    trained, evicted or made dead letters. They are identified by their offsets, not by their groups: a dead group that
    is sent back is another record, and an unreadable record may be readable now.
    """
    partition_ids = find_start_positions(run.connection, [run.topics.curated(policy_variant)])
    begin = _offsets(partition_ids, history.checkpoint.positions if history.checkpoint else ())
    end = _offsets(partition_ids, history.last.positions if history.last else ())
    with TopicReader(run.connection, begin, f"window.{policy_variant}") as reader:
        waited = [
            message
            for message in reader.read_until(end)
            if message.offset < end[message.topic, message.partition]
            and (message.partition, message.offset) not in history.concluded
            and _is_ours(message, run.run_id)
        ]
    return sorted(waited, key=lambda message: (message.partition, message.offset)), end


def _offsets(partition_ids: Iterable[PartitionId], positions: Iterable[Position]) -> dict[PartitionId, int]:
    known = {position.partition: position.offset for position in positions}
    return {partition_id: known.get(partition_id[1], 0) for partition_id in partition_ids}


def _is_ours(message: Message, run_id: str) -> bool:
    group = read_record(message, CuratedGroup)
    return group is not None and group.run_id == run_id


def wait_for_examples(run: Run, policy: str, stop: threading.Event) -> WarmStartExamples:
    """Wait until the feeder has announced worked examples. Raises StopRequested."""
    state = run.state_partition_id(trainer_component(policy))
    with TopicReader(run.connection, {state: 0}, f"examples.{policy}") as reader:
        log_due = time.monotonic() + 5
        while True:
            for message in reader.poll(timeout_s=0.2):
                if message.key == examples_key(policy) and (found := read_record(message, WarmStartExamples)):
                    return found
            if time.monotonic() > log_due:
                # The warm start waits for the feeder's worked examples.
                log.info("examples.waiting", policy=policy)
                log_due = time.monotonic() + 30
            if stop.is_set():
                raise StopRequested("stopped while waiting for worked examples")
