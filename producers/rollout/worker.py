"""The rollout worker, `headrace rollout`: turns tasks into trajectory groups with the newest weights.

A worker has five threads. The event loop, in the main thread, plays episodes; the task intake owns the consumer; the
follower reads weights and recipe; the producer's thread handles acknowledgements; the engine computes. No thread
changes another's state: tasks come by `call_soon_threadsafe`, acknowledged tasks go by a queue.

From here to generation: `main`, `WorkerRuntime.supervise` (runtime.py), `RolloutWorker.serve_tasks`,
`Concluder.play_and_deliver` (conclusions.py), `play_group` and `play_episode` (episodes.py), the workflow,
`EngineActor.generate` (actor.py).
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from contextlib import closing
from functools import partial

import structlog

from headrace.infra.environment import temporary_folder
from headrace.infra.errors import UsageError
from headrace.infra.kafka.run_address import parse_run
from headrace.infra.kafka.topic_admin import fetch_session_timeout_s, require_partition_count
from headrace.infra.log import configure_logging
from headrace.infra.process.signals import begin_attempts, stop_on_signals
from headrace.infra.recipe.kinds import require_playable
from headrace.infra.recipe.plug_in_sources import check_sources, rollout_plug_ins
from headrace.infra.recipe.settings import EPISODES_PER_REQUEST, Recipe
from headrace.infra.run.region import join_in_region
from headrace.infra.run.run import Run
from headrace.producers.engines.contract import capabilities_of
from headrace.producers.engines.owned_folder import OwnedFolder
from headrace.producers.engines.registry import import_engine
from headrace.producers.rollout.admission import Admission
from headrace.producers.rollout.conclusions import Concluder, build_workflow_spec
from headrace.producers.rollout.group_records import choose_topic
from headrace.producers.rollout.intake.started_task import StartedTask
from headrace.producers.rollout.intake.task_intake import Subscription, TaskIntake
from headrace.producers.rollout.pauses import KAFKA
from headrace.producers.rollout.play.episodes import RolloutContext, WorkflowSpec
from headrace.producers.rollout.runtime import Options, WorkerRuntime
from headrace.producers.rollout.startup import WorkerStartup
from headrace.producers.rollout.version_holds import HELD_VERSIONS, VersionHolds
from headrace.producers.rollout.watchdog import Watchdog
from headrace.producers.rollout.weight_loader import WeightLoader
from headrace.schemas.topics import check_name, stream_of

log = structlog.get_logger()

FILES_PREFIX = "headrace-files-"
"""Beginning of the name of the temporary folder with config and tokenizer of each policy."""
WORKER_TURN_S = 0.1
DRAIN_S = 2.0
"""Seconds that running episodes get to end when the worker is stopped."""


class RolloutWorker:
    """Plays the tasks of a workflow; its `runtime` has the parts that run beside the episodes."""

    def __init__(self, run: Run, options: Options, spec: WorkflowSpec) -> None:
        self.run, self.options = run, options
        self.runtime = WorkerRuntime(run, options, spec.policies)
        self._spec = spec

    async def serve_tasks(self, stop: threading.Event) -> None:
        """Prepare, then conclude every task that the intake starts, until `stop` is set."""
        runtime, loop = self.runtime, asyncio.get_running_loop()
        runtime.phase = "waiting"
        session_s = await asyncio.to_thread(fetch_session_timeout_s, self.run.connection)
        with closing(OwnedFolder(temporary_folder(), FILES_PREFIX)) as folder:
            prepared = await self._build_startup().prepare(folder.path, stop)
        if prepared is None:
            return
        concluder = self._build_concluder(*prepared)

        def begin(started: StartedTask) -> None:
            is_training = started.task is None or started.task.purpose != "eval"
            ending = runtime.run_end.ending if is_training else asyncio.Event()
            runtime.tasks.begin(started.partition_id, concluder.play_and_deliver(started, ending, intake.report_done))

        engine = concluder.context.engine
        intake = runtime.intake = TaskIntake(
            self._subscribe(is_evaluating=capabilities_of(engine).held_versions > 0),
            Admission(self.run, engine, runtime.follower, concluder, runtime.slots),
            lambda started: loop.call_soon_threadsafe(begin, started),
            lambda partition_ids: loop.call_soon_threadsafe(runtime.tasks.cancel, partition_ids),
            runtime.pauses,
        )
        await self._play_tasks(intake, session_s, stop)

    async def _play_tasks(self, intake: TaskIntake, session_s: float, stop: threading.Event) -> None:
        """Accept tasks until `stop` is set, then drain: cancel open tasks and take back their starts."""
        runtime, in_good_order = self.runtime, False
        runtime.phase = "rolling"
        intake.start()
        runtime.run_end.begin(time.monotonic(), session_s)
        try:
            while not stop.is_set():
                await asyncio.sleep(WORKER_TURN_S)
                has_ended = bool(runtime.follower.ended)
                is_busy = bool(runtime.tasks) or runtime.pauses.has(KAFKA)  # no task comes while Kafka is away
                if runtime.run_end.is_over(time.monotonic(), has_ended=has_ended, is_busy=is_busy):
                    log.info("worker.finished", why=runtime.follower.ended)
                    stop.set()
            runtime.phase, in_good_order = "draining", True
            intake.drain()
            await runtime.tasks.drain(DRAIN_S)
        finally:
            await runtime.tasks.cancel_all()
            await runtime.flush()
            await runtime.call_apart(partial(intake.stop, in_good_order=in_good_order))

    def _build_startup(self) -> WorkerStartup:
        return WorkerStartup(
            run=self.run,
            policies=self._spec.policies,
            rollout=self.run.recipe.rollout_of(self.options.kind),
            room=self.runtime.slots.room,
            worker=self.options.name,
            region=self.options.region,
            follower=self.runtime.follower,
            pauses=self.runtime.pauses,
            episodes=self.runtime.episodes,
            on_loader=self.runtime.set_loader,
            on_step=self.runtime.note_step,
        )

    def _build_concluder(self, context: RolloutContext, loader: WeightLoader) -> Concluder:
        runtime = self.runtime
        return Concluder(
            run=self.run,
            workflow=self.options.workflow,
            context=context,
            follower=runtime.follower,
            producer=runtime.producer,
            partitions=fetch_group_partitions(self.run, self._spec.policies),
            specs={self.run.revision: self._spec},
            holds=VersionHolds(
                loader.hold,
                loader.release,
                runtime.threads.holds,
                min(capabilities_of(context.engine).held_versions, HELD_VERSIONS),
            ),
            tally=runtime.tally,
            watch=runtime.watch,
            pauses=runtime.pauses,
        )

    def _subscribe(self, *, is_evaluating: bool) -> Subscription:
        """Return what tasks the worker reads. Raises UsageError if it may only evaluate, and its engine cannot."""
        topics = self.options.list_task_topics(self.run.topics, is_evaluating=is_evaluating)
        if not topics:
            raise UsageError(
                f"workers of kind {self.options.kind} play only evaluations of workflow {self.options.workflow}, and "
                "this worker's engine cannot hold the weights of an older version: give another kind or engine"
            )
        return Subscription(
            self.run.connection,
            f"{self.options.name}.tasks",
            self.run.topics.rollout_group(self.options.stream),
            topics,
            self.run.run_id,
        )


# ------------------------------------------------------------------------------------------------------------- start up


def fetch_group_partitions(run: Run, policies: tuple[str, ...]) -> dict[str, int]:
    """Return the number of partitions of each topic for groups. Raises TopicDiffers if the run has another number."""
    topics = [choose_topic(run.topics, policy, purpose) for policy in policies for purpose in ("train", "eval")]
    for topic in topics:
        require_partition_count(run.connection, topic, run.partitions)
    return dict.fromkeys(topics, run.partitions)


def choose_workflow(recipe: Recipe, asked: str | None) -> str:
    """Return the requested or only workflow. Raises UsageError, which lists the workflows."""
    names = ", ".join(recipe.workflows)
    if asked is None and len(recipe.workflows) > 1:
        raise UsageError(f"the recipe has several workflows; name one with --workflow: {names}")
    if asked is not None and asked not in recipe.workflows:
        raise UsageError(f"the recipe has no workflow {asked!r}; it has {names}")
    return asked or next(iter(recipe.workflows))


def build(
    run: Run, workflow: str | None, name: str, region: str, concurrency: int | None, kind: str = ""
) -> RolloutWorker:
    """Build a worker without starting it. Raises UsageError if it cannot play the workflow, or may not."""
    chosen = choose_workflow(run.recipe, workflow)
    if concurrency is not None and concurrency < 1:
        raise UsageError(f"--concurrency is {concurrency}; it must be at least 1")
    rollout, streams_region = run.recipe.rollout_of(kind), region if region in run.recipe.regions else ""
    playable = require_playable(run.recipe, chosen, kind, streams_region)
    requests = concurrency or rollout.concurrency
    stream, episodes = stream_of(chosen, streams_region), rollout.episodes or EPISODES_PER_REQUEST * requests
    options = Options(chosen, name, region, stream, requests, episodes, kind, playable)
    check_sources(run.plug_ins, rollout_plug_ins(run.recipe, chosen, kind))
    return RolloutWorker(run, options, build_workflow_spec(run.recipe, chosen))


def main(
    run: str, workflow: str | None, name: str | None, region: str, concurrency: int | None, kind: str = ""
) -> None:
    """Run a worker until a signal: settings, logging, build, run."""
    address = parse_run(run)
    if region:
        check_name("region", region)
    worker = name or f"{socket.gethostname()}-{os.getpid()}"
    configure_logging("rollout", worker=worker)
    log.info("worker.starting", run=str(address))

    stop = stop_on_signals()
    for attempt in begin_attempts(stop):
        with attempt:
            joined = join_in_region(address, region, stop)
            engine = joined.recipe.rollout_of(kind).engine.use
            threading.Thread(target=import_engine, args=(engine,), daemon=True).start()
            playing = build(joined, workflow, worker, region, concurrency, kind)
            with Watchdog(playing.runtime.report_block) as watchdog:
                asyncio.run(playing.runtime.supervise(partial(playing.serve_tasks, stop), watchdog))
