"""Turns a started task into acknowledged records, one per policy, whatever fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from headrace.envs.contract import Episode
from headrace.envs.isolation import IsolatedEnvironment
from headrace.envs.registry import build_to_score, load_workflow
from headrace.infra.backoff import Backoff
from headrace.infra.errors import UsageError
from headrace.infra.failpoints import reach
from headrace.infra.kafka.clients import Outgoing
from headrace.infra.kafka.dead_letters import build_dead_letter
from headrace.infra.recipe.plug_in_sources import find_loaded_hashes, rollout_plug_ins
from headrace.infra.recipe.settings import Recipe
from headrace.infra.recipe.table import Named
from headrace.infra.run.run import STORE_NAME, Run, refuse_replaced
from headrace.infra.stopwatch import Stopwatch
from headrace.infra.store.object_store import StoreError
from headrace.producers.rollout.failure_brake import FailureBrake
from headrace.producers.rollout.group_records import build_outgoing, count_generated_tokens, encode_claim, encode_group
from headrace.producers.rollout.intake.started_task import StartedTask
from headrace.producers.rollout.pauses import DELIVERY, STORE, Pauses
from headrace.producers.rollout.play.engine_room import wait_for_turn
from headrace.producers.rollout.play.episodes import (
    RolloutContext,
    WorkflowSpec,
    build_unplayed_groups,
    play_group,
)
from headrace.producers.rollout.play.failures import FailureLog, build_failure
from headrace.producers.rollout.record_producer import RecordProducer
from headrace.producers.rollout.run_follower import RunFollower
from headrace.producers.rollout.version_holds import VersionHolds
from headrace.producers.rollout.worker_status import WorkCounts
from headrace.schemas.records import ClaimCheck, Failure, Sampling, Task, TrajectoryGroup

Groups = dict[str, TrajectoryGroup]
"""A task's groups by policy."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0


def build_workflow_spec(recipe: Recipe, workflow: str, built: IsolatedEnvironment | None = None) -> WorkflowSpec:
    """Return how a revision of the recipe plays tasks. Raises UsageError if it cannot be built on this machine.

    Args:
        recipe: The revision.
        workflow: Name of the workflow.
        built: Its environment, if another revision has already built the same one.
    """
    wanted, rollout, evaluate = recipe.workflows[workflow], recipe.rollout, recipe.evaluate
    try:
        environment = built or _isolate_environment(recipe, workflow)
        play = load_workflow(wanted.workflow.use, wanted.workflow.settings)
    except ValueError as error:
        raise UsageError(f"workflow {workflow!r} of the recipe cannot run on this machine: {error}") from error
    return WorkflowSpec(
        workflow=play,
        environment=environment,
        roles=wanted.policies,
        training=Sampling(
            rollout.temperature, rollout.top_p, rollout.top_k, rollout.min_p, max_tokens=rollout.max_tokens
        ),
        evaluation=Sampling(evaluate.temperature, evaluate.top_p, max_tokens=rollout.max_tokens),
        episode_limit_s=rollout.episode_limit_s,
        inline_limit_bytes=rollout.inline_limit_bytes,
    )


def _list_environment_settings(recipe: Recipe, workflow: str) -> tuple[Named, int, bool, float, int]:
    """Return all settings of a workflow's environment: revisions with equal settings share the environment."""
    rollout = recipe.rollout
    limit_s = min(rollout.score_limit_s, rollout.episode_limit_s)
    return recipe.workflows[workflow].env, recipe.seed, recipe.feed.raise_tier, limit_s, rollout.score_threads


def _isolate_environment(recipe: Recipe, workflow: str) -> IsolatedEnvironment:
    """Build a workflow's environment here, and begin to build it in child processes, which do the work."""
    env, seed, raise_tier, limit_s, scores = _list_environment_settings(recipe, workflow)
    build = partial(build_to_score, env.use, seed, env.settings, all_tiers=raise_tier)
    sources = find_loaded_hashes(rollout_plug_ins(recipe, workflow))
    isolated = IsolatedEnvironment(build(), partial(build, sources=sources), limit_s, scores, wait_for_turn)
    isolated.pool.start()
    return isolated


