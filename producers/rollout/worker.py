"""The rollout worker: tasks in, trajectory groups out, following the weights (`headrace rollout`).

Five threads meet here. The event loop, in the main thread, plays episodes; the task intake owns the consumer; the
follower reads weights and recipe; the producer's thread hears acknowledgements; the engine computes. None calls into
another's state: tasks come by `call_soon_threadsafe`, acknowledged tasks go by a queue, the rest is words to be read.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import socket
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import structlog

from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Outgoing, parse_run, partitions_of
from headrace.infra.kafka.topic_reader import Place
from headrace.infra.log import configure_logging
from headrace.infra.process.signals import JOIN_PATIENCE_S, keep_running, stop_on_signals
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.revisions import join_to_write
from headrace.infra.run.run import Run
from headrace.infra.stopwatch import Stopwatch
from headrace.producers.engines.contract import Engine
from headrace.producers.engines.registry import import_engine
from headrace.producers.rollout.conclusions import Concluder, workflow_spec
from headrace.producers.rollout.episodes import WorkflowSpec
from headrace.producers.rollout.follower import WeightFollower
from headrace.producers.rollout.group_records import topic_of
from headrace.producers.rollout.pauses import Pauses
from headrace.producers.rollout.record_producer import RecordProducer
from headrace.producers.rollout.slots import Reservation, Slots
from headrace.producers.rollout.startup import WorkerStartup
from headrace.producers.rollout.task_intake import Member, StartedTask, TaskIntake
from headrace.producers.rollout.threads import EpisodeThreads
from headrace.producers.rollout.version_holds import VersionHolds
from headrace.producers.rollout.watchdog import EXIT_CODE, Stalled, StallWatch, Watchdog, stall_limit_s
from headrace.producers.rollout.worker_status import Reporter, State, Tally, sum_up
from headrace.schemas import codec
from headrace.schemas.records import Task
from headrace.schemas.topics import check_name, eval_stream

log = structlog.get_logger()

TURN_S = 0.1
STATUS_EVERY_S = 1.0
SILENCE_S = 5.0
"""A status that is not acknowledged for so long means that Kafka is away."""
RUN_END_S = 10.0
"""Running training episodes get so long after the end of the run."""
DRAIN_S = 2.0
"""Running episodes get so long when the worker is stopped."""
FLUSH_S = 1.5
LEFT_S = 1.0
"""Episodes that were cancelled get so long to end."""
OVER_AFTER_S = 20.0
"""A run that has ended is over after so long without a task: a killed worker's come to another within 8 s."""
MOST_UNDELIVERED = 64
"""Tasks whose groups wait for the store or the broker; with more, none is started."""


