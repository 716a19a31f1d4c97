"""The feeder's state and decisions: the next task, tasks to issue again, and the end of the run. Without Kafka.

The state is a function of the records read and the tasks planned, so a snapshot with the positions of the inputs
restores it exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import structlog

from headrace.envs.contract import Problem
from headrace.infra.kafka.dead_letters import REDRIVEN
from headrace.infra.kafka.decoding import LARGEST_LEAP
from headrace.infra.recipe.settings import Recipe
from headrace.infra.weights.paths import is_version
from headrace.producers.feed.early_stop import EarlyStop
from headrace.producers.feed.evaluation_schedule import EvaluationSchedule
from headrace.producers.feed.open_evaluations import OpenEvaluations
from headrace.producers.feed.open_tasks import OpenTask
from headrace.producers.feed.overdue import MOST_ATTEMPTS
from headrace.producers.feed.pacing import Pacing, Quota
from headrace.producers.feed.planned import Planned, build_common_task, build_evaluation_task, build_training_task
from headrace.producers.feed.solved import SolvedWatch
from headrace.producers.feed.task_source import TaskSource
from headrace.schemas.avro import Plain
from headrace.schemas.ids import GroupId
from headrace.schemas.records import (
    BatchTrained,
    DeadLetter,
    EvalResult,
    Outcome,
    RecipeRevision,
    WeightsPublished,
)
from headrace.schemas.topics import is_eval, region_of, workflow_of

log = structlog.get_logger()

MOST_TASKS = 256
"""Most training tasks planned in one turn, and so in one transaction; evaluation tasks are added to these."""
TOO_HARD_ADVICE = (
    "too many groups teach nothing, because all their episodes got the same reward, mostly a low one: use easier "
    "problems, or start from a stronger model"
)


class FeedState:
    """Everything that a feeder remembers.

    Args:
        recipe: The revision in force.
        revision: The record of that revision on the recipe topic.
        sources: Source of problems by workflow; its streams, at home and in regions, draw from the same source.
    """

    def __init__(self, recipe: Recipe, revision: RecipeRevision, sources: Mapping[str, TaskSource]) -> None:
        self.recipe = recipe
        self.revision = revision
        self.sources = {one: sources[workflow_of(one)] for one in recipe.streams if workflow_of(one) in sources}
        policies_of = {workflow: recipe.policies_of(workflow) for workflow in recipe.workflows}
        trained_by = {stream: policies_of[workflow_of(stream)] for stream in recipe.streams}
        trainers = {p: recipe.trainer_of(p) for policies in policies_of.values() for p in policies}
        quotas = {
            p: Quota((t.max_staleness + 1) * t.groups_per_batch, t.steps, t.groups_per_batch)
            for p, t in trainers.items()
        }
        steps = {policy: trainer.steps for policy, trainer in trainers.items()}
        self.pacing = Pacing(trained_by, quotas, recipe.feed.pace, recipe.task_partitions)
        self.evaluations = EvaluationSchedule(policies_of, steps, recipe.evaluate.every)
        self.evaluating = OpenEvaluations()
        evaluated = frozenset((workflow, policy) for workflow, policies in policies_of.items() for policy in policies)
        self.early_stop = EarlyStop(evaluated, recipe.evaluate.stop_after if recipe.evaluate.every else 0)
        self.watches = {workflow: SolvedWatch(recipe.feed.solved_share) for workflow in policies_of}
        self.ended = ""
        """Why the run is over, once that was announced; empty while it goes on."""
        self._next_evaluation = dict.fromkeys(policies_of, 0)
        self._begins: dict[str, list[tuple[int, int]]] = {stream: [(revision.revision, 0)] for stream in trained_by}
        """Pairs (revision, first number issued under it) by stream, in order; also of removed streams."""

    # --------------------------------------------------------------------------------------------------------- records

    def fold_outcome(self, outcome: Outcome) -> None:
        """Take in a group's outcome: dropped, expired and other final outcomes conclude its number, kept does not."""
        if outcome.level != "group" or outcome.use or outcome.stream not in self.sources:
            return
        group, policy = GroupId.of(outcome), outcome.policy
        if self.pacing.acknowledge(group, policy) and outcome.component == "curate":
            self._observe_outcome(workflow_of(outcome.stream), outcome)
        if outcome.verdict != "kept":
            self.pacing.conclude(group, policy)

    def fold_batch(self, batch: BatchTrained) -> None:
        """Take in which numbers were trained, and how much of a batch was replayed."""
        self.pacing.note_batch(batch.policy, sum(group.use == 0 for group in batch.groups), len(batch.groups))
        for group in batch.groups:
            if group.use == 0:
                self.pacing.conclude(GroupId.of(group), batch.policy)
        self._note_version(batch.policy, batch.version)

    def fold_weights(self, weights: WeightsPublished) -> None:
        """Take in a published version, which can be evaluated."""
        if is_version(weights):
            self._note_version(weights.policy, weights.version)
            self.evaluations.note_published(weights.policy, weights.version)

    def fold_result(self, result: EvalResult) -> None:
        """Take in the result of an evaluation."""
        self.evaluating.fold_result(result)
        self.early_stop.observe(result)

    def swap(self, revision: RecipeRevision, recipe: Recipe) -> None:
        """Issue all further numbers under a later revision, which differs only in its chain."""
        self.revision, self.recipe = replace(revision, ended=self.revision.ended), recipe
        self._begin_revision()

    def revision_of(self, stream: str, number: int) -> int:
        """Return the recipe revision of a training number, the same for all its attempts."""
        begins = self._begins[stream]
        return next((revision for revision, first in reversed(begins) if number >= first), begins[0][0])

    def _begin_revision(self) -> None:
        for stream in self.sources:
            begins = self._begins.setdefault(stream, [(self.revision.revision, 0)])
            if begins[-1][0] < self.revision.revision:
                begins.append((self.revision.revision, self.pacing.next[stream]))

    def has_impossible_version(self, record: object) -> bool:
        """Return whether a record names a version that no trainer can have reached."""
        if not isinstance(record, BatchTrained | WeightsPublished):
            return False
        return record.version > self.find_newest_version(record.policy) + LARGEST_LEAP

    def find_newest_version(self, policy: str) -> int:
        """Return the newest version of a policy that the feeder knows; 0 if it knows none."""
        return max(self.pacing.versions.get(policy, 0), 0)

    def fold_dead_letter(self, dead: DeadLetter) -> None:
        """Take in a dead letter: its number is dead for one policy, or for all if the task itself was unreadable.

        A letter with reason `redriven` opens the number again. A letter about a replay does not change the number.
        """
        if dead.use:
            return
        group, policy = GroupId.of(dead), dead.policy
        if dead.reason != REDRIVEN:
            self.pacing.mark_dead(group, policy)
        elif group.stream in self.sources:
            is_task = dead.topic == self.recipe.topics.tasks(group.stream)
            self.pacing.reopen(group, policy, (dead.partition, dead.offset) if is_task else None)

    def _note_version(self, policy: str, version: int) -> None:
        newest = {
            stream: max(self.pacing.versions.get(one, -1) for one in policies)
            for stream, policies in self.pacing.policies_of.items()
            if policy in policies and not region_of(stream)  # regions draw from the same source
        }
        if self.pacing.note_version(policy, version):
            for stream, before in newest.items():
                if version > before:
                    self.sources[stream].selector.on_version(version)

    def _observe_outcome(self, workflow: str, outcome: Outcome) -> None:
        source, watch = self.sources[workflow], self.watches[workflow]
        source.selector.observe(outcome)
        if source.tier and outcome.tier != source.tier:
            return  # issued before the tier was raised
        verdict = watch.observe(outcome)
        if verdict == "too_hard":
            # Nearly all groups were dropped, as the rewards in a group were equal, and mostly low.
            log.warning("tasks.too_hard", workflow=workflow, advice=TOO_HARD_ADVICE)
        elif verdict == "solved" and self.recipe.feed.raise_tier and source.raise_tier():
            # `next_tier` is null if the workflow gets no more tasks.
            log.info("tasks.solved", workflow=workflow, next_tier=source.tier)
            watch.clear()
        elif verdict == "solved" and workflow not in self.pacing.closed:
            log.info("tasks.solved", workflow=workflow, next_tier=None)
            self.pacing.closed.update(one for one in self.sources if workflow_of(one) == workflow)

    # ----------------------------------------------------------------------------------------------------------- plans

    def plan(self) -> list[Planned]:
        """Return the tasks to issue now: due evaluations, and training tasks while there is room."""
        if self.ended:  # a trainer that has begun a version may publish it after an early end
            self.evaluations.close()
        found = self._plan_evaluations()
        if self.ended:
            return found
        for _ in range(MOST_TASKS):
            stream = self.pacing.choose_stream()
            if stream is None:
                break
            drawn = self.sources[stream].draw()
            number, open_task = self.pacing.issue(stream, drawn.index, drawn.tier)
            found.append(self._plan_training(GroupId(stream, number), open_task, drawn.problem))
        return found

    def conclude_unanswered(self, numbers: list[GroupId]) -> list[Planned]:
        """Conclude as dead the numbers that have used all their attempts; return their last attempts."""
        found = []
        for group, task in self._find_open(numbers):
            if task.attempt + 1 >= MOST_ATTEMPTS:
                found.append(self._build_newest_attempt(group, task))
                if is_eval(group.stream):
                    self.evaluating.conclude_unanswered(group)
                else:
                    self.pacing.mark_dead(group)
        return found

    def reissue_lost(self, numbers: list[GroupId]) -> list[Planned]:
        """Return new attempts for open numbers whose tasks or groups were lost."""
        found = []
        for group, _ in self._find_open(numbers):
            task = self.evaluating.reissue(group) if is_eval(group.stream) else self.pacing.reissue(group)
            found.append(self._build_newest_attempt(group, task))
            # The task was lost.
            log.warning("task.reissued", stream=group.stream, number=group.number, attempt=task.attempt)
        return found

    def _find_open(self, numbers: list[GroupId]) -> list[tuple[GroupId, OpenTask]]:
        tasks = (self.evaluating.tasks.get(group) or self.pacing.tasks.get(group) for group in numbers)
        return [(group, task) for group, task in zip(numbers, tasks, strict=True) if task is not None]

    def end(self) -> str:
        """Return why the run is over, once, when this is to be announced; otherwise return an empty text.

        The end is announced when the last versions are published and their evaluations are planned.
        """
        why = "" if self.ended else self.pacing.end_reason() or ("early_stop" if self._has_stopped_rising() else "")
        is_complete = all(self.evaluations.is_last_version_published(policy) for policy in self.pacing.quotas)
        if not why or (why == "steps" and not is_complete):
            return ""
        self.evaluations.close()  # the newest version may be due only by this recipe, or after an early end
        if not self.evaluations.is_settled:
            return ""
        self.ended = why
        return why

    def _has_stopped_rising(self) -> bool:
        complete = [policy for policy in self.pacing.quotas if self.evaluations.is_last_version_published(policy)]
        return self.early_stop.is_over(complete)

    def _build_newest_attempt(self, group: GroupId, task: OpenTask) -> Planned:
        """Return the newest attempt of an open number."""
        if not is_eval(group.stream):
            return self._plan_training(group, task, self.sources[group.stream].problem(task.index, task.tier))
        evaluation = self.evaluating.of(group)
        problem = self.sources[evaluation.workflow].build_held_out_problem(task.index)
        bare = build_common_task(self.recipe, self.revision.run_id, self.revision.revision, group, problem)
        return Planned(build_evaluation_task(self.recipe, bare, task.attempt, evaluation), task)

    def _plan_training(self, group: GroupId, task: OpenTask, problem: Problem) -> Planned:
        bare = build_common_task(self.recipe, self.revision.run_id, self.revision_of(*group), group, problem)
        return Planned(build_training_task(self.recipe, bare, task.attempt), task)

    def _plan_evaluations(self) -> list[Planned]:
        found: list[Planned] = []
        for evaluation in self.evaluations.take_ready():
            workflow, problems = evaluation.workflow, self.recipe.evaluate.problems
            first = self._next_evaluation[workflow]
            self._next_evaluation[workflow] += problems
            log.info("evaluation.issued", workflow=workflow, policy=evaluation.policy, versions=evaluation.versions)
            numbers = self.evaluating.begin(evaluation, first, problems, self.recipe.task_partitions)
            found += [self._build_newest_attempt(group, self.evaluating.tasks[group]) for group in numbers]
        return found

    # ----------------------------------------------------------------------------------------------------------- state

    def snapshot(self) -> Plain:
        """Return the state as JSON, without the open numbers, which `take_changes` returns: so its size is bounded.

        For the audit, `next` holds the next training number of every stream, and `revisions` the pairs (revision, first
        number issued under it).
        """
        return {
            "next": dict(self.pacing.next),
            "revisions": {stream: [list(begin) for begin in begins] for stream, begins in self._begins.items()},
            "pacing": self.pacing.snapshot(),
            "evaluations": self.evaluations.snapshot(),
            "next_evaluation": dict(self._next_evaluation),
            "evaluating": self.evaluating.snapshot(),
            "watches": {stream: watch.snapshot() for stream, watch in self.watches.items()},
            "sources": {workflow: self.sources[workflow].snapshot() for workflow in self.watches},
            "early_stop": self.early_stop.snapshot(),
            "ended": self.ended,
        }

    @property
    def changed(self) -> int:
        """How many chunks `take_changes` would return."""
        return self.pacing.table.changed + self.evaluating.table.changed

    def take_changes(self) -> dict[str, Plain | None]:
        """Return, once, the changed chunks of open numbers by name; None for a chunk that is now empty."""
        return {**self.pacing.table.take_changes(), **self.evaluating.table.take_changes()}

    def restore(self, state: Plain, chunks: Mapping[str, Plain]) -> None:
        """Take the state that `snapshot` returned, and the newest of every chunk.

        For a run that continues after its end, early stopping counts from 0.
        """
        evaluating = {name: chunk for name, chunk in chunks.items() if is_eval(name)}
        training = [chunk for name, chunk in chunks.items() if name not in evaluating]
        for stream, count in self.pacing.restore(state["pacing"], training).items():
            # The recipe has lost the workflow or one of its policies; its open tasks are no longer waited for.
            log.warning("tasks.forgotten", workflow=stream, numbers=count)
        self.evaluating.restore(state.get("evaluating", ()), evaluating.values(), self.pacing.policies_of)
        self.evaluations.restore(state["evaluations"])
        self._next_evaluation.update(state["next_evaluation"])
        for workflow, watch in self.watches.items():
            if workflow in state["sources"]:
                self.sources[workflow].restore(state["sources"][workflow])
                watch.restore(state["watches"][workflow])
        for stream, begins in state.get("revisions", {}).items():
            self._begins[stream] = [(revision, first) for revision, first in begins]
        self._begin_revision()
        self.early_stop.restore(state.get("early_stop", []))
        self.ended = self.revision.ended
        if state["ended"] and not self.ended:
            self.early_stop.clear()
            self.pacing.closed.clear()
            for watch in self.watches.values():
                watch.clear()
