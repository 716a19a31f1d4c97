"""`headrace audit`: is anything lost, trained twice, or broken? The whole chain, from the topics and the store.

Topics are read in the order in which a run that goes on cannot mislead: what concludes a number before what keeps it,
that before what produced it, and the feeder's word on what was issued last of all.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.dead_letters import was_sent_back
from headrace.infra.kafka.topic_reader import Place, read_all, whole_topics
from headrace.infra.run.retired import read_retired
from headrace.infra.run.run import Run, read_revisions
from headrace.infra.store.object_store import StoreDenied, StoreUnavailable
from headrace.ops.audit import commits
from headrace.ops.audit.deep import UnfitValue, check_attachments, check_curated, check_trajectories
from headrace.ops.audit.evidence import with_places
from headrace.ops.audit.findings import AuditReport, CuratedCounts, Deep, DeepRates
from headrace.ops.audit.fold import Audit, AuditFold
from headrace.ops.audit.numbers import Scope
from headrace.ops.audit.objects import Objects, StoreAway
from headrace.ops.audit.problems import Problems
from headrace.ops.curated_digest import CuratedDigest
from headrace.ops.reading import Reading, known_topics, shortened
from headrace.schemas.records import CheckpointPointer, RecipeRevision, WeightsPublished
from headrace.schemas.topics import checkpoint_prefix

DRAIN_S = 30.0
"""So long after its end a run must have concluded all its numbers; it takes 10 s to drain."""


def is_drained(newest: RecipeRevision) -> bool:
    """Tell whether nothing of a run can conclude any more, by the newest record on its recipe topic."""
    return bool(newest.ended) and time.time() - newest.created_ms / 1000 > DRAIN_S


def audit(run: Run, *, drained: bool | None = None) -> Audit:
    """Audit the numbers and the chain of a run from its small records alone, live or stopped.

    Args:
        run: The run.
        drained: Whether nothing more can conclude, so that what is in flight is lost. By default that is so half a
            minute after the run's end.
    """
    fold = AuditFold(run.run_id, run.recipe)
    for topics in Parts.of(run).small:
        for message in read_all(run.connection, topics):
            fold.take(message)
    fold.close()
    if drained is None:
        drained = is_drained(read_revisions(run.address)[-1])
    return fold.audit(Scope(drained=drained, still=drained))


@dataclass(frozen=True, slots=True)
class Parts:
    """A run's topics by what they tell, in the order of reading."""

    batches: list[str]
    outcomes: list[str]
    """And dead letters."""
    curated: list[str]
    trajectories: list[str]
    tasks: list[str]
    weights: list[str]
    state: list[str]

    @classmethod
    def of(cls, run: Run) -> Parts:
        """Return those of a run."""
        topics, lines = run.topics, run.recipe.lines
        return cls(
            batches=[topics.batches(line) for line in lines],
            outcomes=[*(topics.outcomes(line) for line in lines), topics.dead_letters],
            curated=[topics.curated(line) for line in lines],
            trajectories=[topics.trajectories(policy) for policy in run.recipe.policies],
            tasks=[topics.tasks(workflow) for workflow in run.recipe.workflows],
            weights=[topics.weights(line) for line in lines],
            state=[topics.state],
        )

    @property
    def groups(self) -> list[str]:
        """Both kinds."""
        return [*self.curated, *self.trajectories]

    @property
    def small(self) -> tuple[list[str], ...]:
        """All but groups."""
        return (self.batches, self.outcomes, self.tasks, self.weights, self.state)

    @property
    def kept(self) -> list[str]:
        """Those that are kept whole for ever."""
        return [*self.batches, *self.outcomes, *self.groups, *self.weights]


@dataclass(frozen=True, slots=True)
class Order:
    """What the command line asked for."""

    rests: bool = False
    """Nobody runs the run now."""
    deep: bool = False
    """Decode the values of groups, and read every object."""
    use_store: bool = True