@dataclass(frozen=True, slots=True)
class Options:
    """What one worker is told beside its run."""

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
        self.tally, self.watch, self.pauses = Tally(), Stopwatch(), Pauses()
        self.slots = Slots(options.concurrency)
        self.follower = WeightFollower(run, spec.policies, f"{options.name}.follow", self.pauses)
        self.producer = RecordProducer(run.connection, f"{options.name}.groups", self.watch)
        self._spec = spec
        self._phase: Literal["starting", "waiting", "rolling", "draining", "stopped"] = "starting"
        self._doing = ""
        """What is done before the first task."""
        self._engine: Engine | None = None
        self._intake: TaskIntake | None = None
        self._concluder: Concluder | None = None
        self._open: dict[asyncio.Task[None], Place] = {}
        self._failure: BaseException | None = None
        self._ending, self._ending_at = asyncio.Event(), float("inf")
        self._busy_at = time.monotonic()
        self._reporter = Reporter(run.run_id, options.name, options.workflow, options.region)
        self._report_at = 0.0
        self._reported: Future[None] | None = None
        self._reported_at = 0.0
        self._stall_watch, self._stalled = StallWatch(), ""
        self._threads = EpisodeThreads()
        self._leaving = ThreadPoolExecutor(2, thread_name_prefix="leaving")
        """Episodes that block in theirs cannot keep the worker from leaving."""

    def play(self, stop: threading.Event) -> None:
        """Work until told to stop. Raises what cannot be waited out."""
        watchdog = Watchdog()
        watchdog.start()
        try:
            asyncio.run(self._live(stop, watchdog))
        finally:
            watchdog.stop()

    async def _live(self, stop: threading.Event, watchdog: Watchdog) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(self._threads)
        self.follower.start()
        turns, work = asyncio.create_task(self._take_turns(watchdog)), asyncio.create_task(self._work(stop))
        ends: list[BaseException | None] = []
        await asyncio.wait({turns, work}, return_when=asyncio.FIRST_COMPLETED)
        for task in (work, turns):  # the beat goes on while the work is being left
            task.cancel()
            ends += await asyncio.gather(task, return_exceptions=True)
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
        if self._concluder is None:  # no episode ever began
            return
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=LEFT_S)
        if self._stalled or self._threads.busy or any(not task.done() for task in left):
            log.warning("worker.cut_off", left=len(left), errors=[str(error) for error in errors])
            sys.stderr.flush()
            os._exit(EXIT_CODE if errors else 0)

    async def _work(self, stop: threading.Event) -> None:
        self._phase = "waiting"
        with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
            context = await self._startup().prepare(Path(folder), stop)
        if context is None:
            return
        self._concluder = Concluder(
            run=self.run,
            workflow=self.options.workflow,
            context=context,
            follower=self.follower,
            producer=self.producer,
            partitions=group_partitions(self.run, self._spec.policies),
            specs={self.run.revision: self._spec},
            holds=VersionHolds(self.follower.hold, self.follower.release),
            tally=self.tally,
            watch=self.watch,
            pauses=self.pauses,
        )
        await self._roll(self._open_intake(), stop)

    async def _roll(self, intake: TaskIntake, stop: threading.Event) -> None:
        """Let tasks come until told to stop, then drain: what is still open is cancelled, and its start forgiven."""
        self._phase, in_good_order = "rolling", False
        intake.start()
        try:
            while not stop.is_set():
                await asyncio.sleep(TURN_S)
                if self._is_over():
                    log.info("worker.finished", why=self.follower.ended)
                    stop.set()
            self._phase, in_good_order = "draining", True
            intake.drain()
            if self._open:
                await asyncio.wait(self._open, timeout=DRAIN_S)
        finally:
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._leaving, self.producer.flush, FLUSH_S)
            await loop.run_in_executor(self._leaving, partial(intake.stop, in_good_order=in_good_order))

    def _is_over(self) -> bool:
        """Tell whether the run has ended and nothing came for so long that nothing will."""
        now = time.monotonic()
        if self._open or not self.follower.ended:
            self._busy_at = now
        return now - self._busy_at > OVER_AFTER_S

    def _startup(self) -> WorkerStartup:
        def engine_opened(engine: Engine) -> None:
            self._engine = engine

        def doing(what: str) -> None:
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
            engine_opened=engine_opened,
            doing=doing,
        )

    def _open_intake(self) -> TaskIntake:
        loop, topics, stream = asyncio.get_running_loop(), self.run.topics, self.options.stream
        member = Member(
            self.run.connection,
            f"{self.options.name}.tasks",
            self.run.topics.rollout_group(stream),
            (topics.tasks(stream), topics.tasks(eval_stream(stream))),
            self.run.run_id,
        )
        self._intake = TaskIntake(
            member,
            self,
            lambda started: loop.call_soon_threadsafe(self._launch, started),
            lambda places: loop.call_soon_threadsafe(self._cancel, places),
            self.pauses,
        )
        return self._intake

    # ------------------------------------------------------------------------------------------------------- the tasks

    def admit(self, task: Task) -> Reservation | Literal["run_end", "unknown_revision"] | None:
        """See `task_intake.Gate`; called in the intake's thread."""
        is_training = task.purpose != "eval"
        if is_training and self.follower.ended:
            return "run_end"
        if task.revision not in self.follower.recipes:
            return "unknown_revision"
        if is_training and self._behind():
            return None
        if self._concluder is None or self._concluder.delivering >= MOST_UNDELIVERED:
            return None
        return self.slots.reserve(task.n_asked)

    def _behind(self) -> str:
        return self.follower.behind(self._engine.versions()) if self._engine is not None else ""

    def _launch(self, started: StartedTask) -> None:
        is_training = started.task is None or started.task.purpose != "eval"
        task = asyncio.create_task(self._conclude(started, self._ending if is_training else asyncio.Event()))
        self._open[task] = started.place
        task.add_done_callback(self._closed)

    async def _conclude(self, started: StartedTask, ending: asyncio.Event) -> None:
        assert self._concluder is not None  # noqa: S101 - the intake began after it
        assert self._intake is not None  # noqa: S101 - it started this task
        await self._concluder.conclude(started, ending)
        self._intake.done(started)

    def _closed(self, task: asyncio.Task[None]) -> None:
        del self._open[task]
        if not task.cancelled() and task.exception() is not None:
            self._failure = self._failure or task.exception()

    def _cancel(self, places: frozenset[Place]) -> None:
        for task, place in self._open.items():
            if place in places:
                task.cancel()

    # ------------------------------------------------------------------------------------------------------- the turns

    async def _take_turns(self, watchdog: Watchdog) -> None:
        """Beat, notice the end of the run, report; raise what a thread or a task has died of."""
        loop = asyncio.get_running_loop()
        while True:
            watchdog.beat()
            intake_error = self._intake.error if self._intake is not None else None
            for error in (self.follower.error, intake_error, self._failure):
                if error is not None:
                    raise error
            self._watch_end(loop.time())
            if loop.time() >= self._report_at:
                self._report_at = loop.time() + STATUS_EVERY_S
                self._watch_stall(loop.time())
                self._report()
            await asyncio.sleep(TURN_S)

    def _watch_end(self, now: float) -> None:
        if not self.follower.ended:
            if self._ending.is_set():
                self._ending = asyncio.Event()
            self._ending_at = float("inf")
        elif self._ending_at == float("inf"):
            self._ending_at = now + RUN_END_S
        elif now >= self._ending_at:
            self._ending.set()

    def _watch_stall(self, now: float) -> None:
        """Raise Stalled when tasks are open, wait for no server, and no token was made for too long.

        New weights that cannot be had are no excuse: they hold no task up, and the next ones may come of these tasks.
        """
        may_wait = not self._open or self.pauses.hold_tasks or self._engine is None
        made = (self._engine.stats().generated_tokens if self._engine else 0, self.tally.groups_done)
        silent_s = self._stall_watch.silent_s(now, made, may_wait=may_wait)
        if silent_s >= stall_limit_s(self.follower.recipe.rollout.episode_limit_s):
            self._stalled = f"no token for {silent_s:.0f} s with {len(self._open)} tasks open: this process ends"
            faulthandler.dump_traceback()
            log.error("worker.stalled", why=self._stalled, remedy="its tasks are started again; one of them may be why")
            raise Stalled(self._stalled)

    def _report(self) -> None:
        """Post the status, unless the one before is still on its way."""
        if self._reported is not None:
            if not self._reported.done():
                if self._report_at > self._reported_at + SILENCE_S:
                    self.pauses.begin("Kafka", f"no acknowledgement for {SILENCE_S:g} s")
                return
            self._reported.result()
            self.pauses.end("Kafka")
        self._post_status()

    def _post_status(self) -> None:
        word, detail = str(self._phase), self._stalled or self.pauses.detail
        if word == "waiting":
            detail = detail or self._doing
        elif word == "rolling" and self._intake is not None and not self._intake.partitions:
            detail = detail or "waits for partitions"
        if word == "rolling" and (behind := self._behind()):
            word, detail = "behind", "; ".join(filter(None, (behind, detail)))
        watches = [self.watch] + ([self._intake.watch] if self._intake is not None else [])
        taken = tuple(self.follower.taken.copy().values())
        state = State(word, detail, self.slots.taken, len(self._open), sum_up(watches), taken)
        status = self._reporter.status(state, self.tally, self._engine)
        record = Outgoing(self.run.topics.workers, codec.encode(status), self.options.name.encode(), partition=0)
        self._reported, self._reported_at = self.producer.post(record), self._report_at


