"""The audit of a whole run, step by step.

The order of reading avoids false problems in a running run. First come the records that conclude a number, then those
that keep it, then tasks (which are deleted once their groups exist), and then the groups. The feeder's snapshot, which
says what was issued, is read last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.topic_reader import PartitionId, name_partition
from headrace.infra.run.run import Run
from headrace.ledger.feeder_snapshot import FeederSnapshot
from headrace.ops.audit import commits
from headrace.ops.audit.audited_log import AuditedLog
from headrace.ops.audit.broken_numbers import Scope
from headrace.ops.audit.deep_look import DeepLook
from headrace.ops.audit.evaluations import Evaluations
from headrace.ops.audit.evidence import add_record_names
from headrace.ops.audit.findings import AuditReport, CuratedCounts, DeepRates
from headrace.ops.audit.fold import EVALUATOR_KEY, AuditFold
from headrace.ops.audit.objects import ObjectChecks, StoreAway
from headrace.ops.audit.parts import Parts
from headrace.ops.audit.problems import Problems
from headrace.ops.audit.recipe_records import recipe_problems, run_end_problems, schema_problems
from headrace.ops.audit.results import Audit
from headrace.ops.curated_digest import CuratedDigest
from headrace.schemas.headers import HeaderError
from headrace.schemas.records import CheckpointPointer, RecipeRevision, WeightsPublished
from headrace.schemas.topics import checkpoint_prefix, region_of

AskedGroups: TypeAlias = Mapping[commits.Group, commits.Committed]
"""Consumer groups to their committed offsets."""


def begin(log: AuditedLog, fold: AuditFold, state: str) -> None:
    """Take in what was issued and evaluated before anything else is read, so that what comes later is not judged."""
    feeder, evaluator = FeederSnapshot(), None
    for message in log.read_uncounted([state]):
        feeder.fold_message(message)
        evaluator = message if message.key == EVALUATOR_KEY else evaluator
    fold.begin(feeder, evaluator)


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """The options of `headrace audit`."""

    rests: bool = False
    """Whether the run is stopped."""
    deep: bool = False
    """Decode the values of groups, and read every object."""
    use_store: bool = True


@dataclass(slots=True)
class WholeAudit:
    """One audit of the whole chain, step by step."""

    run: Run
    request: AuditRequest
    log: AuditedLog
    revisions: list[tuple[str, RecipeRevision]]
    """Records of the recipe topic with their positions."""
    fold: AuditFold
    evaluations: Evaluations
    objects: ObjectChecks | None
    curated: dict[str, CuratedDigest]
    """Curated topic to the digest of its records."""
    deep: DeepLook | None
    """Decodes every group; None without --deep."""
    ends: dict[PartitionId, int] = field(default_factory=dict)
    """Partition of tasks or trajectories to the offset after its last record."""
    broken: Problems = field(default_factory=Problems)
    """Problems of objects, which break the chain of weights."""
    other: Problems = field(default_factory=Problems)
    store: str = "left out"
    """checked | left out | away."""
    unchecked: str = ""
    """Why no further objects are checked; empty otherwise."""

    @classmethod
    def of(cls, run: Run, request: AuditRequest, folder: Path, log: AuditedLog) -> WholeAudit:
        """Return an audit that has not begun; it will store objects in `folder` meanwhile."""
        objects = ObjectChecks(run.store, folder, deep=request.deep) if request.use_store else None
        fold, evaluations = AuditFold(run.run_id, run.recipe, run.revisions), Evaluations(run.revisions)
        curated = {topic: CuratedDigest() for topic in Parts.of(run).curated}
        deep = DeepLook(run, fold.account, evaluations, objects) if request.deep else None
        fold.evaluations = evaluations
        store = "checked" if objects else "left out"
        return cls(run, request, log, log.revisions(), fold, evaluations, objects, curated, deep, store=store)

    @property
    def newest(self) -> RecipeRevision:
        """Newest record of the recipe topic."""
        return self.revisions[-1][1]

    def perform(self) -> AuditReport:
        """Read everything and return the report. Raises KafkaAway or KafkaRefused."""
        parts, offline = Parts.of(self.run), bool(self.newest.source)
        wanted = [*parts.batches, *parts.weights] if offline else [*parts.kept, *parts.tasks, *parts.evaluations]
        there = self._find_existing([*wanted, *parts.state])
        for what in self.log.find_shortened([t for t in parts.kept if t in there]):
            self.other.add_sentence(what)
        asked = {} if offline else self._read_groups(parts, there)
        if offline:
            self._fold_messages(self.log.read(_select_existing(parts.batches, there), "batches"))
        self._fold_named(self.log.read(_select_existing(parts.weights, there), "weights"))
        self._fold_named(self.log.read(_select_existing(parts.state, there), "state"))
        for what in self.objects.find_unretired(self.log.read_retired) if self.objects else ():
            self.broken.add_sentence(what)
        self.fold.fold_feeder_snapshot()
        for what in _check_recipe_and_checkpoints(self, offline=offline):
            self.other.add_sentence(what)
        if self.deep is not None:
            for what in self.deep.problems():
                self.other.add_sentence(what)
        drained = bool(self.newest.ended) and not offline and self._is_drained(asked)
        scope = Scope(drained, self.request.rests, not offline, offline)
        if not offline:
            self._end_evaluations(parts, there, scope)
            self._check_commits(there, asked)
        found = self.fold.account.audit(scope, _find_reader_positions(self, asked, there))
        named = add_record_names(self.fold.account.ledger, found.problems)
        return _build_report(self, found, named, drained=drained)

    def _read_groups(self, parts: Parts, there: set[str]) -> AskedGroups:
        """Read all topics about groups; return the positions of their readers from before."""
        if not self.request.rests and self.run.topics.state in there:
            begin(self.log, self.fold, self.run.topics.state)
        asked = self._fetch_committed(there)
        self._fold_messages(self.log.read(_select_existing(parts.batches, there), "batches"))
        self.fold.account.known.reached = _find_reader_positions(self, asked, there)
        self.fold.account.known.answered = {
            group.policy_variant: commits.merge_offsets([one]) for group, one in asked.items() if group.is_shadow
        }
        of_workers = (one for group, one in asked.items() if not group.component)
        self.fold.account.known.played = commits.merge_offsets(of_workers)
        self._fold_messages(self.log.read(_select_existing(parts.outcomes, there), "outcomes"))
        self._fold_curated(self.log.read_in_order(_select_existing(parts.curated, there), "curated groups"))
        # The feeder deletes tasks that were played, so they are read before the groups that conclude them.
        self._fold_and_note_ends(self.log.read(_select_existing(parts.tasks, there), "tasks"))
        self._fold_and_note_ends(self.log.read(_select_existing(parts.trajectories, there), "groups"))
        self._begin_evaluations(parts, there, asked)
        ends = self.log.ends(_select_existing(parts.curated, there))
        for chain in self.fold.account.chains.values():
            for what in chain.positions.find_past_end(ends):
                self.other.add_sentence(what)
        return asked

    def _find_existing(self, wanted: Iterable[str]) -> set[str]:
        there = self.log.topics()
        for topic in wanted:
            if topic not in there:
                self.other.add_sentence(f"topic {topic} does not exist")
        return there

    def _is_drained(self, asked: AskedGroups) -> bool:
        """Return whether, in a run that has ended, nothing more can conclude.

        This is so if all tasks are played, all groups are curated, and the trainers hold no kept group any more. It
        does not depend on a clock.
        """
        done = commits.merge_offsets(one for group, one in asked.items() if not group.is_shadow)
        away = {self.run.topics.tasks(stream) for stream in self.run.recipe.streams if region_of(stream)}
        ends = {place: end for place, end in self.ends.items() if place[0] not in away}
        if any(done.get(partition_id, 0) < end for partition_id, end in ends.items()):
            return False
        return self.fold.account.has_reported_all_groups()

    # ------------------------------------------------------------------------------------------------------- messages

    def _fold_messages(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.fold.fold_message(message)
            self._run_deep_check(lambda deep, message=message: deep.check_record(message))  # type: ignore[misc]

    def _fold_and_note_ends(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.ends[message.topic, message.partition] = message.offset + 1
            self._fold_group(message)

    def _fold_group(self, message: Message) -> None:
        counts, is_group = self.fold.fold_message(message), message.topic in self.fold.groups
        self._run_deep_check(
            lambda deep: deep.check_group(message, counts=counts) if is_group else deep.check_record(message)
        )

    def _fold_curated(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.curated[message.topic].add_record(message.value, message.headers)
            self._fold_group(message)

    def _run_deep_check(self, look: Callable[[DeepLook], object]) -> None:
        if self.deep is not None:
            try:
                look(self.deep)
            except StoreAway as error:
                self._stop_checking_objects(str(error))

    def _fold_named(self, messages: Iterable[Message]) -> None:
        """Take in messages that name objects, and check the objects of this run."""
        for message in messages:
            counts, kind = self.fold.fold_message(message), self._find_kind_with_objects(message)
            if not counts or kind is None or self.objects is None or self.unchecked:
                continue
            try:
                for what in self.objects.check(message, kind):
                    self.broken.add_sentence(what)
            except StoreAway as error:
                self._stop_checking_objects(str(error))

    def _find_kind_with_objects(self, message: Message) -> type[WeightsPublished | CheckpointPointer] | None:
        if message.topic != self.run.topics.state:
            return WeightsPublished
        pointers = (checkpoint_prefix(policy) for policy in self.run.recipe.policy_variants)
        return CheckpointPointer if any(message.key.startswith(prefix) for prefix in pointers) else None

    def _stop_checking_objects(self, why: str) -> None:
        """Check no further objects. This is no problem of the run; `objects` keeps what it found before."""
        self.store = "away"
        if self.deep is not None:
            self.deep.objects = None
        self.unchecked = (
            f"the object store cannot be read, so no further objects are checked (to check only the topics, give "
            f"--no-store): {why}"
        )

    # --------------------------------------------------------------------------------------------------------- commits

    def _check_commits(self, there: set[str], before: AskedGroups) -> None:
        asked = self._fetch_committed(there)
        fold = self.fold
        for what in commits.problems(asked, fold.snapshots, self.run.run_id, before, fold.account.find_curated_ends()):
            self.other.add_sentence(what)

    def _fetch_committed(self, there: set[str]) -> AskedGroups:
        groups = (
            *commits.list_training_consumer_groups(self.run),
            *commits.list_evaluation_consumer_groups(self.run),
        )
        return self.log.fetch_committed([group for group in groups if group.topic in there])

    # ----------------------------------------------------------------------------------------------------- evaluations

    def _begin_evaluations(self, parts: Parts, there: set[str], asked: AskedGroups) -> None:
        """Read tasks, and then the answers that conclude them; `asked` are positions from before.

        In this order, a task that is played meanwhile has its answer.
        """
        passed = commits.merge_offsets(asked.values())
        for message in self.log.read(_select_existing(parts.eval_tasks, there), "evaluations"):
            self.fold.redrives.fold_message(message)
            if self.evaluations.fold_task(message, self.run.run_id, passed):
                self._run_deep_check(lambda deep, message=message: deep.check_evaluation_task(message))  # type: ignore[misc]
        for message in self.log.read(_select_existing(parts.eval_groups, there), "answers"):
            self.fold.redrives.fold_message(message)
            try:
                counts = self.evaluations.fold_answer(message, self.run.run_id)
            except HeaderError as error:
                self.fold.account.unread.record(message.topic, message.partition, message.offset, str(error))
                continue
            if counts:
                self._run_deep_check(lambda deep, message=message: deep.check_answer(message))  # type: ignore[misc]
        for what in self.fold.redrives.problems():
            self.other.add_sentence(what)

    def _end_evaluations(self, parts: Parts, there: set[str], scope: Scope) -> None:
        """Read results. The evaluator's state was read before, so all results that it counts must be there."""
        for message in self.log.read(_select_existing(parts.evals, there), "results"):
            self.evaluations.fold_result(message, self.run.run_id)
        newest = self.fold.snapshots.get(EVALUATOR_KEY)
        self.evaluations.fold_snapshots(self.fold.feeder, newest)
        self.other.extend(self.evaluations.problems(still=scope.still, drained=scope.drained))


