"""The feeder, `headrace feed`: issues the tasks of a run, as fast as its trainers can take them. One per run.

Tasks and the state that they came from go into one transaction, and the transactional id fences an older feeder, so
over any number of restarts no number is skipped or given twice.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from headrace.envs.contract import Environment
from headrace.envs.registry import load_environment
from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.kafka.clients import Message, Outgoing, RunAddress, parse_run
from headrace.infra.kafka.dead_letters import dead_letter
from headrace.infra.kafka.decoding import Rejected, decode_own
from headrace.infra.kafka.group_offsets import commits, delete_before
from headrace.infra.kafka.run_loop import run_loop
from headrace.infra.kafka.transactions import Ticket, TransactionalWriter
from headrace.infra.log import configure_logging
from headrace.infra.process.signals import JOIN_PATIENCE_S, MustRestart, keep_running, stop_on_signals
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.own_positions import OwnPositions, Role
from headrace.infra.run.revisions import differ_by_chain, join_to_write
from headrace.infra.run.run import Run, read_revision, read_revisions
from headrace.infra.stopwatch import Stopwatch
from headrace.producers.feed.feed_state import FeedState, Planned
from headrace.producers.feed.pacing import Overdue
from headrace.producers.feed.selectors.registry import load_selectors
from headrace.producers.feed.task_source import TaskSource
from headrace.producers.feed.worked_examples import send_examples
from headrace.producers.task_ledger import is_of_run
from headrace.schemas import codec
from headrace.schemas.headers import task_key, task_stamp
from headrace.schemas.ids import now_ms
from headrace.schemas.records import BatchTrained, DeadLetter, Outcome, RecipeRevision, WeightsPublished

log = structlog.get_logger()

COMPONENT = "feed"
TURN_S = 0.1
"""Conclusions are gathered for so long before tasks follow from them."""
SNAPSHOT_EVERY_S = 5.0
LOOK_EVERY_S = 10.0
"""How often the workers' commits are looked at; more often when tasks are to be reissued sooner than that."""
DELETE_EVERY_S = 60.0


class Feeder:
    """Implements the run loop's `Component`.

    The offsets of tasks are part of the state: they say whether the workers committed past them. So the snapshot is
    taken before the commit, when the turn's tasks have their offsets, and stands in the same transaction.
    """

    def __init__(self, run: Run, own: OwnPositions, state: FeedState) -> None:
        self.run, self.own, self.state = run, own, state
        if own.restored is not None:
            state.restore(json.loads(own.restored))
        self._take = _takers(run, state)
        self._commits = TaskCommits(run)
        self._planned: list[Planned] = []
        self._announcements: list[Outgoing] = []
        self._caught_up = self._changed = False
        self._snapshot_due = 0.0

    def poll(self, watch: Stopwatch) -> list[Message]:
        """Return the next records; the first time all that came since the snapshot, so that nothing looks lost."""
        if not self._caught_up:
            self._caught_up = True
            return list(self.own.catch_up())
        return self.own.poll(watch, TURN_S)

    def handle(self, message: Message) -> Iterable[Outgoing]:
        """Learn from a record; what cannot be read becomes a dead letter."""
        self._changed = True
        if message.topic == self.run.topics.recipe:
            self._follow(read_revision(message))
            return ()
        kind, take = self._take[message.topic]
        try:
            record = self._record(message.value, kind)
        except Rejected as rejected:
            return self._dead(message, kind, rejected)
        take(record)
        return ()

    def _record(self, value: bytes, kind: type[Any]) -> Any:
        """Return the record of a message. Raises Rejected."""
        record = decode_own(value, kind, self.run.run_id)
        if kind is not DeadLetter and record.policy not in self.run.recipe.policies:
            raise Rejected("misrouted", f"policy {record.policy[:80]!r} is none of this run's")
        if self.state.is_leap(record):
            raise Rejected("time_travel", f"version {record.version} is no next one")
        return record

    def _follow(self, revision: RecipeRevision | None) -> None:
        """Follow a later revision of the recipe. Raises MustRestart for one that changes more than the chain."""
        known = self.state.revision
        if revision is None or revision.run_id != known.run_id or revision.revision <= known.revision:
            return
        recipe = Recipe.from_json(revision.recipe)
        if not differ_by_chain(self.state.recipe, recipe):
            raise MustRestart(f"revision {revision.revision} of the recipe changes more than its chain")
        self.state.swap(revision, recipe)
        log.info("chain.swapped", revision=revision.revision, begins=dict(self.state.pacing.next))
        if self.state.ended:
            self._announce_end(self.state.ended)  # the newest revision is what says whether a run is over

    def _dead(self, message: Message, kind: type, rejected: Rejected) -> Iterable[Outgoing]:
        if kind is DeadLetter:
            # A dead letter about a dead letter would be read here again, without end.
            log.warning("letter.ignored", offset=message.offset, reason=rejected.reason, detail=rejected.detail)
            return ()
        return [dead_letter(self.run.topics, self.run.run_id, COMPONENT, message, rejected.why)]

    def tick(self) -> Iterable[Outgoing]:
        """Plan tasks; return them, and the word that the run is over."""
        self._planned += self.state.plan()
        self._planned += self.state.again(self._commits.overdue(self.state))
        if why := self.state.end():
            log.info("run.ended", why=why)
            self._announce_end(why)
        announcements, self._announcements = self._announcements, []
        return [*(self._outgoing(planned) for planned in self._planned), *announcements]

    def _announce_end(self, why: str) -> None:
        ended = replace(self.state.revision, ended=why, created_ms=now_ms())
        topic, key = self.run.topics.recipe, str(ended.revision).encode()
        self._announcements.append(Outgoing(topic, codec.encode(ended), key, partition=0))

    @property
    def moved(self) -> bool:
        """Whether a snapshot is due."""
        return self._changed and time.monotonic() >= self._snapshot_due

    def before_commit(self, ticked: Sequence[Ticket]) -> Iterable[Outgoing]:
        """Return the state with the offsets that the planned tasks got: the tick's first records."""
        for planned, ticket in zip(self._planned, ticked[: len(self._planned)], strict=True):
            if planned.open is not None:
                planned.open.offset = ticket.offset
        self._planned, self._changed = [], False
        self._snapshot_due = time.monotonic() + SNAPSHOT_EVERY_S
        return [self.own.snapshot(json.dumps(self.state.snapshot()).encode())]

    def offsets(self, before: Sequence[Ticket]) -> None:
        """None: positions stand in the snapshot."""

    def _outgoing(self, planned: Planned) -> Outgoing:
        task = planned.task
        topic, key = self.run.topics.tasks(task.stream), task_key(task.stream, task.number)
        return Outgoing(topic, codec.encode(task), key, task_stamp(task).to_headers(), planned.partition)

    def rewind(self) -> None:
        """Raise MustRestart."""
        self.own.rewind()

    def close(self) -> None:
        """Leave."""
        self.own.close()


