"""The audit of evaluations: every number is answered for each policy, and every result exists exactly once.

No I/O. Memory: some hundred bytes for a number and policy, and in a deep audit the answers of incomplete evaluations.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

from headrace.consumers.evaluate.evaluation import (
    EvaluationFold,
    build_group_without_answers,
    read_lost_stamp,
)
from headrace.infra.inflection import inflect
from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.dead_letters import REDRIVEN
from headrace.infra.kafka.topic_reader import PartitionId, name_offset, name_partition
from headrace.infra.recipe.settings import Recipe
from headrace.ledger.feeder_snapshot import NO_SNAPSHOT, FeederSnapshot, read_next_numbers
from headrace.ops.audit.problems import AuditProblem, Problems
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.headers import HeaderError, Stamp
from headrace.schemas.records import DeadLetter, EvalResult, Snapshot, TierResult, TrajectoryGroup
from headrace.schemas.topics import EVALUATOR, is_eval, workflow_of

EvaluationKey = tuple[str, str, int]
"""(workflow, policy, version)."""
OF_ANY, OF_ANSWERS = ("problems", "samples"), ("avg_at_k", "pass_at_k", "mean_length", "failures")
"""Fields of a result that depend only on its version's answers, and fields that depend on its own answers."""


@dataclass(frozen=True, slots=True)
class EvaluationCounts:
    """Counts of the evaluation tasks of one policy on one workflow."""

    issued: int
    answered: int
    dead: int
    in_flight: int
    lost: int
    results: int


@dataclass(slots=True)
class _Numbers:
    """What is known of the numbers of one policy on one workflow."""

    answered: set[int] = field(default_factory=set)
    waiting: set[int] = field(default_factory=set)
    """Numbers whose task the workers have not read yet."""
    due: set[int] = field(default_factory=set)
    """Numbers whose task the workers have read past."""
    deaths: Counter[int] = field(default_factory=Counter)
    """Number to its dead letters, minus redrives that opened it again."""

    @property
    def dead(self) -> set[int]:
        """Numbers that a dead letter concludes."""
        return {number for number, times in self.deaths.items() if times > 0} - self.answered

    @property
    def known(self) -> set[int]:
        """Numbers that were answered, or that nobody need answer yet or any more."""
        return self.answered | self.waiting | self.dead

    def count_open(self, first: int, end: int) -> int:
        """Count the numbers from `first` up to `end` that were not answered, and whose task waits for no worker."""
        return max(end - first, 0) - sum(first <= n < end for n in self.known)

    def iterate_open(self, first: int, end: int) -> Iterator[int]:
        """Yield these numbers. A number from the log may be huge, so they are never all in memory."""
        known = self.known
        return (number for number in range(first, end) if number not in known)


