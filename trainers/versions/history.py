"""What the topics say of a trainer's past: read once, after its transactional id fenced whoever wrote before."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import structlog

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.decoding import read_record
from headrace.infra.kafka.topic_reader import Place, TopicReader, read_all, whole_topics
from headrace.infra.process.signals import ToldToStop
from headrace.infra.run.retired import CHECKPOINTS, Retired
from headrace.infra.run.run import Run
from headrace.infra.weights.paths import ANCHOR, is_version, size_of
from headrace.schemas.records import (
    BatchTrained,
    CheckpointPointer,
    CuratedGroup,
    NamedObject,
    Position,
    WarmStartExamples,
    WeightsPublished,
)
from headrace.schemas.topics import Topics, checkpoint_prefix, examples_key

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class AnchorMark:
    """The newest whole weights of a policy, and what was published since."""

    size_bytes: int = 0
    versions: int = 0
    """Published as deltas since."""
    delta_bytes: int = 0
    """Their size."""

    def after(self, delta_bytes: int) -> AnchorMark:
        """Return the mark when one more version is published as a delta of this size."""
        return replace(self, versions=self.versions + 1, delta_bytes=self.delta_bytes + delta_bytes)


@dataclass(slots=True)
class History:
    """A trainer's past."""

    checkpoints: dict[int, CheckpointPointer] = field(default_factory=dict)
    """By version, all that were ever taken, but for those that are retired."""
    retired: tuple[int, ...] = ()
    """Versions of the checkpoints that `headrace gc` has deleted, or is about to."""
    batches: list[BatchTrained] = field(default_factory=list)
    """Records that made a version, oldest first."""
    last: BatchTrained | None = None
    """The newest record, whether it made a version or only reported evictions."""
    concluded: set[tuple[int, int]] = field(default_factory=set)
    """(partition, offset) of the curated records that were trained, evicted or refused."""
    published: WeightsPublished | None = None
    """The newest."""
    anchor: AnchorMark = AnchorMark()
    """The newest anchor, and what was published since."""
    anchor_offset: int = -1
    """Where its record stands on the weights topic."""
    files: tuple[NamedObject, ...] = ()
    """Config and tokenizer, as the newest anchor names them."""

    @property
    def checkpoint(self) -> CheckpointPointer | None:
        """The newest, None before the first."""
        return self.checkpoints[max(self.checkpoints)] if self.checkpoints else None


def read_history(run: Run, policy: str) -> History:
    """Read a policy's past up to the high watermarks of this moment."""
    topics = run.topics
    told = read_all(run.connection, [topics.batches(policy), topics.weights(policy), topics.state])
    return history_in(told, run.run_id, topics, policy)


def history_in(told: Iterable[Message], run_id: str, topics: Topics, policy: str) -> History:
    """Return a policy's past as messages of its topics batches, weights and state tell it."""
    history, retired = History(), Retired(run_id, [policy])
    batches, weights = topics.batches(policy), topics.weights(policy)
    for message in told:
        if message.topic == batches:
            if (batch := read_record(message, BatchTrained)) and batch.run_id == run_id:
                _take_batch(history, batch)
        elif message.topic == weights:
            published = read_record(message, WeightsPublished)
            if published and published.run_id == run_id:
                _take_event(history, published, message.offset)
        elif not retired.take(message) and message.key.startswith(checkpoint_prefix(policy)):
            pointer = read_record(message, CheckpointPointer)
            if pointer and pointer.run_id == run_id:
                history.checkpoints[pointer.version] = pointer
    history.batches.sort(key=lambda batch: batch.version)
    history.retired = tuple(v for v in sorted(history.checkpoints) if retired.has(policy, CHECKPOINTS, v))
    for version in history.retired:
        del history.checkpoints[version]
    return history


def _take_event(history: History, event: WeightsPublished, offset: int) -> None:
    if not is_version(event):
        return
    history.published = event
    if event.kind == ANCHOR:
        history.anchor, history.anchor_offset = AnchorMark(size_of(event)), offset
    else:
        history.anchor = history.anchor.after(size_of(event))
    history.files = event.files or history.files


def _take_batch(history: History, batch: BatchTrained) -> None:
    history.last = batch
    evicted = [eviction.group for eviction in batch.evictions if eviction.group]
    history.concluded.update((use.partition, use.offset) for use in (*batch.groups, *evicted))
    if batch.version >= 0:
        history.batches.append(batch)


def what_waited(run: Run, policy: str, history: History) -> tuple[list[Message], dict[Place, int]]:
    """Return the curated records that the last incarnation's window held, and where it had read to.

    That is all between the newest checkpoint's positions and the last record's that was neither trained nor evicted,
    nor became a dead letter. Known by their places, not by their groups: a group that was dead and is driven here once
    more is another record, and one that nobody could read then may be readable now.
    """
    places = whole_topics(run.connection, [run.topics.curated(policy)])
    begin = _offsets(places, history.checkpoint.positions if history.checkpoint else ())
    end = _offsets(places, history.last.positions if history.last else ())
    with TopicReader(run.connection, begin, f"window.{policy}") as reader:
        waited = [
            message
            for message in reader.until(end)
            if message.offset < end[message.topic, message.partition]
            and (message.partition, message.offset) not in history.concluded
            and _is_ours(message, run.run_id)
        ]
    return sorted(waited, key=lambda message: (message.partition, message.offset)), end


def _offsets(places: Iterable[Place], positions: Iterable[Position]) -> dict[Place, int]:
    known = {position.partition: position.offset for position in positions}
    return {place: known.get(place[1], 0) for place in places}


def _is_ours(message: Message, run_id: str) -> bool:
    group = read_record(message, CuratedGroup)
    return group is not None and group.run_id == run_id


def wait_for_examples(run: Run, policy: str, stop: threading.Event) -> WarmStartExamples:
    """Wait until the feeder has put worked examples into the store. Raises ToldToStop."""
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
                raise ToldToStop("told to stop while waiting for worked examples")