def _build_report(one: WholeAudit, found: Audit, named: Problems, *, drained: bool) -> AuditReport:
    for problems in (one.broken, one.other):
        named.extend(problems)
    objects_s = one.objects.seconds if one.objects else 0.0
    seconds = max(one.log.seconds - (one.deep.rates.seconds if one.deep else 0.0) - objects_s, 1e-9)
    digests = {variant: one.curated[one.run.topics.curated(variant)] for variant in one.run.recipe.policy_variants}
    return AuditReport(
        ok=not named and not one.unchecked,
        run=one.run.address.run,
        source=one.newest.source,
        tasks=found.tasks,
        groups=found.groups,
        lost=found.lost,
        doubled=found.doubled,
        weights_chain_ok=found.weights_chain_ok and not one.broken,
        unreadable_letters=found.unreadable_letters,
        without_digest=found.without_digest,
        unnumbered_letters=found.unnumbered_letters,
        problems=tuple(str(problem) for problem in named.listed),
        more_problems=named.more,
        policies=found.policies,
        shadows=found.shadows,
        curated={variant: CuratedCounts(d.kept, d.again, d.sha256) for variant, d in digests.items()},
        revisions=one.fold.account.begins,
        store=one.store,
        unchecked=one.unchecked,
        objects=one.objects.count if one.objects else 0,
        objects_seconds=round(objects_s, 3),
        records=one.log.records,
        seconds=round(seconds, 3),
        records_per_s=round(one.log.records / seconds),
        evaluations=one.evaluations.counts(drained=drained),
        deep=DeepRates.of(one.deep.rates) if one.deep else None,
    )