class Evaluations:
    """Takes in the records of evaluations.

    Args:
        revisions: All recipes of the run, by revision.
    """

    def __init__(self, revisions: tuple[Recipe, ...]) -> None:
        self._recipe, self._revisions = revisions[-1], revisions
        sizes = {one.evaluate.problems for one in revisions}
        self._size = sizes.pop() if len(sizes) == 1 else 0
        """Number of problems of each evaluation; 0 if it differs between revisions."""
        self.issued_before: dict[str, int] | None = None
        """For a running run, next numbers from before anything else was read, so that later tasks are not judged."""
        self.read_before: Mapping[str, int] | None = None
        """For a running run, the evaluator's positions from before anything else was read."""
        self._issued: dict[str, int] = {}
        self._seen: Counter[str] = Counter()
        self._numbers = defaultdict[tuple[str, str], _Numbers](_Numbers)
        """(workflow, policy) to its numbers."""
        self._ends: dict[PartitionId, int] = {}
        """Partition of answers to the offset after its last one."""
        self._read: Mapping[str, int] = {}
        """The evaluator's positions, as `topic[partition]`."""
        self._results: dict[EvaluationKey, EvalResult] = {}
        self._expected: dict[EvaluationKey, tuple[EvalResult, dict[str, int]]] = {}
        """Deep audit only: the result that the answers give, and the offsets that the evaluator must reach for it."""
        self._spans: dict[EvaluationKey, tuple[int, int]] = {}
        """Deep audit only: the lowest and the highest number that was answered."""
        self._unread: set[tuple[str, int, int]] = set()
        """Deep audit only: (topic, partition, offset) of answers that have a dead letter."""
        self._unseen: set[EvaluationKey] = set()
        """Deep audit only: evaluations with answers in a store that is left out."""
        self._fold = EvaluationFold("", self._size)
        self._found = Problems()

    # --------------------------------------------------------------------------------------------------------- records

    def fold_task(self, message: Message, run_id: str, passed: Mapping[PartitionId, int]) -> bool:
        """Take in a task; return False if it is of no evaluation of this run.

        `passed` are the next offsets of the workers, from before the tasks were read.
        """
        stamp, partition_id = _read_stamp(message, run_id), (message.topic, message.partition)
        if stamp is None:
            return False
        workflow = workflow_of(stamp.stream)
        self._seen[workflow] = max(self._seen[workflow], stamp.number + 1)
        if workflow in self._recipe.workflows:
            waits = message.offset >= passed.get(partition_id, 0)
            for policy in self._recipe.policies_of(workflow):
                numbers = self._numbers[workflow, policy]
                (numbers.waiting if waits else numbers.due).add(stamp.number)
        return True

    def fold_answer(self, message: Message, run_id: str) -> bool:
        """Take in a group; return False if it names no evaluation of this run, and so must be a dead letter.

        Raises HeaderError for a group on the topic of another policy.
        """
        stamp, partition_id = _read_stamp(message, run_id), (message.topic, message.partition)
        self._ends[partition_id] = message.offset + 1
        if stamp is None or stamp.policy not in self._recipe.policies:
            return False
        if message.topic != self._recipe.topics.eval_groups(stamp.policy):
            raise HeaderError(f"a group of policy {stamp.policy:.60} is on another policy's eval-groups topic")
        self._numbers[workflow_of(stamp.stream), stamp.policy].answered.add(stamp.number)
        return True

    def fold_result(self, message: Message, run_id: str) -> None:
        """Take in a result."""
        where = name_offset(message)
        try:
            result = codec.decode(message.value, EvalResult)
        except SchemaError as error:
            self._found.add_sentence(f"{where} cannot be read as a result: {error}")
            return
        key = (result.workflow, result.policy, result.version)
        if result.run_id == run_id and key in self._results:
            self._found.add_sentence(f"{name_evaluation(key)} has more than one result: {where}")
        elif result.run_id == run_id:
            self._results[key] = result

    def fold_snapshots(self, feeder: FeederSnapshot, evaluator: Message | None) -> None:
        """Take in the newest snapshots; the fold reports a feeder's snapshot that cannot be read."""
        with suppress(*NO_SNAPSHOT):
            if (snapshot := feeder.decode()) is not None:
                self._issued = read_issued_evaluations(json.loads(snapshot.body))
        self._read = read_positions(evaluator)

    def get_reader_positions(self) -> Mapping[str, int]:
        """Return the offsets, as `topic[partition]`, before which the evaluator has judged each answer."""
        return self._read if self.read_before is None else self.read_before

    def fold_value(self, group: TrajectoryGroup) -> None:
        """Take in the value of the answer that was just taken in; the answers of a partition come in order."""
        if not self._size or not is_eval(group.stream):
            return
        key = (workflow_of(group.stream), group.policy, group.asked_version)
        if group.claim is not None:
            self._unseen.add(key)
            return
        low, high = self._spans.get(key, (group.number, group.number))
        self._spans[key] = min(low, group.number), max(high, group.number)
        result = self._fold.fold_group(group)
        if result is not None:
            ends = {name_partition(partition_id): end for partition_id, end in self._ends.items()}
            key = (result.workflow, result.policy, result.version)
            self._expected[key] = result, ends

    def find_unanswered(self, message: Message, run_id: str) -> TrajectoryGroup | None:
        """Return the group that the evaluator counted in place of an unreadable answer; None for a readable answer."""
        if (message.topic, message.partition, message.offset) not in self._unread:
            return None
        stamp = read_lost_stamp(message.headers, run_id)
        return build_group_without_answers(stamp, stamp.policy, self._revisions) if stamp is not None else None

    def fold_dead_letter(self, dead_letter: DeadLetter) -> None:
        """Take in a dead letter about an evaluation, or its redrive."""
        if dead_letter.component == EVALUATOR and dead_letter.reason != "other_run":
            self._unread.add((dead_letter.topic, dead_letter.partition, dead_letter.offset))
        workflow = workflow_of(dead_letter.stream)
        if dead_letter.number < 0 or workflow not in self._recipe.workflows:
            return
        named = (dead_letter.policy,) if dead_letter.policy else self._recipe.policies_of(workflow)
        for policy in named:
            if policy in self._recipe.policies:
                self._numbers[workflow, policy].deaths[dead_letter.number] += (
                    -1 if dead_letter.reason == REDRIVEN else 1
                )

    # ---------------------------------------------------------------------------------------------------------- result

    def counts(self, *, drained: bool) -> dict[str, EvaluationCounts]:
        """Return the counts of evaluations by `workflow.policy`."""
        found = {}
        for workflow, issued in self._issued.items():
            for policy in self._recipe.policies_of(workflow) if issued and workflow in self._recipe.workflows else ():
                numbers, first = self._numbers[workflow, policy], self._find_first(workflow, policy)
                answered, dead = (sum(0 <= n < issued for n in some) for some in (numbers.answered, numbers.dead))
                lost = numbers.count_open(first, issued) if drained else 0
                results = sum(key[:2] == (workflow, policy) for key in self._results)
                own = issued - first
                in_flight = own - answered - dead - lost
                found[f"{workflow}.{policy}"] = EvaluationCounts(own, answered, dead, in_flight, lost, results)
        return found

    def problems(self, *, still: bool, drained: bool) -> Problems:
        """Return what is wrong.

        Args:
            still: Whether no process writes now.
            drained: Whether no worker will play the open tasks.
        """
        found = Problems()
        found.extend(self._found)
        self._add_lost(found, drained=drained)
        sentences = [self._find_foreign(), self._find_missing() if drained else ()]
        sentences.append(self._find_wrong(still=still))
        for what in (one for some in sentences for one in some):
            found.add_sentence(what)
        return found

    def _find_foreign(self) -> Iterator[str]:
        for workflow, end in sorted(self._seen.items()):
            if end > self._issued.get(workflow, 0):
                yield (
                    f"eval.{workflow}:{end - 1} has a record on the eval-tasks topic, but the feeder's snapshot does "
                    "not count it as issued"
                )
        for (workflow, policy), numbers in sorted(self._numbers.items()):
            for number in sorted(numbers.answered | numbers.dead):
                if not 0 <= number < self._issued.get(workflow, 0):
                    name = f"eval.{workflow}:{number} of {policy}"
                    yield f"{name} was answered or is a dead letter, but was never issued"

    def _add_lost(self, found: Problems, *, drained: bool) -> None:
        for workflow, issued in self._issued.items():
            before = issued if self.issued_before is None else self.issued_before.get(workflow, 0)
            for policy in self._recipe.policies_of(workflow) if workflow in self._recipe.workflows else ():
                first, numbers = self._find_first(workflow, policy), self._numbers[workflow, policy]
                name = f"{workflow}:{{}} of {policy}"
                if drained:
                    count, lost = numbers.count_open(first, issued), numbers.iterate_open(first, issued)
                    _add_numbers(found, name, lost, count, "was issued, but never answered")
                    continue
                due = sorted(n for n in numbers.due - numbers.known if n >= first)
                _add_numbers(found, name, due, len(due), "was issued, but never answered")
                gone = (number for number in numbers.iterate_open(first, before) if number not in numbers.due)
                count = numbers.count_open(first, before) - sum(n < before for n in due)
                what = "was issued and is not answered, but its task is not on the eval-tasks topic"
                _add_numbers(found, name, gone, count, what)

    def _find_first(self, workflow: str, policy: str) -> int:
        """Return the first number that a policy must answer.

        It is 0 if every recipe with the workflow trains the policy in it. For a policy that came with a later recipe it
        is the first number that it answered: earlier tasks asked nothing of it.
        """
        having = [one for one in self._revisions if workflow in one.workflows]
        issued = self._issued.get(workflow, 0)
        if all(policy in one.policies_of(workflow) for one in having):
            return 0
        return max(min((*self._numbers[workflow, policy].answered, issued)), 0)

    def _find_missing(self) -> Iterator[str]:
        """Yield the missing results for which the evaluator has read all answers."""
        if any(end > self._read.get(name_partition(partition_id), 0) for partition_id, end in self._ends.items()):
            return
        counts = self.counts(drained=True)
        for workflow, issued in self._issued.items():
            if self._is_another_now(workflow):
                continue
            own = [one for name, one in counts.items() if name.partition(".")[0] == workflow]
            asked = issued // self._size if self._size else 0
            there = sum(one.results for one in own)
            if there < asked and all(one.answered == issued for one in own):
                who = f"{asked} {inflect(asked, 'evaluation')} of {workflow} {inflect(asked, 'has', 'have')}"
                yield f"{who} all answers, but only {there} of them {inflect(there, 'has', 'have')} a result"

    def _is_another_now(self, workflow: str) -> bool:
        """Return whether the newest recipe lacks a workflow, or a policy of it, so that a result may be missing."""
        known = set(self._recipe.policies_of(workflow)) if workflow in self._recipe.workflows else set()
        having = [one for one in self._revisions if workflow in one.workflows]
        return any(not known.issuperset(one.policies_of(workflow)) for one in having)

    def _find_wrong(self, *, still: bool) -> Iterator[str]:
        """Yield, in a deep audit, the results that differ from their answers."""
        for key, (expected, ends) in sorted(self._expected.items()):
            found = self._results.get(key)
            if key in self._unseen or (found is None and self._is_another_now(key[0])):
                continue
            if found is None and all(end <= self._read.get(name, 0) for name, end in ends.items()):
                yield f"{name_evaluation(key)} has all answers, but no result"
            elif found is not None and (differing := self._find_differences(key, expected, found)):
                name = name_evaluation(key)
                yield f"{name} has a result that differs from its answers (answers -> result): {differing}"
        if still and self._expected:
            for key in sorted(self._results.keys() - self._expected.keys() - self._unseen):
                yield f"{name_evaluation(key)} has a result, but some of its answers are missing"

    def _find_differences(self, key: EvaluationKey, expected: EvalResult, found: EvalResult) -> str:
        """Return how a result differs from its answers, in words.

        An older release may have counted episodes as failed in which the policy did not act.
        """
        names = self._fields_to_compare(key, found)
        if expected.failures < found.failures <= expected.problems * expected.samples - expected.played:
            found = replace(found, failures=expected.failures, played=expected.played)
        return _describe_differences(expected, found, names)

    def _fields_to_compare(self, key: EvaluationKey, found: EvalResult) -> tuple[str, ...]:
        """Return the fields in which a result must agree with its answers.

        A version that also played in the evaluation of another policy has more answers than one evaluation, and no
        record says which of them the evaluator read first. An older release counted failed episodes as wrong answers.
        """
        low, high = self._spans[key]
        if high - low >= self._size:
            return OF_ANY
        if found.played < 0 and found.failures:
            return (*OF_ANY, "mean_length", "failures")
        tiers = ("tiers",) if found.tiers else ()  # releases before these fields gave none
        later = {"standard_error": found.standard_error >= 0, "played": found.played >= 0, "asked": found.asked > 0}
        return (*OF_ANY, *OF_ANSWERS, *tiers, *(name for name, is_given in later.items() if is_given))


