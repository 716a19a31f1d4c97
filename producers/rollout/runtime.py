"""Runs beside a worker's episodes: follower, producer, heartbeat, and the worker's orderly exit."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import structlog

from headrace.infra.kafka.deleted_topics import TopicWatch
from headrace.infra.recipe.kinds import Playable
from headrace.infra.run.run import Run
from headrace.infra.stopwatch import Stopwatch
from headrace.producers.engines.contract import Engine
from headrace.producers.engines.registry import WITHOUT_DEVICE
from headrace.producers.rollout.intake.slots import Slots
from headrace.producers.rollout.intake.task_intake import TaskIntake
from headrace.producers.rollout.open_tasks import OpenTasks
from headrace.producers.rollout.pauses import Pauses
from headrace.producers.rollout.play.engine_room import EngineRoom
from headrace.producers.rollout.play.running_episodes import RunningEpisodes
from headrace.producers.rollout.record_producer import RecordProducer
from headrace.producers.rollout.revision_check import RevisionCheck
from headrace.producers.rollout.run_end import RunEnd
from headrace.producers.rollout.run_follower import RunFollower
from headrace.producers.rollout.threads import WorkerThreads
from headrace.producers.rollout.watchdog import (
    EXIT_CODE,
    STUCK_REMEDY,
    TOLD_S,
    WATCHDOG_TURN_S,
    StallWatch,
    Watchdog,
    describe_block,
)
from headrace.producers.rollout.weight_loader import WeightLoader
from headrace.producers.rollout.worker_status import (
    Reporter,
    RunningCounts,
    StatusPosts,
    WorkCounts,
    WorkerState,
    sum_up,
)
from headrace.schemas.topics import Topics, eval_stream, region_of

log = structlog.get_logger()

RUNTIME_TURN_S = 0.1
FLUSH_S = 1.5
LEFT_S = 1.0
"""Seconds that cancelled episodes get to end."""
ALL_OF_IT = Playable()
NO_PARTITIONS = (
    "waits for one of the {count} partitions of its tasks; if this lasts, other workers have all of them, and this "
    "worker stays idle: then stop it"
)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a worker, besides its run."""

    workflow: str
    name: str
    region: str
    """Where it runs, for its status and its groups."""
    stream: str
    """Whose tasks it plays: those at home, or those of its region if the recipe has it."""
    concurrency: int
    """Requests in the engine at once."""
    episodes: int
    """Episodes at once."""
    kind: str = ""
    """Kind of worker, as the command line names it."""
    playable: Playable = ALL_OF_IT
    """What it may play of its workflow."""

    def list_task_topics(self, topics: Topics, *, is_evaluating: bool) -> tuple[str, ...]:
        """Return the topics of training tasks, and of evaluation tasks, that it may play."""
        training = (topics.tasks(self.stream),) if self.playable.training else ()
        if not self.playable.evaluations or not is_evaluating:
            return training
        return *training, topics.tasks(eval_stream(self.stream))


