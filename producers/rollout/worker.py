"""The rollout worker: tasks in, trajectory groups out, following the weights (`headrace rollout`).

Five threads meet here. The event loop, in the main thread, plays episodes; the task intake owns the consumer; the
follower reads weights and recipe; the producer's thread takes acknowledgements; the engine computes. None calls into
another's state: tasks come by `call_soon_threadsafe`, acknowledged tasks go by a queue, the rest is read as it is.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import structlog

from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import fetch_partitions, parse_run
from headrace.infra.kafka.deleted_topics import TopicWatch
from headrace.infra.log import configure_logging
from headrace.infra.process.signals import JOIN_PATIENCE_S, begin_attempts, stop_on_signals
from headrace.infra.recipe.plug_in_sources import check_sources, rollout_plug_ins
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.revisions import join_to_write
from headrace.infra.run.run import Run
from headrace.infra.stopwatch import Stopwatch
from headrace.producers.engines.contract import Engine
from headrace.producers.engines.registry import import_engine
from headrace.producers.rollout.admission import Admission
from headrace.producers.rollout.conclusions import Concluder, build_workflow_spec
from headrace.producers.rollout.episodes import RolloutContext, WorkflowSpec
from headrace.producers.rollout.follower import WeightFollower
from headrace.producers.rollout.group_records import choose_topic
from headrace.producers.rollout.open_tasks import OpenTasks
from headrace.producers.rollout.pauses import Pauses
from headrace.producers.rollout.record_producer import RecordProducer
from headrace.producers.rollout.run_end import RunEnd
from headrace.producers.rollout.slots import Slots
from headrace.producers.rollout.started_task import StartedTask
from headrace.producers.rollout.startup import WorkerStartup
from headrace.producers.rollout.task_intake import Subscription, TaskIntake
from headrace.producers.rollout.threads import EpisodeThreads
from headrace.producers.rollout.version_holds import VersionHolds
from headrace.producers.rollout.watchdog import EXIT_CODE, StallWatch, Watchdog
from headrace.producers.rollout.worker_status import Reporter, State, StatusPosts, WorkCounts, sum_up
from headrace.schemas.topics import check_name, eval_stream

log = structlog.get_logger()

TURN_S = 0.1
DRAIN_S = 2.0
"""Running episodes get so long when the worker is stopped."""
FLUSH_S = 1.5
LEFT_S = 1.0
"""Episodes that were cancelled get so long to end."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a worker is given beside its run."""

    workflow: str
    name: str
    region: str
    concurrency: int

    @property
    def stream(self) -> str:
        """The stream of training tasks that it plays."""
        return f"{self.workflow}.{self.region}" if self.region else self.workflow