def read_issued_evaluations(state: Any) -> dict[str, int]:
    """Return the next number of every workflow's evaluations from the feeder's state; none from an older release."""
    return read_next_numbers(state.get("next_evaluation", {}))


def read_positions(snapshot: Message | None) -> Mapping[str, int]:
    """Return the positions in a snapshot, as `topic[partition]`; none for a snapshot that cannot be read."""
    with suppress(SchemaError):
        return dict(codec.decode(snapshot.value, Snapshot).positions) if snapshot is not None else {}
    return {}


def _read_stamp(message: Message, run_id: str) -> Stamp | None:
    """Return the stamp of an evaluation of this run; None for anything else."""
    try:
        stamp = Stamp.from_headers(message.headers)
    except HeaderError:
        return None
    return stamp if stamp.run_id == run_id and is_eval(stamp.stream) else None


def _add_numbers(found: Problems, name: str, numbers: Iterable[int], count: int, what: str) -> None:
    found.add((AuditProblem(f"eval.{name.format(number)} {what}") for number in numbers), count)


def _describe_differences(expected: EvalResult, found: EvalResult, names: tuple[str, ...]) -> str:
    """Return the fields that differ, each with both values; of `tiers`, the fields of each tier that differ."""
    words = []
    for name in names:
        one, other = getattr(expected, name), getattr(found, name)
        if repr(one) == repr(other):  # NaN is another than itself
            continue
        words += _describe_tiers(one, other) if name == "tiers" else [f"{name} {one} -> {other}"]
    return ", ".join(words)


def _describe_tiers(expected: Sequence[TierResult], found: Sequence[TierResult]) -> list[str]:
    names = [[one.tier for one in tiers] for tiers in (expected, found)]
    if names[0] != names[1]:
        return [f"tiers {' and '.join(names[0]) or 'none'} -> {' and '.join(names[1]) or 'none'}"]
    return [
        f"{field.name} of tier {one.tier} {getattr(one, field.name)} -> {getattr(other, field.name)}"
        for one, other in zip(expected, found, strict=True)
        for field in fields(TierResult)
        if repr(getattr(one, field.name)) != repr(getattr(other, field.name))
    ]


def name_evaluation(key: EvaluationKey) -> str:
    """Return the name of an evaluation for a sentence."""
    workflow, policy, version = key
    return f"the evaluation of version {version} of {policy} on {workflow}"
