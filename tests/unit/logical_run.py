"""A run without servers or seconds: feeder, curator and window as they are, a scripted policy, time told in versions.

A version is made whenever its time has come and a batch is there. What takes seconds in the recipe takes versions here.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter

from made_groups import sequence

from headrace.consumers.curate.context import CuratorContext
from headrace.consumers.curate.curator import CuratorPartition
from headrace.envs.registry import load_environment
from headrace.envs.scripted import read_question
from headrace.infra.kafka.clients import Message
from headrace.infra.recipe.settings import Recipe
from headrace.ops.discards import GroupFates
from headrace.producers.engines.scripted import ScriptedSettings
from headrace.producers.feed.feed_state import FeedState
from headrace.producers.feed.selectors.registry import load_selectors
from headrace.producers.feed.task_source import TaskSource
from headrace.schemas import codec
from headrace.schemas.headers import Stamp
from headrace.schemas.ids import UseId, derive_seed
from headrace.schemas.records import (
    BatchTrained,
    ClaimCheck,
    CuratedGroup,
    Eviction,
    GroupUse,
    Outcome,
    RecipeRevision,
    Task,
    Trajectory,
    TrajectoryGroup,
    WeightsPublished,
)
from headrace.trainers.batches import window
from headrace.trainers.batches.window import Waiting, Window

MOMENTS = 8
"""Of a version: so finely is told when a group is done."""
POLICY = "solver"


class LogicalRun:
    """One policy, one workflow; `version_s` is how long a version takes."""

    def __init__(self, recipe: Recipe, version_s: float) -> None:
        [workflow] = recipe.workflows
        trainer = recipe.trainer_of(POLICY)
        self.recipe, self.ledger, self.fates = recipe, GroupFates(), Counter[tuple[str, str]]()
        """Of first uses: (what became of it, tier) to the number of groups."""
        self.uses = Counter[int]()
        """Of what was trained: which use of its group it was."""
        revision = RecipeRevision(run_id="run-1", revision=0)
        env, selector = recipe.workflows[workflow].env, load_selectors(recipe.feed.selector, recipe.seed)
        source = TaskSource(workflow, lambda _: load_environment(env.use, recipe.seed, env.settings), selector)
        self.feed = FeedState(recipe, revision, {workflow: source})
        self._curators = [self._curator(partition) for partition in range(recipe.kafka.partitions)]
        self._window = Window[None]((trainer.max_staleness + 1) * trainer.groups_per_batch, trainer.order, recipe.seed)
        self._batch, self._steps = trainer.groups_per_batch, trainer.steps
        self._script, self._version_s = ScriptedSettings(**recipe.rollout.engine.settings), version_s
        self._playing: list[tuple[int, int, int, Task]] = []
        """(moment at which it is done, number, version at which it began, task)"""
        self._moment = self._arrivals = 0
        self._tiers: dict[int, str] = {}
        self._publish(0)

    def _curator(self, partition: int) -> CuratorPartition:
        def no_claim(claim: ClaimCheck) -> bytes:
            raise AssertionError(claim)

        topics = self.recipe.topics
        context = CuratorContext("run-1", POLICY, topics, lambda _: self.recipe, no_claim)
        return CuratorPartition(context, (topics.trajectories(POLICY), partition), self.recipe.kafka.partitions)

    @property
    def version(self) -> int:
        return self.feed.pacing.versions[POLICY]

    def play(self) -> LogicalRun:
        """Play all versions."""
        while self.version < self._steps:
            self._begin()
            self._end()
            self._moment += 1
            assert self._moment < 4 * MOMENTS * self._steps, "no batch comes together"
            if self._moment % MOMENTS == 0:
                self._train()
        return self

    def _begin(self) -> None:
        for planned in self.feed.plan():
            task = planned.task
            if task.purpose == "train":
                self._tiers[task.number] = task.tier
                takes = self._length(task) * self._script.seconds_per_token / self._version_s
                heapq.heappush(self._playing, (self._moment + round(takes * MOMENTS), task.number, self.version, task))

    def _length(self, task: Task) -> int:
        return self._script.tokens[_level(task)]

    def _end(self) -> None:
        while self._playing and self._playing[0][0] <= self._moment:
            _, number, began, task = heapq.heappop(self._playing)
            self._curate(number, self._played(task, began))

    def _played(self, task: Task, began: int) -> TrajectoryGroup:
        chance, length = self._script.chance(_level(task), self.version), self._length(task)
        trajectories = tuple(
            Trajectory(
                f"{task.stream}:{task.number}:{sample}",
                float(random.Random(derive_seed(task.seed, sample)).random() < chance),  # noqa: S311 - no secret
                {},
                (sequence(length, began),),
            )
            for sample in range(task.n_asked)
        )
        return TrajectoryGroup(
            run_id="run-1",
            stream=task.stream,
            number=task.number,
            policy=POLICY,
            task_id=task.task_id,
            tier=task.tier,
            n_asked=task.n_asked,
            trajectories=trajectories,
            head_version=self.version,
        )

    def _curate(self, number: int, group: TrajectoryGroup) -> None:
        stamp = Stamp("run-1", group.stream, number, policy=POLICY, head_version=group.head_version)
        partition = number % len(self._curators)
        topic = self.recipe.topics.trajectories(POLICY)
        message = Message(topic, partition, 0, stamp.key, codec.encode(group), stamp.to_headers())
        for outgoing in self._curators[partition].handle(message):
            record = codec.decode_any(outgoing.value)
            if isinstance(record, CuratedGroup):
                self._wait(record, partition)
            else:
                assert isinstance(record, Outcome), record
                self.ledger.outcome(record)
                self.feed.fold_outcome(record)
                if record.verdict == "dropped" and not record.use:
                    self.fates[record.reason, record.tier] += 1

    def _wait(self, curated: CuratedGroup, partition: int) -> None:
        self._arrivals += 1
        key = UseId.of(curated)
        entry = Waiting(key, curated.min_version, curated.deadline_version, self._arrivals, partition, 0, None)
        self._evict(self._window.add(entry))

    def _evict(self, gone: list[window.WindowEviction[None]]) -> None:
        for one in gone:
            stream, number, use = one.entry.use_id
            told = Outcome(
                run_id="run-1", stream=stream, number=number, use=use, policy=POLICY, verdict=one.verdict,
                component="train",
            )  # fmt: skip
            self.feed.fold_outcome(told)
            self.ledger.batch(BatchTrained(evictions=(Eviction(GroupUse(*one.entry.use_id), one.verdict),)))
            if not use:
                self.fates[one.verdict, self._tiers[number]] += 1

    def _train(self) -> None:
        self._evict(self._window.expire(self.version))
        taken = self._window.pop(self._batch)
        if taken is None:
            return
        batch = BatchTrained(
            run_id="run-1", policy=POLICY, version=self.version + 1,
            groups=tuple(GroupUse(*entry.use_id) for entry in taken),
        )  # fmt: skip
        for entry in taken:
            self.uses[entry.use_id[2]] += 1
            if not entry.is_replay:
                self.fates["trained", self._tiers[entry.use_id[1]]] += 1
        self.ledger.batch(batch)
        self.feed.fold_batch(batch)
        self._publish(batch.version)

    def _publish(self, version: int) -> None:
        self.feed.fold_weights(WeightsPublished(run_id="run-1", policy=POLICY, version=version))


def _level(task: Task) -> int:
    asked = read_question(task.task_id)
    assert asked is not None
    return asked.level
