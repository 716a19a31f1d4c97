"""The adaptors: each process is one production component, and takes one action at a time."""

from __future__ import annotations

import json
import traceback
from contextlib import suppress
from typing import Any, cast

from headrace.consumers.curate.curator import open_curator
from headrace.consumers.curate.issued_numbers import IssuedNumbers
from headrace.consumers.curate.published_versions import PublishedVersions
from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.clients import Fenced, KafkaAway
from headrace.infra.kafka.run_loop import run_loop
from headrace.infra.kafka.topic_reader import TopicReader
from headrace.infra.process.signals import MustRestart
from headrace.infra.stopwatch import Stopwatch
from headrace.producers.feed.feeder import open_feeder
from headrace.schemas.versions import find_version_range
from headrace.trainers.start import begin_or_resume
from headrace.trainers.versions.step_note import StepNote
from protocol.broker import STAGE, Blocked
from protocol.clients import Cut, Writer
from protocol.learner import Pipeline
from protocol.run import NEVER, POLICY, join
from protocol.trainer import ModelTrainer

Key = Any
"""Nested tuples."""


class LoudEnd(Exception):
    """The process says why it cannot go on, and people have to look."""


class OneTurn:
    """A stop that is set after one turn of the run loop."""

    def __init__(self) -> None:
        self._looks = 0

    def is_set(self) -> bool:
        self._looks += 1
        return self._looks > 1

    def wait(self, _seconds: float) -> bool:
        return False