# ------------------------------------------------------------------------------------------------------------- start up


def group_partitions(run: Run, policies: tuple[str, ...]) -> dict[str, int]:
    """Return how many partitions each topic has that groups go to."""
    topics = [topic_of(run.topics, policy, purpose) for policy in policies for purpose in ("train", "eval")]
    return {topic: partitions_of(run.connection, topic) for topic in topics}


def choose_workflow(recipe: Recipe, asked: str | None) -> str:
    """Return the workflow to play: the one asked for, or the only one. Raises UsageError that lists them."""
    names = ", ".join(recipe.workflows)
    if asked is None and len(recipe.workflows) > 1:
        raise UsageError(f"the recipe has several workflows; say which one with --workflow: {names}")
    if asked is not None and asked not in recipe.workflows:
        raise UsageError(f"the recipe has no workflow {asked!r}; it has {names}")
    return asked or next(iter(recipe.workflows))


def build(run: Run, workflow: str | None, name: str, region: str, concurrency: int | None) -> RolloutWorker:
    """Make a worker for a run, nothing running yet. Raises UsageError for what cannot be played."""
    chosen = choose_workflow(run.recipe, workflow)
    if concurrency is not None and concurrency < 1:
        raise UsageError(f"--concurrency is {concurrency}; it must be at least 1")
    options = Options(chosen, name, region, concurrency or run.recipe.rollout.concurrency)
    return RolloutWorker(run, options, workflow_spec(run.recipe, chosen))


def main(run: str, workflow: str | None, name: str | None, region: str, concurrency: int | None) -> None:
    """Run a worker until it is told to stop: settings, logging, build, run."""
    address = parse_run(run)
    if region:
        check_name("region", region)
    worker = name or f"{socket.gethostname()}-{os.getpid()}"
    configure_logging("rollout", worker=worker)
    log.info("worker.starting", run=str(address))

    def join_and_play(stop: threading.Event) -> None:
        joined = join_to_write(address, JOIN_PATIENCE_S, stop)
        threading.Thread(target=import_engine, args=(joined.recipe.rollout.engine.use,), daemon=True).start()
        build(joined, workflow, worker, region, concurrency).play(stop)

    keep_running(join_and_play, stop_on_signals())