class WorkerRuntime:
    """The parts of one worker that live as long as the worker. Only the event loop may use it."""

    def __init__(self, run: Run, options: Options, policies: tuple[str, ...]) -> None:
        self.run, self.options, self.policies = run, options, policies
        self.tally, self.watch, self.pauses = WorkCounts(), Stopwatch(), Pauses()
        self.slots = Slots(options.episodes, EngineRoom(options.concurrency))
        self.tasks, self.run_end = OpenTasks(), RunEnd()
        self.follower = RunFollower(run, policies, f"{options.name}.follow")
        self.producer = RecordProducer(run.connection, f"{options.name}.groups", self.watch)
        self.phase: Literal["starting", "waiting", "rolling", "draining", "stopped"] = "starting"
        self.step = ""
        """Current step of the startup, before the first task."""
        self.loader: WeightLoader | None = None
        """Holds the engine; None before the engine is built."""
        self.intake: TaskIntake | None = None
        """None before the startup is over."""
        self.episodes = RunningEpisodes()
        self._stall_watch = StallWatch()
        rollout = run.recipe.rollout_of(options.kind)
        reporter = Reporter(
            run.run_id,
            options.name,
            options.workflow,
            options.region,
            kind=options.kind,
            engine=rollout.engine.use,
            device="" if rollout.engine.use in WITHOUT_DEVICE else rollout.device,
            policies=policies,
            slots=options.episodes,
        )
        self._status = StatusPosts(reporter, self.producer, run.topics.workers, self.pauses)
        self._revisions = RevisionCheck(run, options.workflow, options.kind, region_of(options.stream))
        self.threads = WorkerThreads()

    @property
    def engine(self) -> Engine | None:
        """The engine; None before it is built."""
        return self.loader.engine if self.loader is not None else None

    async def supervise(self, work: Callable[[], Coroutine[None, None, None]], watchdog: Watchdog) -> None:
        """Run `work` to its end with all parts beside it, then leave the group. Raises fatal errors."""
        asyncio.get_running_loop().set_default_executor(self.threads.episodes)
        self.follower.start()
        topics = TopicWatch(self.run.connection, self._list_topics())
        topics.start()
        turns, working = asyncio.create_task(self._take_turns(watchdog, topics)), asyncio.create_task(work())
        ends: list[BaseException | None] = []
        await asyncio.wait({turns, working}, return_when=asyncio.FIRST_COMPLETED)
        for task in (working, turns):  # the heartbeat continues while the work ends
            task.cancel()
            ends += await asyncio.gather(task, return_exceptions=True)
        topics.stop()
        self.phase = "stopped"
        self._post_status()
        await self.flush()
        if self.loader is not None:
            self.loader.stop()
        self.follower.stop()
        if self.engine is not None:
            await self.call_apart(self.engine.close)
        self.producer.close()
        log.info("worker.stopped", groups=self.tally.groups_done, episodes=self.tally.episodes_done)
        errors = [end for end in ends if isinstance(end, Exception)]
        await self._exit_if_stuck(errors)
        for error in errors:
            raise error

    def set_loader(self, loader: WeightLoader) -> None:
        """Take the loader with its engine, which is closed at the end."""
        self.loader = loader

    def note_step(self, step: str) -> None:
        """Report a step of the startup."""
        self.step = step

    async def flush(self) -> None:
        """Wait for acknowledgements, within a time limit."""
        await self.call_apart(partial(self.producer.flush, FLUSH_S))

    async def call_apart(self, call: Callable[[], object]) -> None:
        """Make a call in a thread that no episode can block."""
        await asyncio.get_running_loop().run_in_executor(self.threads.leaving, call)

    async def _exit_if_stuck(self, errors: list[Exception]) -> None:
        """End the process here if the interpreter would wait for ever for an episode that cannot be cancelled."""
        if self.intake is None:  # no episode ever began
            return
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=LEFT_S)
        if self._stall_watch.found or self.threads.is_busy or any(not task.done() for task in left):
            # Something still runs that cannot be cancelled, so the process ends without waiting.
            log.warning("worker.cut_off", left=len(left), errors=[str(error) for error in errors])
            sys.stderr.flush()
            os._exit(EXIT_CODE if errors else 0)

    # ------------------------------------------------------------------------------------------------------- the turns

    def _list_topics(self) -> Iterator[str]:
        """Yield the topics that the worker reads and writes."""
        names = self.run.topics
        yield from (names.recipe, names.workers, *self.options.list_task_topics(names, is_evaluating=True))
        for policy in self.policies:
            yield from (names.weights(policy), names.trajectories(policy), names.eval_groups(policy))

    async def _take_turns(self, watchdog: Watchdog, topics: TopicWatch) -> None:
        """Send heartbeats and status, notice the run's end; raise a thread's or task's error, or for a lost topic."""
        loop = asyncio.get_running_loop()
        while True:
            watchdog.beat()
            intake_error = self.intake.error if self.intake is not None else None
            for error in (topics.error, self.follower.error, intake_error, self.tasks.failure):
                if error is not None:
                    raise error
            self.run_end.update_ending(loop.time(), has_ended=bool(self.follower.ended))
            self._revisions.check(self.follower.recipe, self.follower.plug_ins)
            if self._status.is_due(loop.time()):
                self._check_stall(loop.time())
                if self._status.settle_last_post():
                    self._post_status()
            await asyncio.sleep(RUNTIME_TURN_S)

    def _check_stall(self, now_s: float) -> None:
        """Raise Stalled if tasks are open, wait for no server, and no token or successful episode came for too long.

        New weights that cannot be fetched do not count as a wait, because they block no task.
        """
        stats = self.engine.stats() if self.engine is not None else None
        may_wait = not self.tasks or self.pauses.has_to_hold_tasks or stats is None or bool(stats.trouble)
        tokens = max(stats.generated_tokens, stats.progress) if stats else 0
        made = (tokens, self.tally.episodes_done, self.tally.groups_done)  # a long line of scores makes no token
        silent_s = self._stall_watch.count_silent_s(now_s, made, may_wait=may_wait)
        self._stall_watch.refuse_stall(silent_s, self.follower.recipe.rollout.episode_limit_s, len(self.tasks))

    def report_block(self, silent_s: float, at: str) -> None:
        """Report where the event loop is blocked, from the watchdog's thread: the loop cannot post its status then."""
        if silent_s < TOLD_S + WATCHDOG_TURN_S:
            # A call in `at` has blocked the event loop, so no episode goes on.
            log.warning("worker.blocked", silent_s=silent_s, at=at, remedy=STUCK_REMEDY)
        if self._status.is_due(time.monotonic()):
            self._post(str(self.phase), describe_block(silent_s, at))

    def _post_status(self) -> None:
        trouble = self.engine.stats().trouble if self.engine is not None else ""
        detail = self._stall_watch.found or self.pauses.detail
        detail = detail if trouble in detail else "; ".join(filter(None, (detail, trouble)))
        word, loader = str(self.phase), self.loader
        if word == "waiting":
            detail = detail or self.step
        elif word == "rolling" and self.intake is not None and not self.intake.partitions:
            word, detail = "waiting", detail or NO_PARTITIONS.format(count=self.run.recipe.task_partitions)
        elif word == "rolling":
            detail = detail or self._stall_watch.describe_silence() or self.episodes.describe_endless()
        behind = self.follower.find_stale(loader.engine.versions()) if word == "rolling" and loader else ""
        if behind:
            word, detail = "behind", "; ".join(filter(None, (behind, detail)))
        self._post(word, detail)

    def _post(self, word: str, detail: str) -> None:
        loader = self.loader
        watches = [self.watch] + ([self.intake.watch] if self.intake is not None else [])
        taken = tuple(loader.taken.copy().values()) if loader is not None else ()
        room = self.slots.room
        running = RunningCounts(self.slots.taken, room.running, room.waiting)
        state = WorkerState(word, detail, running, len(self.tasks), sum_up(watches), taken)
        self._status.post(state, self.tally, self.engine)
