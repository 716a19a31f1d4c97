"""Counts the records of a run by policy variant, and checks that every task number is accounted for. No I/O.

Memory: four bytes for every number and policy or shadow, four more for a trained one, some hundred for every version
and every checkpoint, a byte for every record near an unreadable one, and a byte for every dead letter. `headrace audit`
also keeps 32 bytes for every record on `batches` and partition that it names. Nothing else grows with the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from headrace.infra.kafka.dead_letters import REDRIVEN
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.infra.recipe.settings import Recipe
from headrace.ledger.feeder_snapshot import read_issued
from headrace.ledger.run_streams import list_own_topics
from headrace.ledger.trained_streams import TrainedStreams
from headrace.ops.audit.batch_records import BatchFacts, BatchRecords
from headrace.ops.audit.bounds import Bounds
from headrace.ops.audit.broken_numbers import Scope
from headrace.ops.audit.flight import Flight
from headrace.ops.audit.numbers import PolicyAudit, PolicyNumbers
from headrace.ops.audit.pages import ANSWER_DUE, REACHED, TASK_WAITS
from headrace.ops.audit.problems import Problems
from headrace.ops.audit.results import Audit, GroupTotals, TaskCounts
from headrace.ops.audit.revisions import RevisionSpans
from headrace.ops.audit.unread import Unnumbered, Unread
from headrace.ops.audit.weights_chain import ChainLink, WeightsChain
from headrace.schemas.records import DeadLetter, Snapshot
from headrace.schemas.topics import is_eval, policy_of, variant_of

SUMMED = ("produced", "duplicates", "kept", "trained", "dead", "in_flight", "lost", "doubled")

RecordId = tuple[str, int, int]
"""(topic, partition, offset)."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Functions that take the few fields that the audit needs from a record, which is an object or Avro's dict."""

    batch: Callable[[Any], tuple[Any, ...]]
    eviction: Callable[[Any], tuple[Any, ...]]
    hint: Callable[[Any], tuple[Any, ...]]
    outcome: Callable[[Any], tuple[Any, ...]]
    position: Callable[[Any], tuple[Any, ...]]
    use: Callable[[Any], tuple[Any, ...]]


@dataclass(slots=True)
class Known:
    """Positions and settings from before the topics were read."""

    reached: Mapping[PartitionId, int] = field(default_factory=dict)
    """Offset that the curators have read to, by partition; a topic that is missing here was read to its end."""
    played: Mapping[PartitionId, int] | None = None
    """Offset that the workers have read to, by partition; None if that was not asked."""
    issued_before: dict[str, int] | None = None
    """For a running run, next numbers from before anything else was read, so that later tasks are not judged."""
    answered: dict[str, Mapping[PartitionId, int]] = field(default_factory=dict)
    """Shadow to the offsets that its curators had read to before anything else was read."""
    keeps_positions: bool = False
    """Whether to keep the positions that batches give for their groups, as a deep audit does."""
    checks_resume: bool = False
    """Whether to check from which offsets a trainer resumes; `headrace audit` does, and a live page does not."""


def _make_fields(get: Callable[..., Callable[[Any], tuple[Any, ...]]]) -> Fields:
    return Fields(
        batch=get(
            "version",
            "epoch",
            "base_hash",
            "weights_hash",
            "groups",
            "evictions",
            "positions",
            "revision",
            "fingerprint",
        ),
        eviction=get("verdict", "group"),
        hint=get("partition", "offset"),
        outcome=get("stream", "number", "use", "level", "verdict", "reason", "component", "revision", "head_version"),
        position=get("partition", "offset"),
        use=get("stream", "number", "use"),
    )


OF_RECORD, OF_PLAIN = _make_fields(attrgetter), _make_fields(itemgetter)