class TaskCommits:
    """Looks now and then at how far the workers are, and deletes the tasks that they are done with."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._overdue = Overdue(run.recipe.feed.reissue_after_s)
        self._every_s = min(LOOK_EVERY_S, run.recipe.feed.reissue_after_s / 2)
        self._look_due = 0.0
        self._delete_due = time.monotonic() + DELETE_EVERY_S

    def overdue(self, state: FeedState) -> list[tuple[str, int]]:
        """Return numbers that the workers committed past and nobody concluded for too long; mostly none."""
        now = time.monotonic()
        if now < self._look_due:
            return []
        self._look_due = now + self._every_s
        try:
            committed = {place: offset for stream in state.sources for place, offset in self._of(stream).items()}
            if now >= self._delete_due:
                self._delete_due = now + DELETE_EVERY_S
                topics = self.run.topics
                delete_before(
                    self.run.connection, {(topics.tasks(s), p): offset for (s, p), offset in committed.items()}
                )
        except HeadraceError as error:  # away, or without the right to delete: tasks then stay, no more
            log.info("commits.unknown", error=str(error))
            return []
        return self._overdue.due(state.pacing.passed(committed), now)

    def _of(self, stream: str) -> dict[tuple[str, int], int]:
        topic = self.run.topics.tasks(stream)
        found = commits(self.run.connection, self.run.topics.rollout_group(stream), [topic])
        ours = {place: commit for place, commit in found.items() if is_of_run(commit.metadata, self.run.run_id)}
        return {(stream, partition): commit.offset for (_, partition), commit in ours.items()}


def _takers(run: Run, state: FeedState) -> dict[str, tuple[type[Any], Callable[[Any], None]]]:
    """Return, by topic, the record class and what takes it."""
    takers: dict[str, tuple[type[Any], Callable[[Any], None]]] = {
        run.topics.dead_letters: (DeadLetter, state.take_dead_letter)
    }
    for policy in run.recipe.policies:
        takers[run.topics.outcomes(policy)] = (Outcome, state.take_outcome)
        takers[run.topics.batches(policy)] = (BatchTrained, state.take_batch)
        takers[run.topics.weights(policy)] = (WeightsPublished, state.take_weights)
    return takers


def open_feeder(run: Run, writer: TransactionalWriter) -> Feeder:
    """Build the feeder of a run from what is committed; the writer, built before, has fenced any other.

    Raises UsageError when the recipe asks for what its environments or selectors cannot give.
    """
    recipe, revision = run.recipe, read_revisions(run.address)[-1]
    sources = {name: _source(run, name) for name in recipe.workflows}
    send_examples(run, writer, {name: source.environment for name, source in sources.items()})
    for source in sources.values() if recipe.evaluate.every else ():
        source.held_out(recipe.evaluate.problems)
    state = FeedState(recipe, revision, sources)
    topics = (*_takers(run, state), run.topics.recipe)
    own = OwnPositions(Role(run.connection, COMPONENT, run.run_id, run.topics.state, topics))
    return Feeder(run, own, state)


def _source(run: Run, workflow: str) -> TaskSource:
    recipe = run.recipe
    use = recipe.workflows[workflow].env

    def build(more: dict[str, Any]) -> Environment:
        try:
            return load_environment(use.use, recipe.seed, {**use.settings, **more})
        except ValueError as error:
            raise UsageError(f"workflows.{workflow}.env: {error}") from error

    selectors = load_selectors(recipe.feed.selector, recipe.seed)
    if selectors.chooser and recipe.feed.raise_tier:
        raise UsageError(f"feed.raise_tier and feed.selector {selectors.chooser} both choose the tier: keep one")
    return TaskSource(workflow, build, selectors)


def feed(address: RunAddress, stop: threading.Event) -> None:
    """Feed a run until `stop` is set. Raises MustRestart or Unavailable when it is to be built anew."""
    run = join_to_write(address, JOIN_PATIENCE_S, stop)
    writer = TransactionalWriter(run.connection, f"{address.run}.{COMPONENT}", run.topic_names)
    with closing(writer), closing(open_feeder(run, writer)) as feeder:
        log.info("feeder.started", revision=run.revision, issued=dict(feeder.state.pacing.next))
        run_loop(feeder, writer, stop, Stopwatch())


def main(run: str) -> None:
    """Run the feeder of `kafka://host:port/run` until a signal."""
    address = parse_run(run)
    configure_logging(COMPONENT, run=address.run)
    keep_running(partial(feed, address), stop_on_signals())