@dataclass(slots=True)
class WholeAudit:
    """One audit of the whole chain, step by step."""

    run: Run
    order: Order
    reading: Reading
    newest: RecipeRevision
    """Newest record of the recipe topic."""
    fold: AuditFold
    objects: Objects | None
    curated: dict[str, CuratedDigest]
    """By topic."""
    deep: Deep = field(default_factory=Deep)
    broken: Problems = field(default_factory=Problems)
    """About objects: they break the chain of weights."""
    other: Problems = field(default_factory=Problems)
    store: str = "left out"
    """checked | left out | away."""

    @classmethod
    def of(cls, run: Run, order: Order, folder: Path) -> WholeAudit:
        """Return an audit that has not begun, and puts objects into a folder meanwhile."""
        objects = Objects(run.store, folder, deep=order.deep) if order.use_store else None
        newest, fold = read_revisions(run.address)[-1], AuditFold(run.run_id, run.recipe)
        reading, topics = Reading(run.connection), Parts.of(run).curated
        curated = {topic: CuratedDigest() for topic in topics}
        return cls(run, order, reading, newest, fold, objects, curated, store="checked" if objects else "left out")

    def perform(self) -> AuditReport:
        """Read everything and return the report. Raises KafkaAway or KafkaRefused."""
        parts, offline = Parts.of(self.run), bool(self.newest.source)
        scope = Scope(is_drained(self.newest), self.order.rests or is_drained(self.newest), not offline, offline)
        wanted = [*parts.batches, *parts.weights] if offline else [*parts.kept, *parts.tasks]
        there = self._there([*wanted, *parts.state])
        for what in shortened(self.run.connection, [t for t in parts.kept if t in there]):
            self.other.say(what)
        positions = {} if offline else self._positions(there)
        self._take(self.reading.read(_in(parts.batches, there), "batches"))
        if not offline:
            positions |= self._trainers_positions(there)
            self._take(self.reading.read(_in(parts.outcomes, there), "outcomes"))
            self._take_groups(self.reading.read_in_order(_in(parts.curated, there), "curated groups"))
            self._take_groups(self.reading.read(_in(parts.trajectories, there), "groups"))
            self._take(self.reading.read(_in(parts.tasks, there), "tasks"))
        self._take_named(self.reading.read(_in(parts.weights, there), "weights"))
        self._take_named(self.reading.read(_in(parts.state, there), "state"))
        for what in self.objects.not_retired(lambda: read_retired(self.run)) if self.objects else ():
            self.broken.say(what)
        self.fold.close()
        if not offline:
            self._check_commits(there)
        found = self.fold.audit(scope, positions)
        again = chain.from_iterable(
            read_all(self.run.connection, [topic])
            for topic in [*parts.batches, *parts.outcomes, *parts.groups, *parts.tasks]
            if topic in there
        )
        return self._report(found, with_places(self.run, found.problems, again))

    def _there(self, wanted: Iterable[str]) -> set[str]:
        there = known_topics(self.run.connection)
        for topic in wanted:
            if topic not in there:
                self.other.say(f"topic {topic} does not exist")
        return there

    # ------------------------------------------------------------------------------------------------------- messages

    def _take(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.fold.take(message)

    def _take_groups(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if message.topic in self.curated:
                self.curated[message.topic].take(message.value, message.headers)
            is_new = self.fold.take(message)
            if self.order.deep and (is_new or was_sent_back(message)):
                self._look_into(message)

    def _look_into(self, message: Message) -> None:
        """Decode a group; one that is not as it should be needs a dead letter."""
        begin, cpu = time.perf_counter(), time.thread_time()
        check = check_curated if message.topic in self.fold.curated else check_trajectories
        try:
            group = check(message, self.run.store if self.objects else None)
            if self.objects:
                check_attachments(group, self.objects)
        except UnfitValue as why:
            self.fold.unread.record(message.topic, message.partition, message.offset, str(why))
        except (StoreUnavailable, StoreDenied, StoreAway) as error:
            self._lose_store(str(error))
        self.deep.records += 1
        self.deep.seconds += time.perf_counter() - begin
        self.deep.cpu_seconds += time.thread_time() - cpu

    def _take_named(self, messages: Iterable[Message]) -> None:
        """Take in messages that name objects, and look at those of this run."""
        for message in messages:
            counts, kind = self.fold.take(message), self._names_objects(message)
            if not counts or kind is None or self.objects is None:
                continue
            try:
                for what in self.objects.check(message, kind):
                    self.broken.say(what)
            except StoreAway as error:
                self._lose_store(str(error))

    def _names_objects(self, message: Message) -> type[WeightsPublished | CheckpointPointer] | None:
        if message.topic != self.run.topics.state:
            return WeightsPublished
        pointers = (checkpoint_prefix(policy) for policy in self.run.recipe.lines)
        return CheckpointPointer if any(message.key.startswith(prefix) for prefix in pointers) else None

    def _lose_store(self, why: str) -> None:
        self.objects, self.store = None, "away"
        self.broken.say(f"the object store cannot be asked, so no object is checked (--no-store leaves it out): {why}")

    # ------------------------------------------------------------------------------------------------------- positions

    def _positions(self, there: set[str]) -> dict[Place, int]:
        """Return how far the curators are; asked before dead letters are read."""
        topics = [self.run.topics.trajectories(policy) for policy in self.run.recipe.policies]
        positions = dict.fromkeys(whole_topics(self.run.connection, _in(topics, there)), 0)
        # A shadow writes no letters, so how far its curators are does not matter here.
        for asked in commits.ask(self.run, [g for g in self._groups(there) if not g.is_shadow]).values():
            positions |= {place: commit.offset for place, commit in asked.commits.items() if place in positions}
        return positions

    def _trainers_positions(self, there: set[str]) -> dict[Place, int]:
        """Return how far the trainers are, as their batches have told until here."""
        topics = {line: self.run.topics.curated(line) for line in self.run.recipe.lines}
        positions = dict.fromkeys(whole_topics(self.run.connection, _in(topics.values(), there)), 0)
        for line, topic in topics.items():
            told = self.fold.chains[line].last_positions
            positions |= {(topic, partition): offset for partition, offset in told.items()}
        return positions

    def _check_commits(self, there: set[str]) -> None:
        for what in commits.problems(commits.ask(self.run, self._groups(there)), self.fold.snapshots):
            self.other.say(what)

    def _groups(self, there: set[str]) -> list[commits.Group]:
        return [group for group in commits.groups_of(self.run) if group.topic in there]

    # ---------------------------------------------------------------------------------------------------------- report

    def _report(self, found: Audit, placed: Problems) -> AuditReport:
        for problems in (self.broken, self.other):
            placed.extend(problems)
        objects_s = self.objects.seconds if self.objects else 0.0
        seconds = max(self.reading.seconds - self.deep.seconds - objects_s, 1e-9)
        return AuditReport(
            ok=not placed,
            run=self.run.address.run,
            source=self.newest.source,
            tasks=found.tasks,
            groups=found.groups,
            lost=found.lost,
            doubled=found.doubled,
            weights_chain_ok=found.weights_chain_ok and not self.broken,
            unreadable_letters=found.unreadable_letters,
            unnumbered_letters=found.unnumbered_letters,
            problems=tuple(str(problem) for problem in placed.listed),
            more_problems=placed.more,
            policies=found.policies,
            shadows=found.shadows,
            curated={line: self._curated(line) for line in self.run.recipe.lines},
            revisions=self.fold.begins,
            store=self.store,
            objects=self.objects.count if self.objects else 0,
            objects_seconds=round(objects_s, 3),
            records=self.reading.records,
            seconds=round(seconds, 3),
            records_per_s=round(self.reading.records / seconds),
            deep=DeepRates.of(self.deep) if self.order.deep else None,
        )

    def _curated(self, line: str) -> CuratedCounts:
        found = self.curated[self.run.topics.curated(line)]
        return CuratedCounts(found.kept, found.again, found.sha256)


def _in(topics: Iterable[str], there: set[str]) -> Iterator[str]:
    return (topic for topic in topics if topic in there)


def report(run: Run, *, rests: bool = False, deep: bool = False, use_store: bool = True) -> AuditReport:
    """Audit a run, topics and store.

    Args:
        run: The run.
        rests: Whether it is known that nobody runs it.
        deep: Decode the values of groups too, and read every object.
        use_store: Whether to look at objects.

    Raises:
        KafkaAway, KafkaRefused: The topics cannot be read; a store that cannot be asked is a problem of the report.
    """
    with TemporaryDirectory(prefix="headrace-audit-") as folder:
        return WholeAudit.of(run, Order(rests, deep, use_store), Path(folder)).perform()
