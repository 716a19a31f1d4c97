"""Evaluations without a result, and their tasks for which the evaluator has no group yet. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog

from headrace.producers.feed.evaluation_schedule import Evaluation
from headrace.producers.feed.open_tasks import OpenTask, TaskTable, iterate_passed
from headrace.producers.feed.overdue import Passed
from headrace.schemas.avro import Plain
from headrace.schemas.ids import GroupId
from headrace.schemas.records import EvalResult
from headrace.schemas.topics import eval_stream

log = structlog.get_logger()


class Answer(NamedTuple):
    """A group of an evaluation that the evaluator has; number -1: all groups of an evaluation with a result."""

    workflow: str
    policy: str
    version: int
    number: int = -1


@dataclass(frozen=True, slots=True)
class _Open:
    evaluation: Evaluation
    first: int
    """Number of its first task."""
    problems: int
    """Number of its tasks, whose numbers are consecutive."""

    def has_group(self, group: GroupId) -> bool:
        is_its = group.stream == eval_stream(self.evaluation.workflow)
        return is_its and self.first <= group.number < self.first + self.problems


class OpenEvaluations:
    """Holds an evaluation until its result comes or all its tasks are given up."""

    def __init__(self) -> None:
        self.table = TaskTable()
        self.tasks = self.table.open
        """Tasks whose groups the evaluator may not have, each open for the evaluated policy."""
        self._open: list[_Open] = []
        """Evaluations that have such tasks."""

    def begin(self, evaluation: Evaluation, first: int, problems: int, partitions: int) -> list[GroupId]:
        """Open the tasks of an evaluation; a task goes to partition number modulo `partitions`."""
        policy, stream = {evaluation.policy}, eval_stream(evaluation.workflow)
        groups = [GroupId(stream, number) for number in range(first, first + problems)]
        for index, group in enumerate(groups):
            self.table.note_change(group)
            self.tasks[group] = OpenTask(index, "", group.number % partitions, 0, -1, set(policy), set(policy))
        self._open.append(_Open(evaluation, first, problems))
        return groups

    def of(self, group: GroupId) -> Evaluation:
        """Return the evaluation of an open task."""
        return next(one.evaluation for one in self._open if one.has_group(group))

    def find_passed(self, committed: Mapping[tuple[str, int], int]) -> Iterator[Passed]:
        """Yield the tasks that the workers committed past; see `iterate_passed`."""
        return iterate_passed(self.tasks, committed)

    def fold_result(self, result: EvalResult) -> None:
        """Close the evaluation of a result."""
        self.note_answered({Answer(result.workflow, result.policy, result.version)})

    def note_answered(self, answers: Collection[Answer]) -> None:
        """Close tasks whose groups the evaluator has."""
        for group in list(self.tasks):
            asked = self.of(group)
            whole = Answer(asked.workflow, asked.policy, asked.versions[asked.policy])
            if whole in answers or whole._replace(number=group.number) in answers:
                self.table.note_change(group)
                del self.tasks[group]
        self._forget_closed()

    def reissue(self, group: GroupId) -> OpenTask:
        """Send a task again, as another attempt."""
        self.table.note_change(group)
        task = self.tasks[group]
        task.attempt, task.offset = task.attempt + 1, -1
        return task

    def conclude_unanswered(self, group: GroupId) -> None:
        """Give up a task; its evaluation then gets no result unless somebody sends the dead letter back."""
        asked = self.of(group)
        # A task of an evaluation was issued the most times without an answer; the evaluation has no result.
        log.error(
            "evaluation.unanswered",
            workflow=asked.workflow,
            policy=asked.policy,
            version=asked.versions[asked.policy],
            number=group.number,
            advice="no group of this task came, so the evaluation has no result. The task is a dead letter now: look "
            "into the workers' logs for the cause, then send the task again by `headrace redrive`",
        )
        self.table.note_change(group)
        del self.tasks[group]
        self._forget_closed()

    def _forget_closed(self) -> None:
        self._open = [one for one in self._open if any(one.has_group(group) for group in self.tasks)]

    def snapshot(self) -> list[list[Any]]:
        """Return the state as JSON, without the tasks, which are in the table's chunks."""
        evaluations = [(one.evaluation, one.first, one.problems) for one in self._open]
        return [[asked.workflow, asked.policy, asked.versions, *numbers] for asked, *numbers in evaluations]

    def restore(
        self, rows: Iterable[list[Any]], chunks: Iterable[Plain], policies_of: Mapping[str, Collection[str]]
    ) -> None:
        """Take the state that `snapshot` returned and the chunks, without removed workflows and policies.

        Args:
            rows: What `snapshot` returned.
            chunks: Chunks of the task table.
            policies_of: Workflow to the policies that it trains now.
        """
        self._open = [
            _Open(Evaluation(workflow, policy, dict(versions)), first, problems)
            for workflow, policy, versions, first, problems in rows
            if policy in policies_of.get(workflow, ())
        ]
        self.table.restore(list(chunks))
        for group in [group for group in self.tasks if not any(one.has_group(group) for one in self._open)]:
            self.table.note_change(group)
            del self.tasks[group]