@dataclass(slots=True)
class Concluder:
    """Plays started tasks and delivers their groups. Only the event loop may use it."""

    run: Run
    workflow: str
    context: RolloutContext
    follower: RunFollower
    producer: RecordProducer
    partitions: Mapping[str, int]
    """Number of partitions of each topic to which groups are written."""
    specs: dict[int, WorkflowSpec]
    """How tasks are played, by revision; a missing revision is added when a task needs it."""
    holds: VersionHolds
    tally: WorkCounts
    watch: Stopwatch
    pauses: Pauses
    failures: FailureLog = field(default_factory=FailureLog)
    brake: FailureBrake = field(default_factory=FailureBrake)
    building: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the spec of another revision is built."""
    delivering: int = 0
    """Number of played tasks whose records are not acknowledged."""
    waiting: int = 0
    """Number of evaluations that wait for their versions, and then for slots."""

    async def play_and_deliver(
        self, started: StartedTask, ending: asyncio.Event, done: Callable[[StartedTask], object]
    ) -> None:
        """Conclude a task.

        1. play: one group per policy, whatever fails.
        2. deliver: every record is acknowledged.
        3. done: its offset may be committed.

        Raises EngineError when the engine is dead, and MustRestart when this worker, not the task, belongs to another
        run.
        """
        task = started.task
        if task is None:
            await self._reject(started)
            done(started)
            return
        try:
            reach("rollout.started")
            if started.verdict == "play":
                groups = await self._play(started, task, ending)
            else:
                groups = self._build_unplayed_groups(task, Failure(0, *started.refusal))
            if task.purpose != "eval":
                self.brake.note_group(failed=all(group.reason == "failed" for group in groups.values()))
            groups = self.failures.log_and_strip(task, groups)
            reach("rollout.played")  # 1
        finally:
            started.release_slots()
        self.delivering += 1
        try:
            if started.verdict == "poison":
                await self._send([self._build_poison_dead_letter(started)])
            await self._deliver(task, groups, self._recipe_of(task).rollout.inline_limit_bytes)  # 2
            reach("rollout.delivered")
        finally:
            self.delivering -= 1
        done(started)  # 3

    async def _play(self, started: StartedTask, task: Task, ending: asyncio.Event) -> Groups:
        """Play a task and return its groups by policy; any error becomes the failure of its episodes.

        Otherwise the error would end the worker, and the restarted worker would play the same task, until it counts as
        poison. Raises EngineError when the engine is dead.
        """
        try:
            spec = await self._spec_of(task)
            wanted = {policy: version for policy, version in task.versions.items() if policy in spec.policies}
            note_end = partial(self._note_episode_end, started)
            async with self._hold_versions(wanted, started):
                at_once = started.reservation.size if started.reservation is not None else task.n_asked
                groups = await play_group(task, spec, self.context, ending, note_end, at_once)
        except Exception as error:  # noqa: BLE001 - any error belongs to the task alone while the engine lives
            groups = self._build_unplayed_groups(task, build_failure(0, error))
        if all(group.reason == "failed" for group in groups.values()):
            await self._check_engine()
        return groups

    @asynccontextmanager
    async def _hold_versions(self, wanted: Mapping[str, int], started: StartedTask) -> AsyncIterator[None]:
        """Hold exact versions during the block. Until the engine has them, other tasks may have the slots."""
        reservation = started.reservation if wanted else None
        async with AsyncExitStack() as stack:
            self.waiting += 1
            try:
                if reservation is not None:
                    reservation.lend()
                await stack.enter_async_context(self.holds.hold(wanted))
                if reservation is not None:
                    await reservation.take_back()
            finally:
                self.waiting -= 1
            yield

    async def _reject(self, started: StartedTask) -> None:
        """Write the dead letter of a message that holds no task of this run."""
        if started.refusal.reason == "other_run":
            await asyncio.to_thread(refuse_replaced, self.run)
        dead = build_dead_letter(self.run.topics, self.run.run_id, "rollout", started.message, started.refusal)
        await self._send([dead])

    def _note_episode_end(self, started: StartedTask, ended: Episode | Failure | None, tokens: int) -> None:
        """Count an episode that has ended, and free its slot."""
        self.tally.count_episode(ended, tokens)
        if started.reservation is not None:
            started.reservation.note_ended()

    def _build_poison_dead_letter(self, started: StartedTask) -> Outgoing:
        """Return the dead letter of a poisoned task, with the task's bytes for people to look at.

        It has no headers, so it names no number and concludes nothing: the task's groups conclude the number.
        """
        unnamed = replace(started.message, headers=[])
        return build_dead_letter(self.run.topics, self.run.run_id, "rollout", unnamed, started.refusal)

    async def _spec_of(self, task: Task) -> WorkflowSpec:
        """Return how a task is played; the event loop goes on while an environment loads.

        Revisions share an environment and its child processes, because one with a port or a GPU can be built only once.
        """
        if task.revision not in self.specs:
            async with self.building:
                if task.revision not in self.specs:
                    recipes, workflow = self.follower.recipes, self.workflow
                    recipe = recipes[task.revision]
                    settings = _list_environment_settings(recipe, workflow)
                    same = (r for r in self.specs if _list_environment_settings(recipes[r], workflow) == settings)
                    built: Any = next((self.specs[revision].environment for revision in same), None)
                    spec = await asyncio.to_thread(build_workflow_spec, recipe, workflow, built)
                    self.specs[task.revision] = spec
        return self.specs[task.revision]

    def _recipe_of(self, task: Task) -> Recipe:
        return self.follower.recipes.get(task.revision, self.follower.recipe)

    def _build_unplayed_groups(self, task: Task, failure: Failure) -> Groups:
        recipe = self._recipe_of(task)
        workflow = recipe.workflows[self.workflow]
        return build_unplayed_groups(task, recipe.policies_of(self.workflow), workflow.env.use, self.context, failure)

    async def _check_engine(self) -> None:
        """Raise EngineError if the engine cannot generate at all: then tasks are not at fault and do not conclude."""
        for policy in self.context.tokenizers:
            await self.context.room.enter()
            try:
                await self.context.engine.generate(policy, [0], Sampling(max_tokens=1), seed=0)
            finally:
                self.context.room.leave()

    async def _deliver(self, task: Task, groups: Groups, inline_limit_bytes: int) -> None:
        records: list[Outgoing] = []
        for group in groups.values():
            with self.watch.measure("encode"):
                sent, value = encode_group(group)
            if sent is not group:  # the schema refuses a part of the workflow's result
                new = tuple(failure for failure in sent.failures if failure not in group.failures)
                self.failures.log_and_strip(task, {group.policy: replace(sent, failures=new)})
            if len(value) > inline_limit_bytes:
                value = encode_claim(sent, await self._store_group(value))
            records.append(build_outgoing(self.run.topics, sent, value, self.partitions))
            self.tally.delivered_tokens += count_generated_tokens(sent)
        await self._send(records)
        self.tally.groups_done += len(records)

    async def _send(self, records: list[Outgoing]) -> None:
        """Send records until all are acknowledged.

        A record that Kafka refuses is sent again: a topic's limit or a missing permission is not the task's fault, so
        its number of starts must not grow. Meanwhile the worker's status says which record is refused and why.
        """
        pause = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while refused := await self.producer.send(records):
            record, why = refused[0]
            self.pauses.begin(
                DELIVERY,
                f"Kafka refuses a record of {len(record.value)} bytes ({why}). The worker sends it again until Kafka "
                f"accepts it: correct the settings of topic {record.topic}, or the worker's permissions",
            )
            await asyncio.sleep(pause.next_s())
            records = [record for record, _ in refused]
        self.pauses.end(DELIVERY)

    async def _store_group(self, value: bytes) -> ClaimCheck:
        """Store a large group; wait while the store is unreachable or refuses."""
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            try:
                stored = await asyncio.to_thread(self.run.store.put, value, "groups")
            except StoreError as error:
                self.pauses.begin(STORE, error)
                await asyncio.sleep(backoff.next_s())
            else:
                self.pauses.end(STORE)
                return ClaimCheck(STORE_NAME, stored.key, stored.sha256, stored.size_bytes)
