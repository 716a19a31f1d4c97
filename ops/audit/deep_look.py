"""How `headrace audit --deep` decodes, compares and times the values of groups."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from blake3 import blake3

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.dead_letters import REDRIVEN, is_sent_back
from headrace.infra.kafka.topic_reader import name_offset
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreDenied, StoreUnavailable
from headrace.ops.audit.account import RecordId, RunAccount
from headrace.ops.audit.asked_versions import AskedVersions
from headrace.ops.audit.deep import (
    UnfitValue,
    check_attachments,
    check_outcome_names,
    facts_of_outcome,
    outcome_facts_of_group,
    read_checked_curated,
    read_checked_group,
    read_checked_task,
)
from headrace.ops.audit.delivery_order import DeliveryOrder
from headrace.ops.audit.evaluations import Evaluations
from headrace.ops.audit.findings import Deep
from headrace.ops.audit.kept_choice import KeptChecks
from headrace.ops.audit.matched_values import MatchedValues
from headrace.ops.audit.objects import ObjectChecks, StoreAway
from headrace.ops.audit.pages import Pages
from headrace.ops.audit.replays import ReplayChecks
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.headers import HeaderError, Stamp
from headrace.schemas.records import CuratedGroup, DeadLetter, Outcome, Task, TrajectoryGroup
from headrace.schemas.topics import policy_of, variant_of


class DeepLook:
    """Checks the values of groups, and adds what is wrong to the account.

    Args:
        run: The run.
        account: Holds the batches already, and the headers of each group.
        evaluations: Takes the values of answers.
        objects: Reads attachments; None if the store is left out or unreachable.
        rests: Whether no process writes now.
    """

    def __init__(
        self,
        run: Run,
        account: RunAccount,
        evaluations: Evaluations,
        objects: ObjectChecks | None,
        *,
        rests: bool = True,
    ) -> None:
        self.objects = objects
        self._rests = rests
        self.rates = Deep()
        self._run, self._account, self._evaluations = run, account, evaluations
        topics = run.topics
        self._of_groups = {topics.trajectories(policy) for policy in run.recipe.policies}
        self._of_groups |= {topics.curated(variant) for variant in run.recipe.policy_variants}
        self._dead: dict[RecordId, tuple[str, int]] = {}
        """Record to the position of its dead letter, and the digest of the bytes in it."""
        self._replays = {variant: ReplayChecks(variant, run.revisions) for variant in run.recipe.policy_variants}
        self._values = account.values = {one: MatchedValues(one) for one in run.recipe.policy_variants}
        self._tasks = Pages()
        """Number to the facts about its task in the first record that was read."""
        self._kept = {variant: KeptChecks(variant, run.revisions) for variant in run.recipe.policy_variants}
        self._last_outcomes: dict[tuple[str, int], tuple[str, int]] = {}
        """(variant, partition) to the (stream, number) of the last group with an outcome: in a running run, outcomes of
        its single trajectories may be newer than what was read."""
        self._orders = {variant: DeliveryOrder(variant) for variant in run.recipe.policy_variants}
        self._asked = AskedVersions(run.recipe)

    def check_group(self, message: Message, *, is_new: bool) -> None:
        """Check a record of trajectories or curated groups; a record with a fault needs a dead letter.

        Args:
            message: The record.
            is_new: Whether this is the first record of its number.

        Raises StoreAway.
        """
        variant = self._account.variant_of_topic.get(message.topic)
        dead_letter, digest = self._dead.pop((message.topic, message.partition, message.offset), ("", 0))
        if dead_letter and digest != _compute_digest(message.value):
            where = name_offset(message)
            self._account.found.add_sentence(f"the dead letter {dead_letter} holds other bytes than its record {where}")
        if variant is None:
            self._match_delivery(message, is_only=is_new and not is_sent_back(message))
        if not (is_new or is_sent_back(message)):
            return
        with self._measure(message):
            if variant is None:
                group = read_checked_group(message, self._run.store if self.objects else None)
                self._match_facts(group)
                self._match_task(group)
            else:
                curated, group = read_checked_curated(message, self._run.store if self.objects else None)
                self._replays[variant].fold_group(curated, message.partition, sent_back=is_sent_back(message))
                self._compare_with_batches(variant, curated)
                if not is_sent_back(message) and not curated.use:  # sent back are the same bytes as before
                    self._check_first_use(variant, curated, group, message.partition)
            if self.objects:
                check_attachments(group, self.objects)

    def check_record(self, message: Message) -> None:
        """Check a task, an outcome or a dead letter."""
        kind = message.topic.split(".")[1]
        try:
            if kind == "tasks":
                with self._measure(message, groups=0):
                    self._match_task(read_checked_task(message))
            elif kind == "outcomes":
                with self._measure(message, groups=0):
                    self._note_outcome(message, codec.decode(message.value, Outcome))
            elif kind == "dead-letters":
                self._note_dead_letter(message, codec.decode(message.value, DeadLetter))
        except SchemaError:  # the fold reports it
            return

    def _note_outcome(self, message: Message, outcome: Outcome) -> None:
        variant = self._account.variant_of_topic[message.topic]
        if outcome.run_id != self._run.run_id:
            return
        check_outcome_names(message, outcome, self._run.partitions)
        if outcome.use or outcome.component != "curate":
            return
        identity = (outcome.stream, outcome.number)
        if outcome.level == "trajectory":
            self._kept[variant].fold_rejection(outcome)
            return
        self._last_outcomes[variant, message.partition] = identity
        if outcome.verdict == "kept":
            self._values[variant].note_kept(*identity)
        if outcome.n_asked:
            self._values[variant].expect_facts(*identity, _compute_digest(repr(facts_of_outcome(outcome)).encode()))

    def _note_dead_letter(self, message: Message, dead_letter: DeadLetter) -> None:
        record_id = (dead_letter.topic, dead_letter.partition, dead_letter.offset)
        is_ours = dead_letter.run_id == self._run.run_id and dead_letter.topic in self._of_groups
        if is_ours and dead_letter.reason != REDRIVEN and not dead_letter.cut_bytes:
            self._dead[record_id] = name_offset(message), _compute_digest(dead_letter.value)

    def problems(self) -> Iterator[str]:
        """Yield what can be said only after all groups were read: dead letters without a record, and wrong orders."""
        for (topic, partition, offset), (dead_letter, _) in self._dead.items():
            yield f"the dead letter {dead_letter} is about {topic}[{partition}]@{offset}, but there is no record there"
        for order in self._orders.values():
            yield from order.problems()

    def check_evaluation_task(self, message: Message) -> None:
        """Check a task of an evaluation."""
        with self._measure(message, groups=0):
            if why := self._asked.compare_task(read_checked_task(message)):
                raise UnfitValue(why)

    def check_answer(self, message: Message) -> None:
        """Check an answer of an evaluation, as the evaluator read it, after all tasks. Raises StoreAway."""
        unanswered = self._evaluations.find_unanswered(message, self._run.run_id)
        with self._measure(message):
            group = unanswered or read_checked_group(message, self._run.store if self.objects else None)
            self._evaluations.fold_value(group)
            # The evaluator takes the version of an unreadable answer from its tokens.
            if unanswered is None and (why := self._asked.compare_answer(group)):
                raise UnfitValue(why)

    @contextmanager
    def _measure(self, message: Message, groups: int = 1) -> Iterator[None]:
        begin, cpu = time.perf_counter(), time.thread_time()
        try:
            yield
        except UnfitValue as why:
            self._account.unread.record(message.topic, message.partition, message.offset, str(why))
        except (StoreUnavailable, StoreDenied) as error:
            raise StoreAway(str(error)) from error
        finally:
            self.rates.records += groups
            self.rates.seconds += time.perf_counter() - begin
            self.rates.cpu_seconds += time.thread_time() - cpu

    def _compare_with_batches(self, policy_variant: str, curated: CuratedGroup) -> None:
        """Compare a curated record with the batches, and note its bytes for the comparison with the trajectories."""
        deadline = self._account.bounds.deadline(policy_variant, curated.revision, curated.min_version)
        if not curated.use and deadline is not None and curated.deadline_version != deadline:
            raise UnfitValue(
                f"its deadline is version {curated.deadline_version}, but it must be version {deadline}: its oldest "
                f"token's version ({curated.min_version}) plus the trainer's max_staleness "
                f"({deadline - curated.min_version}) in recipe revision {curated.revision}"
            )
        if not variant_of(policy_variant) and (curated.use or deadline is None):
            version = self._account.find_version(policy_variant, curated.stream, curated.number, curated.use)
            if version - 1 > curated.deadline_version:
                self._values[policy_variant].note_late(curated.stream, curated.number, curated.use)
        if not curated.use:
            self._values[policy_variant].expect_delivery(curated.stream, curated.number, _compute_digest(curated.group))

    def _check_first_use(self, variant: str, curated: CuratedGroup, group: TrajectoryGroup, partition: int) -> None:
        """Compare a first use with its group and the outcomes, and note its place for that of its delivery."""
        self._orders[variant].fold_first_use(curated.stream, curated.number, partition)
        is_last = self._last_outcomes.get((variant, partition)) == (curated.stream, curated.number)
        is_kept = self._values[variant].is_kept(curated.stream, curated.number)
        has_outcomes = is_kept and (self._rests or not is_last)
        self._kept[variant].check_first_use(curated, group, has_outcomes=has_outcomes)

    def _match_facts(self, group: TrajectoryGroup) -> None:
        digest = _compute_digest(repr(outcome_facts_of_group(group)).encode())
        for variant in self._account.beside.get(group.policy, ()):
            if group.claim is None:
                self._values[variant].match_facts(group.stream, group.number, digest)
            else:
                self._values[variant].clear_facts(group.stream, group.number)

    def _match_task(self, one: Task | TrajectoryGroup) -> None:
        """Compare the task facts of a record with those of the first record of that number, of any policy."""
        digest = _compute_digest(repr((one.task_id, one.tier)).encode())
        known = self._tasks.digest(one.stream, one.number)
        if not known:
            self._tasks.set_digest(one.stream, one.number, digest)
        elif known != digest:
            raise UnfitValue(
                f"it names task {one.task_id!r:.60} of tier {one.tier!r:.60}, but another record of "
                f"{one.stream}:{one.number} names another task or tier"
            )

    def _match_delivery(self, message: Message, *, is_only: bool) -> None:
        """Pass bytes and place of a group that a worker delivered to the checks of a policy and its shadows."""
        try:
            stamp = Stamp.from_headers(message.headers)
        except HeaderError:  # the fold reports it
            return
        digest = _compute_digest(message.value)
        for variant in self._account.beside.get(policy_of(stamp.policy), ()):
            self._values[variant].match_delivery(stamp.stream, stamp.number, digest)
            self._orders[variant].fold_delivery(stamp.stream, stamp.number, message.partition, is_only=is_only)


def _compute_digest(value: bytes) -> int:
    """Return a digest of eight bytes of a value; never 0."""
    return int.from_bytes(blake3(value).digest(8), "little") or 1
