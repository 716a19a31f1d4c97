"""The feeder, `headrace feed`: issues a run's tasks as fast as its trainers can use them. One per run.

Tasks and the state behind them are written in one transaction, and the transactional id fences an older feeder. So
no number is skipped or issued twice, however often the feeder restarts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import structlog

from headrace.envs.contract import Environment
from headrace.envs.data.rows import read_data_of
from headrace.envs.identity import identify_environment
from headrace.envs.registry import load_environment
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Message, Outgoing
from headrace.infra.kafka.dead_letters import build_dead_letter
from headrace.infra.kafka.decoding import LARGEST_LEAP, MessageRefused, Refusal, decode_own
from headrace.infra.kafka.transactions import Ticket, TransactionalWriter
from headrace.infra.process.signals import MustRestart
from headrace.infra.recipe.plug_in_sources import check_sources, feeder_plug_ins
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.own_positions import SNAPSHOT_EVERY_S, OwnPositions, Role, run_alone
from headrace.infra.run.recorded_data import check_data, find_other_versions
from headrace.infra.run.revisions import is_chain_change
from headrace.infra.run.run import Run, read_revision, read_revisions
from headrace.infra.stopwatch import Stopwatch
from headrace.producers.feed.feed_state import FeedState
from headrace.producers.feed.lost_regions import LostRegions
from headrace.producers.feed.planned import Planned
from headrace.producers.feed.selectors.registry import load_feed_selectors
from headrace.producers.feed.task_commits import TaskCommits
from headrace.producers.feed.task_source import TaskSource
from headrace.producers.feed.worked_examples import send_examples
from headrace.schemas import codec
from headrace.schemas.avro import Plain
from headrace.schemas.headers import task_key, task_stamp
from headrace.schemas.ids import now_ms
from headrace.schemas.records import BatchTrained, DeadLetter, EvalResult, Outcome, RecipeRevision, WeightsPublished
from headrace.schemas.topics import FEEDER

log = structlog.get_logger()

TURN_S = 0.1
"""Seconds for which conclusions are collected before tasks are planned from them."""
MOST_CHANGED = 256
"""Chunks of open numbers that may have changed before a snapshot is due."""


class Feeder:
    """Implements the run loop's `Component`.

    The state holds the offsets of tasks, to see whether the workers committed past them. So the snapshot is taken in
    the same transaction as the turn's tasks, when they have their offsets, before the commit.
    """

    def __init__(self, run: Run, own: OwnPositions, state: FeedState) -> None:
        self.run, self.own, self.state = run, own, state
        if own.restored is not None:
            state.restore(json.loads(own.restored), {name: json.loads(part) for name, part in own.parts.items()})
        self._take = _list_handlers(run, state)
        self._outcomes = {topic for topic, (kind, _) in self._take.items() if kind is Outcome}
        self._commits = TaskCommits(run)
        self._regions = LostRegions({name: region.lost_after_s for name, region in run.recipe.regions.items()})
        self._planned: list[Planned] = []
        self._announcements: list[Outgoing] = []
        self._caught_up = self._changed = False
        self._said_over = ""
        self._snapshot_due = 0.0

    def poll(self, watch: Stopwatch) -> list[Message]:
        """Return the next records; the first call returns all since the snapshot, so that nothing looks lost.

        Outcomes come first: Kafka gives topics in any order, and an outcome after its group's batch would be ignored.
        """
        if self._caught_up:
            found = self.own.poll(watch, TURN_S)
        else:
            self._caught_up, found = True, list(self.own.catch_up())
        return sorted(found, key=lambda message: message.topic not in self._outcomes)

    def handle(self, message: Message) -> Iterable[Outgoing]:
        """Take in a record; an unreadable one becomes a dead letter."""
        self._changed = True
        if message.topic == self.run.topics.recipe:
            self._follow(read_revision(message))
            return ()
        kind, take = self._take[message.topic]
        try:
            record = self._decode(message.value, kind)
        except MessageRefused as refused:
            return self._refuse(message, kind, refused)
        take(record)
        return ()

    def _decode(self, value: bytes, kind: type[Any]) -> Any:
        """Return the record of a message. Raises MessageRefused."""
        record = decode_own(value, kind, self.run.run_id)
        if kind is not DeadLetter and record.policy not in self.run.recipe.policies:
            raise MessageRefused("misrouted", f"this run has no policy {record.policy[:80]!r}")
        if self.state.has_impossible_version(record):
            raise MessageRefused(
                "time_travel",
                f"version {record.version} of policy {record.policy} is more than {LARGEST_LEAP} versions ahead of the "
                f"newest version that the feeder knows, {self.state.find_newest_version(record.policy)}",
            )
        return record

    def _follow(self, revision: RecipeRevision | None) -> None:
        """Follow a later revision of the recipe.

        Raises MustRestart for one that changes more than the chain, and OtherSource or SourceChanged.
        """
        known = self.state.revision
        if revision is None or revision.run_id != known.run_id or revision.revision <= known.revision:
            return
        recipe = Recipe.from_json(revision.recipe)
        if not is_chain_change(self.state.recipe, recipe):
            raise MustRestart(
                f"recipe revision {revision.revision} changes more than curate.chain: the feeder starts again"
            )
        check_sources(revision.plug_ins, feeder_plug_ins(recipe))
        self.state.swap(revision, recipe)
        # New tasks carry the revision of `headrace swap`; `begins` has the first number of each workflow.
        log.info("chain.swapped", revision=revision.revision, begins=dict(self.state.pacing.next))
        if self.state.ended:
            self._announce_end(self.state.ended)  # the newest revision decides whether a run is over

    def _refuse(self, message: Message, kind: type, refused: MessageRefused) -> Iterable[Outgoing]:
        if kind is DeadLetter:
            # The dead letter cannot be read, or is of another run.
            log.warning("letter.ignored", offset=message.offset, reason=refused.reason, detail=refused.detail)
            return ()  # a dead letter about a dead letter would be read here again, without end
        return [build_dead_letter(self.run.topics, self.run.run_id, FEEDER, message, refused.refusal)]

    def tick(self) -> Iterable[Outgoing]:
        """Plan tasks; return them, and the announcement that the run is over."""
        self._planned += self.state.plan()
        overdue = self._commits.find_overdue(self.state)
        dead = [self._build_unanswered(planned) for planned in self.state.conclude_unanswered(overdue)]
        self._planned += self.state.reissue_lost(overdue)
        self._planned += self._reissue_from_lost_regions()
        if why := self.state.end():
            log.info("run.ended", why=why)
            self._announce_end(why)
        if self.state.ended != self._said_over:  # a feeder that was started by hand outlives the run
            self._said_over = self.state.ended
            if self._said_over:
                now = "no new task is issued; stop this process when `headrace status` shows no group in flight"
                log.info("run.over", why=self._said_over, now=now)
        announcements, self._announcements = self._announcements, []
        return [*(self._build_outgoing(planned) for planned in self._planned), *announcements, *dead]

    def _reissue_from_lost_regions(self) -> list[Planned]:
        pacing, found = self.state.pacing, []
        for stream, groups in self._regions.find_lost(pacing.tasks, pacing.answers, time.monotonic()).items():
            # No group came from a region for its `lost_after_s`: its open tasks are issued again at home.
            log.warning("region.lost", stream=stream, tasks=len(groups))
            for group in groups:
                pacing.move_home(group)
            found += self.state.reissue_lost(groups)
        return found

    def _build_unanswered(self, planned: Planned) -> Outgoing:
        """Return the dead letter of a task that has used all its attempts without an answer."""
        sent, attempts = self._build_outgoing(planned), planned.task.attempt + 1
        message = Message(sent.topic, sent.partition, planned.open.offset, sent.key, sent.value, sent.headers)
        why = (
            f"workers finished this task {attempts} times, but a group of it is still missing or unreadable: look "
            "for dead letters with the key of this task (`headrace dead-letters`), and into the workers' logs"
        )
        return build_dead_letter(self.run.topics, self.run.run_id, FEEDER, message, Refusal("unanswered", why))

    def _announce_end(self, why: str) -> None:
        ended = replace(self.state.revision, ended=why, created_ms=now_ms())
        topic, key = self.run.topics.recipe, str(ended.revision).encode()
        self._announcements.append(Outgoing(topic, codec.encode(ended), key, partition=0))

    @property
    def is_commit_due(self) -> bool:
        """Whether a snapshot is due."""
        is_due = time.monotonic() >= self._snapshot_due or self.state.changed >= MOST_CHANGED
        return self._changed and is_due

    def before_commit(self, ticked: Sequence[Ticket]) -> Iterable[Outgoing]:
        """Return the snapshot, with the offsets of the planned tasks, which are the tick's first records."""
        for planned, ticket in zip(self._planned, ticked[: len(self._planned)], strict=True):
            planned.open.offset = ticket.offset
        self._planned, self._changed = [], False
        self._snapshot_due = time.monotonic() + SNAPSHOT_EVERY_S
        changes = {name: None if one is None else _encode_json(one) for name, one in self.state.take_changes().items()}
        return self.own.snapshot(_encode_json(self.state.snapshot()), changes)

    def offsets(self, before: Sequence[Ticket]) -> None:
        """None: the snapshot holds the positions."""

    def _build_outgoing(self, planned: Planned) -> Outgoing:
        task = planned.task
        topic, key = self.run.topics.tasks(planned.open.find_queue(task.stream)), task_key(task.stream, task.number)
        return Outgoing(topic, codec.encode(task), key, task_stamp(task).to_headers(), planned.open.partition)

    def rewind(self) -> None:
        """Raise MustRestart."""
        self.own.rewind()

    def close(self) -> None:
        """Close the consumers."""
        self.own.close()