class RunAccount:
    """The counts so far.

    Args:
        recipe: The newest revision.
        revisions: All its revisions, by number; if empty, this recipe is the only one.
    """

    def __init__(self, recipe: Recipe, revisions: Sequence[Recipe] = ()) -> None:
        topics, variants = recipe.topics, recipe.policy_variants
        self.recipe = recipe
        self._trained_by = TrainedStreams(revisions or (recipe,))
        bounds = Bounds.of(revisions or (recipe,))
        self.batches = {variant: BatchRecords(variant, revisions or (recipe,)) for variant in variants}
        self.known = Known()
        self.issued: dict[str, int] = {}
        """Next number of every stream, from the feeder's newest snapshot."""
        self.begins: dict[str, list[list[int]]] = {}
        """Stream to (revision, the first number issued under it), from the feeder's newest snapshot."""
        self.seen: dict[str, int] = {}
        """Next number of every stream, from its tasks."""
        self.numbers = {variant: PolicyNumbers(variant) for variant in variants}
        self.chains = {
            variant: WeightsChain(
                variant,
                topics.curated(variant),
                recipe.trainer_of(variant).steps,
                bounds.earliest_ends[variant],
            )
            for variant in variants
        }
        self.flights = {v: Flight(v, self.numbers[v], self.chains[v], bounds) for v in variants}
        self.revisions = RevisionSpans()
        self.unread = Unread()
        self.unreadable_letters = 0
        """Records on `dead-letters` that cannot be read."""
        self.unnumbered = Unnumbered()
        self.found = Problems()
        self.variant_of_topic = {topic: variant for variant in variants for topic in list_own_topics(topics, variant)}
        self.beside = {p: [variant for variant in variants if policy_of(variant) == p] for p in recipe.policies}
        """Policy to the tuple of the policy and its shadows."""
        self._readers = {*self.variant_of_topic, *(topics.trajectories(policy) for policy in recipe.policies)}
        """Topics that policy variants read and write."""
        self._tasks = {topics.tasks(workflow) for workflow in self._trained_by.workflows}
        self._outcomes = {variant: topics.outcomes(variant) for variant in variants}

    # --------------------------------------------------------------------------------------------------------- records

    def fold_batch(self, policy_variant: str, batch: object, fields: Fields, record_id: RecordId) -> None:
        """Count a batch at a position, and follow its version."""
        numbers, chain = self.numbers[policy_variant], self.chains[policy_variant]
        version, epoch, base, result, groups, evictions, positions, revision, fingerprint = fields.batch(batch)
        where = f"{record_id[0]}[{record_id[1]}]@{record_id[2]}"
        for group in groups:
            stream, number, use = fields.use(group)
            numbers.mark_trained(stream, number, use, version)
        for eviction in evictions:
            verdict, group = fields.eviction(eviction)
            if group is None:
                continue
            use = fields.use(group)
            # A dead letter reports a dead group; for a shadow it is an outcome, if the number is known.
            if verdict != "dead" or (variant_of(policy_variant) and use[1] >= 0):
                stream, number, which = use
                numbers.mark_evicted(stream, number, which, verdict)
        if version >= 0:
            batches = self.batches[policy_variant]
            link = ChainLink(epoch, base, result, where)
            chain.fold_batch(version, link, is_last=batches.is_last(version, revision))
            batches.fold_batch(BatchFacts(version, epoch, revision, len(groups), fingerprint, where))
        verdicts = {fields.eviction(eviction)[0] for eviction in evictions}
        reported = dict(fields.position(position) for position in positions)
        for group in groups:
            hint = fields.hint(group)
            chain.positions.check_hint(f"version {version} of {policy_variant}", hint, reported, where)
            if self.known.keeps_positions:
                numbers.named_positions[fields.use(group)] = hint
        if self.known.checks_resume:
            concluded = (*groups, *filter(None, (fields.eviction(one)[1] for one in evictions)))
            chain.resume.fold_batch(version, record_id[2], map(fields.hint, concluded))
        is_last = version >= self.chains[policy_variant].steps or (version < 0 and "run_end" in verdicts)
        settles = version >= 0 or bool(verdicts - {"dead"})
        chain.positions.fold_record(reported, where, version=version, settles=settles)
        if is_last:
            chain.positions.mark_all_groups_reported()

    def fold_outcome(self, variant: str, outcome: object, fields: Fields, record_id: RecordId) -> None:
        """Count an outcome at a position; outcomes of evaluations are skipped."""
        numbers = self.numbers[variant]
        stream, number, use, level, verdict, reason, component, revision, head = fields.outcome(outcome)
        if is_eval(stream):
            return
        self.revisions.note_number(self._outcomes[variant], stream, number, revision)
        if not variant_of(variant):  # of a group that its policy refused for its head_version, a shadow has an outcome
            self.chains[variant].note_sampled((head,), record_id)
        if level == "trajectory":
            numbers.count_discarded_trajectory()
        elif verdict == "kept":
            numbers.mark_kept(stream, number, use)
        else:
            numbers.mark_discarded(stream, number, use, (component, verdict, reason))

    def fold_produced(self, policy: str, stream: str, number: int, record_id: RecordId) -> bool:
        """Count a produced group at a position; return False if it is not the first of its number."""
        if self.unread.is_refused(*record_id):
            return False
        position = self.known.reached.get(record_id[:2])
        bits = REACHED if position is None or record_id[2] < position else 0
        for shadow in self.beside[policy][1:]:
            is_due = record_id[2] < self.known.answered.get(shadow, {}).get(record_id[:2], 0)
            self.numbers[shadow].note_produced(stream, number, bits | (ANSWER_DUE if is_due else 0))
        return self.numbers[policy].note_produced(
            stream, number, bits if position is None else bits and bits | ANSWER_DUE
        )

    def fold_task(self, stream: str, number: int, record_id: RecordId) -> None:
        """Count a task at a position."""
        self.seen[stream] = max(self.seen.get(stream, 0), number + 1)
        if self.known.played is not None and record_id[2] >= self.known.played.get(record_id[:2], 0):
            for policy in self.policies_of(stream):
                for variant in self.beside[policy]:
                    self.numbers[variant].pages.mark(stream, number, 0, TASK_WAITS)

    def fold_dead_letter(self, dead_letter: DeadLetter, offset: int) -> None:
        """Count a dead letter, or its redrive; `offset` is that of the dead letter itself."""
        redriven, dead = dead_letter.reason == REDRIVEN, self._find_concluded(dead_letter)
        if not redriven:
            record_id = (dead_letter.topic, dead_letter.partition, dead_letter.offset)
            self.unread.fold_dead_letter(*record_id, is_void=dead_letter.number < 0)
        elif 0 <= dead_letter.redrives < offset:
            self.unnumbered.fold_redriven(dead_letter.redrives)
        if not redriven and not dead:
            self.unnumbered.fold_dead_letter(offset, dead_letter.reason)
        for variant in dead:
            self.numbers[variant].fold_dead_letter(
                dead_letter.stream,
                dead_letter.number,
                dead_letter.use,
                -1 if redriven else 1,
                of_task=dead_letter.topic in self._tasks,
            )

    def _find_concluded(self, dead_letter: DeadLetter) -> list[str]:
        """Return the policies and shadows for which a dead letter concludes a number, or opens it again.

        A shadow is concluded only by the dead letter of a task, because no worker can have played that task. If a
        curator or a trainer cannot read a record, their shadows try to read it themselves.
        """
        if dead_letter.number < 0 or is_eval(dead_letter.stream):
            return []
        named = [dead_letter.policy] if dead_letter.policy else self.policies_of(dead_letter.stream)
        known = [policy for policy in named if policy in self.beside]
        if dead_letter.topic in self._readers:
            return known
        return [variant for policy in known for variant in self.beside[policy]]

    def fold_issued(self, snapshot: Snapshot) -> None:
        """Take the issued numbers from the feeder's snapshot. Raises NO_SNAPSHOT for an unreadable one."""
        state = json.loads(snapshot.body)
        issued = read_issued(state)
        self.begins = {
            stream: [[int(revision), int(first)] for revision, first in begins]
            for stream, begins in state.get("revisions", {}).items()
        }
        self.issued = issued  # only after all of it was read
        for variant, numbers in self.numbers.items():
            numbers.forgettable = self._trained_by.find_forgettable(policy_of(variant), issued, self.begins)

    def policies_of(self, stream: str) -> tuple[str, ...]:
        """Return the policies that a stream trains, or trained under an earlier recipe."""
        return self._trained_by.policies_of(stream)

    # ---------------------------------------------------------------------------------------------------------- result

    def policies(self, *, drained: bool) -> dict[str, PolicyAudit]:
        """Return the counts of every policy; cheap enough for a live page."""
        return self._count_variants(self.recipe.policies, Scope(drained=drained))

    def shadows(self, scope: Scope = Scope()) -> dict[str, PolicyAudit]:  # noqa: B008
        """Return the counts of every shadow, by `policy.variant`."""
        return self._count_variants(self.recipe.shadow_variants, scope)

    def _count_variants(self, variants: Iterable[str], scope: Scope) -> dict[str, PolicyAudit]:
        return {
            one: self.numbers[one].audit(*self._find_next_numbers(one), drained=self._find_scope(one, scope).drained)
            for one in variants
        }

    def _find_scope(self, policy_variant: str, scope: Scope) -> Scope:
        """Return the scope of a variant: a shadow continues to train after the run's end, until its last version."""
        if not variant_of(policy_variant) or self.chains[policy_variant].newest >= self.chains[policy_variant].steps:
            return scope
        return replace(scope, drained=False)

    def _find_next_numbers(self, variant: str) -> tuple[dict[str, int], dict[str, int]]:
        """Return the issued and the seen next numbers of the streams that train a policy and its shadows."""
        return self._select_streams(self.issued, variant), self._select_streams(self.seen, variant)

    def _select_streams(self, numbers: Mapping[str, int], variant: str) -> dict[str, int]:
        return {s: n for s, n in numbers.items() if policy_of(variant) in self.policies_of(s)}

    def audit(self, scope: Scope = Scope(), positions: Mapping[PartitionId, int] | None = None) -> Audit:  # noqa: B008
        """Return the audit of all records taken in, with all problems.

        Args:
            scope: What may be expected of the run now.
            positions: Offsets that the readers of trajectories and curated groups have reached; later records may still
                conclude.
        """
        policies, shadows = self.policies(drained=scope.drained), self.shadows(scope)
        problems, broken, lost = Problems(), Problems(), 0
        problems.extend(self.found)  # wrong numbers may follow from these
        for variant, numbers in self.numbers.items():
            own = self._find_scope(variant, scope)
            problems.extend(numbers.problems(*self._find_next_numbers(variant), own))
            if not own.drained and not own.offline:
                before = self.issued if self.known.issued_before is None else self.known.issued_before
                if own.whole and self.known.played is not None:
                    vanished = numbers.find_vanished(self._select_streams(before, variant))
                    lost += vanished.total
                    problems.extend(vanished)
                beyond = self.flights[variant].find_overflow(self._select_streams(before, variant))
                lost += max((count for count, _ in beyond), default=0)
                for _, what in beyond:
                    problems.add_sentence(what)
            broken.extend(self.chains[variant].problems(still=own.still, over=own.drained))
            problems.extend(self.chains[variant].position_problems())
        for found in (broken, self.unread.problems(positions or {})):
            problems.extend(found)
        for what in self.revisions.problems(self.begins):
            problems.add_sentence(what)
        total = {name: sum(getattr(p, name) for p in policies.values()) for name in SUMMED}
        return Audit(
            ok=not problems,
            lost=lost + total.pop("lost") + sum(p.lost for p in shadows.values()),
            doubled=total.pop("doubled") + sum(p.doubled for p in shadows.values()),
            policies=policies,
            shadows=shadows,
            tasks=TaskCounts(sum(self.issued.values()), self._count_concluded_tasks()),
            groups=GroupTotals(discarded=sum(sum(p.discarded.values()) for p in policies.values()), **total),
            weights_chain_ok=not broken,
            unreadable_letters=self.unreadable_letters,
            unnumbered_letters=self.unnumbered.count_by_reason(),
            problems=problems,
        )

    def has_reported_all_groups(self) -> bool:
        """Return whether, at the end of a run, the policies' trainers hold no kept group any more."""
        return all(self.flights[policy].has_reported_all_groups() for policy in self.recipe.policies)

    def _count_concluded_tasks(self) -> int:
        """Count the tasks that are concluded for all policies that they train."""
        count = 0
        for stream, end in self.issued.items():
            policies = [self.numbers[policy] for policy in self.policies_of(stream)]
            for index in policies[0].pages.indices(stream) if policies else ():
                pages = [numbers.pages.page(stream, 0, index) for numbers in policies]
                done = np.logical_and.reduce([page.concluded for page in pages])
                count += int(np.count_nonzero(done & pages[0].is_below(end)))
        return count
