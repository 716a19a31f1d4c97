"""The threads in which environments score, so that the event loop never waits for a score.

A score that takes too long fails its episode, and a new thread replaces its thread at once. Python code in the old
thread is interrupted. Code that hangs in a C extension stays in a daemon thread, and is counted. An extension that
holds the GIL, as `re` does, stops every thread: then the process ends, prints the stacks of all threads, and its
supervisor starts it again. So every wait ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

import structlog

from headrace.infra.unreachable import OutOfTime
from headrace.producers.rollout.play.engine_room import wait_for_turn
from headrace.producers.rollout.play.failures import convert_to_exception

log = structlog.get_logger()

T = TypeVar("T")

MOST_STUCK = 64
"""Most threads that may be stuck at once; with more, no score starts until a thread returns."""
BEAT_S = 1.0
GRACE_S = 60.0
"""While a score runs, the process ends if the event loop gets no turn for the time limit plus these seconds."""
STDERR = 2
LIMIT_KEYS = "rollout.score_limit_s, or rollout.episode_limit_s if that is less"
"""Keys of the recipe that limit the time of a score."""


class ScoreTimeLimit(OutOfTime):
    """The environment did not score in time."""


@dataclass(eq=False, slots=True)
class _Call:
    """One running score."""

    function: Callable[[], object]
    answer: asyncio.Future[Any]
    thread: _ScoreThread
    limit: asyncio.TimerHandle | None = None
    given_up: bool = False


class ScoreThreads:
    """A pool of threads that score. Only the event loop may use it.

    Args:
        scorer: Name of the environment or scorer, for messages.
        count: How many scores run at once; the time limit of the others has not begun yet.
        limit_s: Seconds that a score may take.
    """

    def __init__(self, scorer: str, count: int, limit_s: float) -> None:
        self.stuck = 0
        """Number of scores that were given up and have not returned."""
        self._scorer, self._limit_s = scorer, limit_s
        self._room = asyncio.Semaphore(count)
        self._idle: list[_ScoreThread] = []
        self._running = 0
        self._watching: asyncio.Task[None] | None = None

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function in one of the threads; return or raise its result. Raises ScoreTimeLimit."""
        with wait_for_turn():
            await self._room.acquire()
        if self.stuck >= MOST_STUCK:
            self._room.release()
            raise ScoreTimeLimit(
                f"{self.stuck} score calls of environment {self._scorer} still run after their time limit, so no "
                "further call is started: give the scorer its own time limit"
            )
        loop = asyncio.get_running_loop()
        call = _Call(function, loop.create_future(), self._idle.pop() if self._idle else _ScoreThread())
        call.limit = loop.call_later(self._limit_s, self._fail_and_interrupt, call)
        self._running += 1
        if self._watching is None or self._watching.done():
            self._put_off_end()  # before the call begins: then the event loop may never get a turn
            self._watching = asyncio.create_task(self._watch())
        call.thread.calls.put((call.function, lambda result, error: self._settle_soon(loop, call, result, error)))
        answer: T = await call.answer
        return answer

    def _settle_soon(
        self, loop: asyncio.AbstractEventLoop, call: _Call, result: object, error: BaseException | None
    ) -> None:
        """Pass an answer to the event loop; runs in the call's thread."""
        if call.given_up:  # checked here, because a closing loop accepts the callback and never calls it
            call.thread.end()
        try:
            loop.call_soon_threadsafe(self._settle, call, result, error)
        except RuntimeError:  # the loop is closed: nobody waits for the answer
            call.thread.end()

    def _settle(self, call: _Call, result: object, error: BaseException | None) -> None:
        if call.given_up:
            self.stuck -= 1
            call.thread.end()  # given up while its answer was on its way
            return
        assert call.limit is not None  # noqa: S101 - set before the call began
        call.limit.cancel()
        self._idle.append(call.thread)
        self._start_replacement_thread()
        if call.answer.done():  # its episode was cancelled
            return
        if error is None:
            call.answer.set_result(result)
        else:
            call.answer.set_exception(convert_to_exception(f"{self._scorer}.score", error))

    def _fail_and_interrupt(self, call: _Call) -> None:
        """Fail a call, interrupt its Python code, and replace its thread."""
        call.given_up = True
        self.stuck += 1
        self._start_replacement_thread()
        why = f"environment {self._scorer} did not score within {self._limit_s:g} s ({LIMIT_KEYS})"
        log.warning("score.overdue", scorer=self._scorer, limit_s=self._limit_s, stuck=self.stuck)
        call.thread.interrupt()
        if not call.answer.done():
            call.answer.set_exception(ScoreTimeLimit(why))

    def _start_replacement_thread(self) -> None:
        self._running -= 1
        self._room.release()

    def _put_off_end(self) -> None:
        faulthandler.dump_traceback_later(self._limit_s + GRACE_S, exit=True, file=STDERR)

    async def _watch(self) -> None:
        """While scores run, keep putting off the process end that comes if the event loop gets no turn for too long.

        When no score runs, idle threads end.
        """
        try:
            while self._running:
                self._put_off_end()
                await asyncio.sleep(BEAT_S)
        finally:
            faulthandler.cancel_dump_traceback_later()
            while self._idle:
                self._idle.pop().end()


class _ScoreThread(threading.Thread):
    """One thread: takes calls until it gets None. A daemon, because a stuck thread cannot be ended otherwise."""

    def __init__(self) -> None:
        super().__init__(name="score", daemon=True)
        self.calls: SimpleQueue[tuple[Callable[[], object], Callable[..., None]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_calling = False
        self.start()

    def run(self) -> None:
        while (call := self.calls.get()) is not None:
            function, settle = call
            result, error = self._call(function)
            settle(result, error)
            del call, function, settle, result, error  # an idle thread keeps no episode alive

    def _call(self, function: Callable[[], object]) -> tuple[object, BaseException | None]:
        try:
            with self._lock:
                self._is_calling = True
            try:
                return function(), None
            finally:
                with self._lock:
                    self._is_calling = False
        except BaseException as error:  # noqa: BLE001 - passed to the one who waits for the answer
            return None, error

    def end(self) -> None:
        """Accept no further call."""
        self.calls.put(None)

    def interrupt(self) -> None:
        """Raise ScoreTimeLimit in the running call; code in a C extension notices it only when it returns."""
        with self._lock:
            if self._is_calling and self.ident is not None:
                raised = ctypes.py_object(ScoreTimeLimit)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), raised)