class Process:
    """What is up, or down and can be started. An action that has to wait raises Blocked."""

    is_last = False
    """Whether it ends for good when it ends: another one has replaced it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_up = False

    def actions(self) -> tuple[str, ...]:
        if self.is_up:
            return self.turns()
        return () if self.is_last else ("start",)

    def turns(self) -> tuple[str, ...]:
        """Return what it may do while it is up."""
        raise NotImplementedError

    def act(self, action: str) -> None:
        """Take an action; a process that restarts itself is down after it. Raises Blocked, and LoudEnd."""
        try:
            getattr(self, action)()
        except (Fenced, MustRestart, KafkaAway):
            self.end()
        except HeadraceError as error:
            raise LoudEnd(f"{self.name}: {type(error).__name__}: {error}") from error
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            raise LoudEnd(f"{self.name}: {type(error).__name__}: {error}, in {at.name}") from error

    def start(self) -> None:
        """Build the component from what is committed."""
        raise NotImplementedError

    def end(self) -> None:
        """The process ends, or is killed: its memory is gone, and a group expels its member."""
        self.is_up = False
        self.forget()

    def wake(self) -> None:
        """Go on after a sleep."""

    def expel(self) -> None:
        """Be taken for dead by a group."""

    def forget(self) -> None:
        """Drop the memory."""
        raise NotImplementedError

    def key(self) -> Key:
        """Return all of the memory that decides what follows."""
        raise NotImplementedError


class Looped(Process):
    """A component of the run loop, with its writer."""

    body: Any = None
    writer: Any = None

    def turns(self) -> tuple[str, ...]:
        return ("turn",)

    def turn(self) -> None:
        run_loop(self.body, self.writer, OneTurn(), Stopwatch())  # type: ignore[arg-type]  # a stop of one turn

    def cut(self) -> None:
        """Take a turn up to its commit, and no further; Blocked where it has none."""
        self.writer.cut = "commit"
        with suppress(Cut):
            self.turn()
        if not self.writer.is_open:
            raise Blocked

    def wake(self) -> None:
        """Ask for the commit of a turn that was cut; where that fails, the process ends."""
        if self.writer is not None and self.writer.is_open:
            try:
                self.writer.commit()
            except Fenced:
                self.end()

    def forget(self) -> None:
        self.body = self.writer = None

    def key(self) -> Key:
        if self.body is None:
            return (self.name, False)
        return (self.name, self.writer.epoch, self.writer.is_open, self.memory())

    def memory(self) -> Key:
        raise NotImplementedError


def positions_of(reader: TopicReader | None) -> Key:
    return tuple(sorted(reader.positions.items())) if reader is not None else ()


class FeederProcess(Looped):
    def start(self) -> None:
        self.writer = Writer("m.feed")
        self.body = open_feeder(join(), self.writer)
        self.is_up = True

    def memory(self) -> Key:
        feeder = self.body
        overdue = feeder._commits._overdue
        waits = tuple((key, tuple(wait.ends.items()), wait.since_s) for key, wait in overdue._waits.items())
        state = json.dumps(feeder.state.snapshot(), sort_keys=True)
        table = feeder.state.pacing.table
        is_open = repr(table.open), repr(table.dead), tuple(sorted(table._changed))
        flags = feeder._caught_up, feeder._changed, feeder._snapshot_due > STAGE.broker.now
        revision = feeder.state.revision.recipe, feeder.state.revision.ended
        return (state, revision, is_open, positions_of(feeder.own.reader), waits, feeder._commits._look_due, flags)


class CuratorProcess(Looped):
    published: Any = None
    issued: Any = None

    def start(self) -> None:
        self.writer = Writer(f"m.curate.{POLICY}.{self.name}")
        run = join()
        self.published, self.issued = PublishedVersions(run, POLICY), IssuedNumbers(run)
        self.body = open_curator(run, POLICY, self.published, self.issued)
        self.is_up = True

    def expel(self) -> None:
        STAGE.broker.leave(self.body._consumer.member)

    def forget(self) -> None:
        if self.body is not None:
            self.expel()
        self.published = self.issued = None
        super().forget()

    def memory(self) -> Key:
        body = self.body
        held = tuple(
            (partition_id, one.position, one.state.snapshot(), _chains_of(one.state), one.handled, one.snapshot_offset)
            for partition_id, one in sorted(body._held.items())
        )
        consumer = body._consumer
        assert body._restore is None, "a turn takes no time"
        issued, published = self.issued, self.published
        asked = (
            tuple(issued._next.items()), positions_of(issued._reader), tuple(issued._met.items()), issued._met_until,
            published._newest, positions_of(published._reader), tuple(published._read_to.items()),
        )  # fmt: skip
        return (tuple(sorted(body._owned)), held, tuple(sorted(consumer._positions.items())), consumer.epoch, asked)


def _chains_of(curation: Any) -> Key:
    """Return what a snapshot leaves out: two commands may have given one revision different chains, in two worlds."""
    chains = curation._chains
    names = tuple(sorted(chains._firsts.items()))
    return names, tuple(repr(chains._context.recipe_of(first).curate.chain) for first in sorted(chains._chains))


def _entry_key(entry: Any) -> Key:
    decoded = entry.payload.decoded
    newest = find_version_range(decoded.trajectory_group.trajectories)[1]
    versions = entry.min_version, entry.deadline_version, newest
    return entry.use_id, entry.arrival, versions, decoded.curated.revision, entry.digest


class TrainerProcess(Looped):
    def start(self) -> None:
        self.writer = Writer(f"m.train.{POLICY}")
        run = join()
        resumed = begin_or_resume(run, POLICY, self.writer, NEVER)
        self.body = ModelTrainer(run, POLICY, resumed, Stopwatch(), cast("StepNote", None))
        self.is_up = True

    def turns(self) -> tuple[str, ...]:
        return ("turn", "publish") if self.pipeline.may_publish else ("turn",)

    @property
    def pipeline(self) -> Pipeline:
        found: Pipeline = self.body._pipeline
        return found

    def publish(self) -> None:
        self.pipeline.upload_version()

    def memory(self) -> Key:
        body, scheduler, pipeline = self.body, self.body.scheduler, self.pipeline
        window = tuple(map(_entry_key, scheduler.window.list_waiting()))
        evictions = tuple((_entry_key(one.entry), one.verdict) for one in scheduler._evictions._waiting)
        flights = tuple(
            (flight.request.version, tuple(map(_entry_key, flight.request.batch)), flight.uploaded is not None)
            for flight in pipeline.flights
        )
        checks, base = scheduler._store_checks, body._pipeline._uploader.base
        stretch = tuple((event.kind, event.version) for event in base.stretch.events) if base else ()
        waiting = tuple((message.partition, message.offset, message.value) for message in body._waiting)
        since = scheduler._evictions._since if evictions else 0.0
        check = (checks._since, checks._due, checks._checks, pipeline.asked_to_check, len(pipeline._found))
        return (
            body.run.revision, pipeline.learner.state, window, evictions, since, flights, stretch, waiting, check,
            scheduler.ended,
            (body._messages.epoch, body._messages.weights_hash, body._messages.log_hash, repr(body._messages.offsets)),
            (pipeline.free_since, body._intake.arrived_at),
            positions_of(body._reader), scheduler._leaves,
        )  # fmt: skip
