"""Counts the records of a run by policy variant, and checks that every task number is accounted for. No I/O.

Memory: some hundred bytes for every version and every checkpoint, a byte for every record near an unreadable one, and a
byte for every dead letter. All else is in the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.dead_letters import REDRIVEN, is_sent_back
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.infra.recipe.settings import Recipe
from headrace.ledger.feeder_snapshot import read_begins, read_issued
from headrace.ledger.ledger import Ledger
from headrace.ledger.plain_headers import GroupStamp
from headrace.ledger.row_writer import RowWriter
from headrace.ledger.rows import Rows
from headrace.ledger.run_streams import RunStreams
from headrace.ops.audit.batch_records import BatchRecords
from headrace.ops.audit.bounds import Bounds
from headrace.ops.audit.broken_numbers import Scope
from headrace.ops.audit.flight import find_overflow
from headrace.ops.audit.followed_batch import follow_batch
from headrace.ops.audit.log_hashes import count_without_digest, find_broken_log_hashes
from headrace.ops.audit.number_table import Reached, fill_numbers, make_tables
from headrace.ops.audit.numbers import PolicyAudit, PolicyNumbers, count_concluded_by_all, count_unnumbered
from headrace.ops.audit.problems import Problems
from headrace.ops.audit.results import Audit, GroupTotals, TaskCounts
from headrace.ops.audit.unread import Unread
from headrace.ops.audit.weights_chain import WeightsChain
from headrace.schemas.records import DeadLetter, Snapshot
from headrace.schemas.topics import is_eval, policy_of, region_of, variant_of

SUMMED = ("produced", "duplicates", "kept", "trained", "dead", "in_flight", "lost", "doubled")

RecordId = tuple[str, int, int]
"""(topic, partition, offset)."""


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


class RunAccount:
    """The counts so far.

    Args:
        recipe: The newest revision.
        revisions: All its revisions, by number; if empty, this recipe is the only one.
    """

    def __init__(self, recipe: Recipe, revisions: Sequence[Recipe] = (), ledger: Ledger | None = None) -> None:
        topics, variants = recipe.topics, recipe.policy_variants
        self.recipe = recipe
        self.streams = RunStreams(recipe, revisions)
        self.ledger = ledger or Ledger(None, "", self.streams)
        make_tables(self.ledger)
        self._writer, self._is_settled = RowWriter(self.ledger), False
        self.bounds = bounds = Bounds.of(revisions or (recipe,))
        self.batches = {variant: BatchRecords(variant, revisions or (recipe,)) for variant in variants}
        self.known = Known()
        self.issued: dict[str, int] = {}
        """Next number of every stream, from the feeder's newest snapshot."""
        self.begins: dict[str, list[list[int]]] = {}
        """Stream to (revision, the first number issued under it), from the feeder's newest snapshot."""
        self.seen: dict[str, int] = {}
        """Next number of every stream, from its tasks."""
        self.numbers = {variant: PolicyNumbers(self.ledger, variant, policy_of(variant)) for variant in variants}
        self.chains = {
            variant: WeightsChain(
                variant,
                topics.curated(variant),
                recipe.trainer_of(variant).steps,
                bounds.earliest_ends[variant],
            )
            for variant in variants
        }
        self.unread = Unread()
        self.unreadable_letters = 0
        """Records on `dead-letters` that cannot be read."""
        self.found = Problems()

    @property
    def variant_of_topic(self) -> Mapping[str, str]:
        """The policy or shadow that alone writes a topic."""
        return self.streams.variant_of_topic

    # --------------------------------------------------------------------------------------------------------- records

    def fold_batch(self, policy_variant: str, batch: Mapping[str, Any], message: Message) -> None:
        """Take in a batch, as Avro's dict, and follow its version."""
        chain, batches = self.chains[policy_variant], self.batches[policy_variant]
        follow_batch(chain, batches, batch, message)
        rows, place = self._begin(message)
        rows.add_batch(message, place, policy_variant, batch)

    def fold_outcome(self, variant: str, outcome: Mapping[str, Any], message: Message) -> None:
        """Take in an outcome, as Avro's dict; outcomes of evaluations are skipped."""
        if is_eval(outcome["stream"]):
            return
        if not variant_of(variant):  # of a group that its policy refused for its head_version, a shadow has an outcome
            self.chains[variant].note_sampled(
                (outcome["head_version"],), (message.topic, message.partition, message.offset)
            )
        rows, place = self._begin(message)
        rows.add_outcome(message, place, variant, outcome)

    def fold_produced(self, policy: str, group: GroupStamp, message: Message) -> bool:
        """Take in a produced group; return False if its dead letter says that it concludes no number."""
        record_id = (message.topic, message.partition, message.offset)
        if self.unread.is_refused(*record_id):
            return False
        position = self.known.reached.get(record_id[:2])
        reached = position is None or message.offset < position
        due = position is not None and reached
        rows, place = self._begin(message)
        rows.add_delivery(message, place, policy, group, reached=reached, due=due)
        return True

    def fold_curated(self, variant: str, group: GroupStamp, message: Message) -> None:
        """Take in a curated group."""
        rows, place = self._begin(message)
        rows.add_curated(message, place, variant, group, sent_back=is_sent_back(message))

    def fold_task(self, stream: str, number: int, message: Message) -> None:
        """Take in a task."""
        self.seen[stream] = max(self.seen.get(stream, 0), number + 1)
        played = self.known.played
        waits = played is not None and message.offset >= played.get((message.topic, message.partition), 0)
        rows, place = self._begin(message)
        rows.add_task(message, place, stream, number, waits=waits)

    def fold_dead_letter(self, dead_letter: DeadLetter, message: Message) -> None:
        """Take in a dead letter, or its redrive."""
        if dead_letter.reason != REDRIVEN:
            record_id = (dead_letter.topic, dead_letter.partition, dead_letter.offset)
            self.unread.fold_dead_letter(*record_id, is_void=dead_letter.number < 0)
        rows, place = self._begin(message)
        rows.add_dead_letter(message, place, dead_letter, self.streams)

    def _begin(self, message: Message) -> tuple[Rows, int]:
        self._is_settled = False
        return self._writer.begin(message)

    def find_version(self, variant: str, stream: str, number: int, use: int) -> int:
        """Return the version that was trained on a use; -1 for none. All batches were taken in before."""
        if self._writer.rows.of["trained"]:
            self._writer.flush()
        [(version,)] = self.ledger.query(
            "SELECT max(version) FROM trained WHERE (variant, stream, number, use) = (?, ?, ?, ?)",
            variant,
            stream,
            number,
            use,
        )
        return -1 if version is None else version

    def find_group_digest(self, variant: str, stream: str, number: int) -> str:
        """Return the digest of a group by its outcome; empty if none gives it. All outcomes were taken in before."""
        if self._writer.rows.of["outcome"]:
            self._writer.flush()
        rows = self.ledger.query(
            "SELECT group_digest FROM outcome WHERE (variant, stream, number) = (?, ?, ?) AND group_digest <> ''",
            variant,
            stream,
            number,
        )
        return rows[0][0] if rows else ""

    def settle(self) -> None:
        """Make the tables of numbers of all records that were taken in, if they are not made already."""
        if self._is_settled:
            return
        self._writer.flush()
        for variant, numbers in self.numbers.items():
            chain, curated = self.chains[variant], self.recipe.topics.curated(variant)
            positions, is_shadow = chain.positions, bool(variant_of(variant))
            numbers.issued = self._select_streams(self.issued, variant)
            reached = Reached(
                positions.last, positions.settled, positions.aged, chain.newest, self.bounds.staleness[variant],
                keeps_deadlines=not is_shadow, answered=self.known.answered.get(variant) if is_shadow else None,
            )  # fmt: skip
            fill_numbers(self.ledger, variant, numbers.issued, curated, reached)
        self._is_settled = True

    def fold_issued(self, snapshot: Snapshot) -> None:
        """Take the issued numbers from the feeder's snapshot. Raises NO_SNAPSHOT for an unreadable one."""
        state = json.loads(snapshot.body)
        issued = read_issued(state)
        self.begins = read_begins(state)
        self.issued = issued  # only after all of it was read
        self._is_settled = False
        for variant, numbers in self.numbers.items():
            numbers.forgettable = self.streams.trained.find_forgettable(policy_of(variant), issued, self.begins)

    def policies_of(self, stream: str) -> tuple[str, ...]:
        """Return the policies that a stream trains, or trained under an earlier recipe."""
        return self.streams.trained.policies_of(stream)

    # ---------------------------------------------------------------------------------------------------------- result

    def policies(self, *, drained: bool) -> dict[str, PolicyAudit]:
        """Return the counts of every policy."""
        return self._count_variants(self.recipe.policies, Scope(drained=drained))

    def shadows(self, scope: Scope = Scope()) -> dict[str, PolicyAudit]:  # noqa: B008
        """Return the counts of every shadow, by `policy.variant`."""
        return self._count_variants(self.recipe.shadow_variants, scope)

    def _count_variants(self, variants: Iterable[str], scope: Scope) -> dict[str, PolicyAudit]:
        self.settle()
        return {
            one: self.numbers[one].audit(
                self._select_streams(self.seen, one), drained=self._find_scope(one, scope).drained
            )
            for one in variants
        }

    def _find_scope(self, policy_variant: str, scope: Scope) -> Scope:
        """Return the scope of a variant: a shadow continues to train after the run's end, until its last version."""
        if not variant_of(policy_variant) or self.chains[policy_variant].newest >= self.chains[policy_variant].steps:
            return scope
        return replace(scope, drained=False)

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
            problems.extend(numbers.problems(self._select_streams(self.seen, variant), own))
            if not own.drained and not own.offline:
                before = self.issued if self.known.issued_before is None else self.known.issued_before
                if own.whole and self.known.played is not None:
                    vanished = numbers.find_vanished(self._select_streams(before, variant))
                    lost += vanished.total
                    problems.extend(vanished)
                beyond = find_overflow(numbers, self.bounds, self._select_streams(before, variant))
                lost += max((count for count, _ in beyond), default=0)
                for _, what in beyond:
                    problems.add_sentence(what)
            broken.extend(self.chains[variant].problems(still=own.still, over=own.drained))
            problems.extend(self.chains[variant].positions.found)
            for what in find_broken_log_hashes(self.ledger, variant):
                problems.add_sentence(what)
        for found in (broken, self.unread.problems(positions or {})):
            problems.extend(found)
        total = {name: sum(getattr(p, name) for p in policies.values()) for name in SUMMED}
        lost += total.pop("lost") + sum(p.lost for p in shadows.values())
        return Audit(
            ok=not problems,
            lost=0 if scope.offline else lost,
            doubled=total.pop("doubled") + sum(p.doubled for p in shadows.values()),
            policies=policies,
            shadows=shadows,
            tasks=TaskCounts(sum(self.issued.values()), self._count_concluded_tasks()),
            groups=GroupTotals(discarded=sum(sum(p.discarded.values()) for p in policies.values()), **total),
            weights_chain_ok=not broken,
            unreadable_letters=self.unreadable_letters,
            unnumbered_letters=count_unnumbered(self.ledger),
            without_digest=0 if scope.offline else count_without_digest(self.ledger),
            problems=problems,
        )

    def has_reported_all_groups(self) -> bool:
        """Return whether, at the end of a run, the policies' trainers hold no kept group any more."""
        self.settle()
        in_regions = {stream: end for stream, end in self.issued.items() if region_of(stream)}
        if any(numbers.count_open_below(in_regions) for numbers in self.numbers.values()):
            return False  # what their workers have read is known in the regions
        return all(
            self.chains[policy].positions.has_reported_all_groups(self.numbers[policy].find_ends())
            or not self.numbers[policy].count_kept_and_open()
            for policy in self.recipe.policies
        )

    def find_curated_ends(self) -> dict[tuple[str, str, int], int]:
        """Return (policy or shadow, topic, partition) to the offset after the last delivery with an outcome."""
        self.settle()
        ends = ((variant, numbers.find_curated_end()) for variant, numbers in self.numbers.items())
        return {(variant, topic, partition): end for variant, some in ends for topic, partition, end in some}

    def _count_concluded_tasks(self) -> int:
        """Count the tasks that are concluded for all policies that they train."""
        return sum(count_concluded_by_all(self.ledger, stream, self.policies_of(stream)) for stream in self.issued)