class RolloutWorker:
    """One worker from its start to its end."""

    def __init__(self, run: Run, options: Options, spec: WorkflowSpec) -> None:
        self.run, self.options = run, options
        self.tally, self.watch, self.pauses = WorkCounts(), Stopwatch(), Pauses()
        self.slots, self.tasks = Slots(options.concurrency), OpenTasks()
        self.follower = WeightFollower(run, spec.policies, f"{options.name}.follow", self.pauses)
        self.producer = RecordProducer(run.connection, f"{options.name}.groups", self.watch)
        self._spec = spec
        self._phase: Literal["starting", "waiting", "rolling", "draining", "stopped"] = "starting"
        self._doing = ""
        """Step of the startup, before the first task."""
        self._engine: Engine | None = None
        self._intake: TaskIntake | None = None
        self._run_end, self._stall_watch = RunEnd(time.monotonic()), StallWatch()
        reporter = Reporter(run.run_id, options.name, options.workflow, options.region)
        self._status = StatusPosts(reporter, self.producer, run.topics.workers, self.pauses)
        self._plug_ins = run.plug_ins
        """Sources that those which are loaded were compared with."""
        self._threads = EpisodeThreads()
        self._leaving = ThreadPoolExecutor(2, thread_name_prefix="leaving")
        """Episodes that block in theirs cannot keep the worker from leaving."""

    async def play(self, stop: threading.Event, watchdog: Watchdog) -> None:
        """Work until `stop` is set. Raises what cannot be waited out."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(self._threads)
        self.follower.start()
        topics = TopicWatch(self.run.connection, self._list_topics())
        topics.start()
        turns, work = asyncio.create_task(self._take_turns(watchdog, topics)), asyncio.create_task(self._work(stop))
        ends: list[BaseException | None] = []
        await asyncio.wait({turns, work}, return_when=asyncio.FIRST_COMPLETED)
        for task in (work, turns):  # the beat goes on while the work is being left
            task.cancel()
            ends += await asyncio.gather(task, return_exceptions=True)
        topics.stop()
        self._phase = "stopped"
        self._post_status()
        await loop.run_in_executor(self._leaving, self.producer.flush, FLUSH_S)
        self.follower.stop()
        if self._engine is not None:
            await loop.run_in_executor(self._leaving, self._engine.close)
        self.producer.close()
        log.info("worker.stopped", groups=self.tally.groups_done, episodes=self.tally.episodes_done)
        errors = [end for end in ends if isinstance(end, Exception)]
        await self._end_what_is_left(errors)
        for error in errors:
            raise error

    async def _end_what_is_left(self, errors: list[Exception]) -> None:
        """End the process here when the interpreter would wait for ever, for an episode that cannot be cancelled."""
        if self._intake is None:  # no episode ever began
            return
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=LEFT_S)
        if self._stall_watch.found or self._threads.busy or any(not task.done() for task in left):
            log.warning("worker.cut_off", left=len(left), errors=[str(error) for error in errors])
            sys.stderr.flush()
            os._exit(EXIT_CODE if errors else 0)

    # -------------------------------------------------------------------------------------------------------- the work

    async def _work(self, stop: threading.Event) -> None:
        """Get ready, and conclude every task that the intake starts, until `stop` is set."""
        self._phase = "waiting"
        with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
            context = await self._build_startup().prepare(Path(folder), stop)
        if context is None:
            return
        concluder, loop = self._build_concluder(context), asyncio.get_running_loop()

        def begin(started: StartedTask) -> None:
            is_training = started.task is None or started.task.purpose != "eval"
            ending = self._run_end.ending if is_training else asyncio.Event()
            self.tasks.begin(started.place, concluder.conclude(started, ending, intake.report_done))

        intake = self._intake = TaskIntake(
            self._subscribe(),
            Admission(self.follower, concluder, self.slots),
            lambda started: loop.call_soon_threadsafe(begin, started),
            lambda places: loop.call_soon_threadsafe(self.tasks.cancel, places),
            self.pauses,
        )
        await self._roll(intake, stop)

    async def _roll(self, intake: TaskIntake, stop: threading.Event) -> None:
        """Let tasks come until `stop` is set, then drain: what is still open is cancelled, and its start taken back."""
        self._phase, in_good_order = "rolling", False
        intake.start()
        try:
            while not stop.is_set():
                await asyncio.sleep(TURN_S)
                has_ended = bool(self.follower.ended)
                if self._run_end.is_over(time.monotonic(), has_ended=has_ended, is_busy=bool(self.tasks)):
                    log.info("worker.finished", why=self.follower.ended)
                    stop.set()
            self._phase, in_good_order = "draining", True
            intake.drain()
            await self.tasks.drain(DRAIN_S)
        finally:
            await self.tasks.cancel_all()
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._leaving, self.producer.flush, FLUSH_S)
            await loop.run_in_executor(self._leaving, partial(intake.stop, in_good_order=in_good_order))

    def _build_startup(self) -> WorkerStartup:
        def on_engine(engine: Engine) -> None:
            self._engine = engine

        def on_step(what: str) -> None:
            self._doing = what

        return WorkerStartup(
            run=self.run,
            policies=self._spec.policies,
            rollout=self.run.recipe.rollout,
            concurrency=self.options.concurrency,
            worker=self.options.name,
            region=self.options.region,
            follower=self.follower,
            pauses=self.pauses,
            on_engine=on_engine,
            on_step=on_step,
        )

    def _build_concluder(self, context: RolloutContext) -> Concluder:
        return Concluder(
            run=self.run,
            workflow=self.options.workflow,
            context=context,
            follower=self.follower,
            producer=self.producer,
            partitions=fetch_group_partitions(self.run, self._spec.policies),
            specs={self.run.revision: self._spec},
            holds=VersionHolds(self.follower.hold, self.follower.release),
            tally=self.tally,
            watch=self.watch,
            pauses=self.pauses,
        )

    def _subscribe(self) -> Subscription:
        topics, stream = self.run.topics, self.options.stream
        return Subscription(
            self.run.connection,
            f"{self.options.name}.tasks",
            topics.rollout_group(stream),
            (topics.tasks(stream), topics.tasks(eval_stream(stream))),
            self.run.run_id,
        )

    # ------------------------------------------------------------------------------------------------------- the turns

    def _list_topics(self) -> Iterator[str]:
        """Yield what the worker reads and writes."""
        names = self.run.topics
        yield from (names.recipe, names.workers, *self._subscribe().topics)
        for policy in self._spec.policies:
            yield from (names.weights(policy), names.trajectories(policy), names.eval_groups(policy))

    async def _take_turns(self, watchdog: Watchdog, topics: TopicWatch) -> None:
        """Beat, notice the end of the run, report; raise what a thread or a task has died of, or a lost topic."""
        loop = asyncio.get_running_loop()
        while True:
            watchdog.beat()
            intake_error = self._intake.error if self._intake is not None else None
            for error in (topics.error, self.follower.error, intake_error, self.tasks.failure):
                if error is not None:
                    raise error
            self._run_end.look(loop.time(), has_ended=bool(self.follower.ended))
            self._watch_plug_ins()
            if self._status.is_due(loop.time()):
                self._watch_stall(loop.time())
                if self._status.is_free():
                    self._post_status()
            await asyncio.sleep(TURN_S)

    def _watch_plug_ins(self) -> None:
        """Raise OtherSource, or SourceChanged, when a revision goes by other plug-ins than those that are loaded."""
        if (sources := self.follower.plug_ins) is not self._plug_ins:
            self._plug_ins = sources
            check_sources(sources, rollout_plug_ins(self.follower.recipe, self.options.workflow))

    def _watch_stall(self, now_s: float) -> None:
        """Raise Stalled when tasks are open, wait for no server, and no token was made for too long.

        New weights that cannot be had are no excuse: they hold no task up, and the next ones may come of these tasks.
        """
        may_wait = not self.tasks or self.pauses.hold_tasks or self._engine is None
        made = (self._engine.stats().generated_tokens if self._engine else 0, self.tally.groups_done)
        silent_s = self._stall_watch.silent_s(now_s, made, may_wait=may_wait)
        self._stall_watch.refuse_stall(silent_s, self.follower.recipe.rollout.episode_limit_s, len(self.tasks))

    def _post_status(self) -> None:
        word, detail = str(self._phase), self._stall_watch.found or self.pauses.detail
        if word == "waiting":
            detail = detail or self._doing
        elif word == "rolling" and self._intake is not None and not self._intake.partitions:
            detail = detail or "waits for partitions"
        behind = self.follower.find_stale(self._engine.versions()) if word == "rolling" and self._engine else ""
        if behind:
            word, detail = "behind", "; ".join(filter(None, (behind, detail)))
        watches = [self.watch] + ([self._intake.watch] if self._intake is not None else [])
        taken = tuple(self.follower.taken.copy().values())
        state = State(word, detail, self.slots.taken, len(self.tasks), sum_up(watches), taken)
        self._status.post(state, self.tally, self._engine)


# ------------------------------------------------------------------------------------------------------------- start up


def fetch_group_partitions(run: Run, policies: tuple[str, ...]) -> dict[str, int]:
    """Return how many partitions each topic has that groups go to."""
    topics = [choose_topic(run.topics, policy, purpose) for policy in policies for purpose in ("train", "eval")]
    return {topic: fetch_partitions(run.connection, topic) for topic in topics}


def choose_workflow(recipe: Recipe, asked: str | None) -> str:
    """Return the workflow to play: the one asked for, or the only one. Raises UsageError that lists them."""
    names = ", ".join(recipe.workflows)
    if asked is None and len(recipe.workflows) > 1:
        raise UsageError(f"the recipe has several workflows; name one with --workflow: {names}")
    if asked is not None and asked not in recipe.workflows:
        raise UsageError(f"the recipe has no workflow {asked!r}; it has {names}")
    return asked or next(iter(recipe.workflows))


def build(run: Run, workflow: str | None, name: str, region: str, concurrency: int | None) -> RolloutWorker:
    """Make a worker for a run, nothing running yet. Raises UsageError for what cannot be played."""
    chosen = choose_workflow(run.recipe, workflow)
    if concurrency is not None and concurrency < 1:
        raise UsageError(f"--concurrency is {concurrency}; it must be at least 1")
    options = Options(chosen, name, region, concurrency or run.recipe.rollout.concurrency)
    check_sources(run.plug_ins, rollout_plug_ins(run.recipe, chosen))
    return RolloutWorker(run, options, build_workflow_spec(run.recipe, chosen))


def main(run: str, workflow: str | None, name: str | None, region: str, concurrency: int | None) -> None:
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
            joined = join_to_write(address, JOIN_PATIENCE_S, stop)
            threading.Thread(target=import_engine, args=(joined.recipe.rollout.engine.use,), daemon=True).start()
            playing = build(joined, workflow, worker, region, concurrency)
            with Watchdog() as watchdog:
                asyncio.run(playing.play(stop, watchdog))
