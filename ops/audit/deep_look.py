"""How `headrace audit --deep` decodes, compares and times the values of groups."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.dead_letters import REDRIVEN, is_sent_back
from headrace.infra.kafka.topic_reader import name_offset
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreDenied, StoreUnavailable
from headrace.ledger.plain_headers import read_group_headers
from headrace.ops.audit.account import RecordId, RunAccount
from headrace.ops.audit.deep import (
    UnfitValue,
    check_attachments,
    check_outcome_names,
    read_checked_curated,
    read_checked_group,
    read_checked_task,
)
from headrace.ops.audit.evaluations import Evaluations
from headrace.ops.audit.findings import Deep
from headrace.ops.audit.objects import ObjectChecks, StoreAway
from headrace.ops.audit.problems import AuditProblem
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.digests import compute_digest
from headrace.schemas.records import CuratedGroup, DeadLetter, Outcome
from headrace.schemas.topics import variant_of


class DeepLook:
    """Checks the values of groups, and adds what is wrong to the account.

    Args:
        run: The run.
        account: Holds the batches and outcomes already, and the headers of each group.
        evaluations: Takes the values of answers.
        objects: Reads attachments; None if the store is left out or unreachable.
    """

    def __init__(self, run: Run, account: RunAccount, evaluations: Evaluations, objects: ObjectChecks | None) -> None:
        self.objects = objects
        self.rates = Deep()
        self._run, self._account, self._evaluations = run, account, evaluations
        topics = run.topics
        self._of_groups = {topics.trajectories(policy) for policy in run.recipe.policies}
        self._of_groups |= {topics.curated(variant) for variant in run.recipe.policy_variants}
        self._dead: dict[RecordId, tuple[str, str]] = {}
        """Record to the position of its dead letter, and the digest of the bytes in it."""
        self._seen = set[int]()
        """Hashes of policy, stream and number of the groups that were delivered."""

    def check_group(self, message: Message, *, counts: bool) -> None:
        """Check a record of trajectories or curated groups; one with a fault needs a dead letter.

        `counts`: whether the fold took it in. Raises StoreAway.
        """
        variant = self._account.variant_of_topic.get(message.topic)
        dead_letter, digest = self._dead.pop((message.topic, message.partition, message.offset), ("", ""))
        if dead_letter and digest != compute_digest(message.value):
            where = name_offset(message)
            self._account.found.add_sentence(f"the dead letter {dead_letter} holds other bytes than its record {where}")
        if variant is None and not (is_sent_back(message) or (counts and self._is_new(message))):
            return
        with self._measure(message):
            store = self._run.store if self.objects else None
            if variant is None:
                group = read_checked_group(message, store)
            else:
                curated, group = read_checked_curated(message, store)
                said = self._account.find_group_digest(variant, curated.stream, curated.number)
                if curated.group and said and said != compute_digest(curated.group):
                    raise UnfitValue("it holds another group than the one that its outcome gives the digest of")
                self._check_deadline(variant, curated)
            if self.objects:
                check_attachments(group, self.objects)

    def _is_new(self, message: Message) -> bool:
        """Return whether a delivery is the first of its number: curators skip later ones."""
        _, policy, group = read_group_headers(message)
        name = hash((policy, group.stream, group.number))
        is_new = name not in self._seen
        self._seen.add(name)
        return is_new

    def _check_deadline(self, variant: str, curated: CuratedGroup) -> None:
        """Name a replay that was trained after its deadline; that of a first use follows from its headers."""
        if curated.use and not variant_of(variant):  # a shadow counts by another clock
            version = self._account.find_version(variant, curated.stream, curated.number, curated.use)
            if version - 1 > curated.deadline_version:
                what = f"(use {curated.use}) was trained after its deadline"
                late = AuditProblem(what, variant, curated.stream, curated.number)
                self._account.found.add([late], 1)

    def check_record(self, message: Message) -> None:
        """Check a task, an outcome or a dead letter."""
        kind = message.topic.split(".")[1]
        try:
            if kind == "tasks":
                with self._measure(message, groups=0):
                    read_checked_task(message)
            elif kind == "outcomes":
                outcome = codec.decode(message.value, Outcome)
                if outcome.run_id == self._run.run_id:
                    with self._measure(message, groups=0):
                        check_outcome_names(message, outcome, self._run.partitions)
            elif kind == "dead-letters":
                self._note_dead_letter(message, codec.decode(message.value, DeadLetter))
        except SchemaError:  # the fold reports it
            return

    def _note_dead_letter(self, message: Message, dead_letter: DeadLetter) -> None:
        record_id = (dead_letter.topic, dead_letter.partition, dead_letter.offset)
        is_ours = dead_letter.run_id == self._run.run_id and dead_letter.topic in self._of_groups
        if is_ours and dead_letter.reason != REDRIVEN and not dead_letter.cut_bytes:
            self._dead[record_id] = name_offset(message), compute_digest(dead_letter.value)

    def problems(self) -> Iterator[str]:
        """Yield what can be said only after all groups were read: dead letters without a record."""
        for (topic, partition, offset), (dead_letter, _) in self._dead.items():
            yield f"the dead letter {dead_letter} is about {topic}[{partition}]@{offset}, but there is no record there"

    def check_evaluation_task(self, message: Message) -> None:
        """Check a task of an evaluation."""
        with self._measure(message, groups=0):
            read_checked_task(message)

    def check_answer(self, message: Message) -> None:
        """Check an answer of an evaluation, as the evaluator read it, after all tasks. Raises StoreAway."""
        unanswered = self._evaluations.find_unanswered(message, self._run.run_id)
        with self._measure(message):
            group = unanswered or read_checked_group(message, self._run.store if self.objects else None)
            self._evaluations.fold_value(group)

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