def _check_recipe_and_checkpoints(one: WholeAudit, *, offline: bool) -> Iterator[str]:
    """Yield the problems of the recipe topic and of checkpoints."""
    account = one.fold.account
    chains = {policy: account.chains[policy] for policy in one.run.recipe.policies}
    yield from recipe_problems(one.revisions, account.begins)
    yield from run_end_problems(
        one.revisions, {policy: (chain.newest, chain.steps) for policy, chain in chains.items()}
    )
    yield from schema_problems(one.log.schemas(), one.fold.schemas)
    for variant, batches in () if offline else account.batches.items():
        yield from batches.problems(account.chains[variant].checkpoints)


def _find_reader_positions(one: WholeAudit, asked: AskedGroups, there: set[str]) -> dict[PartitionId, int]:
    """Return the positions of readers: workers and curators by commits, trainers by batches, the evaluator by `state`.

    Records after them may still become dead letters. Tasks and answers are limited only while the run goes on: at rest
    nothing reads them, and nobody else would name them.
    """
    if not asked:
        return {}
    topics, recipe = one.run.topics, one.run.recipe
    parts, curated = Parts.of(one.run), {topics.curated(variant): variant for variant in recipe.policy_variants}
    while_running = () if one.request.rests else (*parts.tasks, *parts.eval_tasks, *parts.eval_groups)
    read = [*parts.trajectories, *while_running, *curated]
    positions = dict.fromkeys(one.log.partitions(_select_existing(read, there)), 0)
    # A shadow writes no dead letters, so the positions of its curators do not matter here.
    found = commits.merge_offsets(committed for group, committed in asked.items() if not group.is_shadow)
    for topic, variant in curated.items():
        reported = one.fold.account.chains[variant].positions.last
        found |= {(topic, partition): offset for partition, offset in reported.items()}
    evaluated = one.evaluations.get_reader_positions()
    found |= {place: evaluated.get(name_partition(place), 0) for place in positions if place[0] in parts.eval_groups}
    return {place: found.get(place, offset) for place, offset in positions.items()}


def _select_existing(topics: Iterable[str], there: set[str]) -> Iterator[str]:
    return (topic for topic in topics if topic in there)