def _encode_json(plain: Plain) -> bytes:
    return json.dumps(plain, separators=(",", ":")).encode()


def _list_handlers(run: Run, state: FeedState) -> dict[str, tuple[type[Any], Callable[[Any], None]]]:
    """Return, by topic, the record class and its handler."""
    takers: dict[str, tuple[type[Any], Callable[[Any], None]]] = {
        run.topics.dead_letters: (DeadLetter, state.fold_dead_letter)
    }
    for policy in run.recipe.policies:
        takers[run.topics.outcomes(policy)] = (Outcome, state.fold_outcome)
        takers[run.topics.batches(policy)] = (BatchTrained, state.fold_batch)
        takers[run.topics.weights(policy)] = (WeightsPublished, state.fold_weights)
        takers[run.topics.evals(policy)] = (EvalResult, state.fold_result)
    return takers


def open_feeder(run: Run, writer: TransactionalWriter) -> Feeder:
    """Build the feeder of a run from its committed state; building the writer has fenced any other feeder.

    Raises UsageError if the environments or selectors cannot do what the recipe asks, OtherSource or SourceChanged if
    their source is not the run's, and OtherData if their data is not the run's.
    """
    recipe, revision = run.recipe, read_revisions(run.address)[-1]
    if revision.revision > run.revision:
        raise MustRestart(f"recipe revision {revision.revision} came while the feeder started: the feeder starts again")
    check_sources(run.plug_ins, feeder_plug_ins(recipe))
    sources = {name: build_task_source(recipe, name) for name in recipe.workflows}
    here = [
        identify_environment(name, source.environment, recipe.workflows[name].env) for name, source in sources.items()
    ]
    known = run.environments_at(run.revision)
    check_data(known, here)
    for workflow, before, now in find_other_versions(known, here):
        # An environment has another version than the run's record says; the run goes on.
        log.warning("environment.other_version", workflow=workflow, recorded=before, now=now)
    send_examples(run, writer, {name: source.environment for name, source in sources.items()})
    for source in sources.values() if recipe.evaluate.every else ():
        source.list_held_out(recipe.evaluate.problems)
    state = FeedState(recipe, revision, sources)
    topics = (*_list_handlers(run, state), run.topics.recipe)
    own = OwnPositions(Role(run.connection, FEEDER, run.run_id, run.state_partition_id(FEEDER), topics))
    feeder = Feeder(run, own, state)
    log.info("feeder.started", revision=run.revision, issued=dict(state.pacing.next))
    return feeder


def build_task_source(recipe: Recipe, workflow: str) -> TaskSource:
    """Return the source of a workflow's problems. Raises UsageError if it cannot be built on this machine."""
    env = recipe.workflows[workflow].env

    def build(more: dict[str, Any]) -> Environment:
        try:
            environment = load_environment(env.use, recipe.seed, {**env.settings, **more})
            read_data_of(environment)
        except ValueError as error:
            raise UsageError(f"workflows.{workflow}.env: {error}") from error
        return environment

    return TaskSource(workflow, build, load_feed_selectors(recipe.feed, recipe.seed))


def main(run: str) -> None:
    """Run the feeder of `kafka://host:port/run` until a signal."""
    run_alone(FEEDER, run, open_feeder)
