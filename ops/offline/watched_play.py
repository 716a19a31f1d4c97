"""Plays the episodes of a trial: says where they are while none ends, and lets Ctrl-C end them."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from headrace.infra.process.signals import INTERRUPTED
from headrace.ops.offline.held_out import play_all
from headrace.producers.rollout.play.episodes import RolloutContext, WorkflowSpec
from headrace.producers.rollout.play.running_episodes import find_most_common_wait
from headrace.producers.rollout.threads import CountedThreads
from headrace.producers.rollout.watchdog import TOLD_S, Watchdog, describe_block
from headrace.schemas.records import Task, TrajectoryGroup

SILENT_S = 10.0
"""Seconds between two reports of where episodes wait."""
BEAT_S = 0.5
LEFT_S = 3.0
"""Seconds that the trial gets to end after Ctrl-C: code in a thread may run for ever."""
_played_in: list[CountedThreads] = []
"""Where the episodes of this process ran their blocking calls."""
T = TypeVar("T")


def play_watched(
    asked: Sequence[tuple[Task, WorkflowSpec]], context: RolloutContext, say: Callable[[str], None]
) -> list[TrajectoryGroup]:
    """Return the groups of the tasks; meanwhile, `say` gets sentences on where the episodes are."""

    def say_block(silent_s: float, at: str) -> None:
        if silent_s % TOLD_S == 0:
            say(f"the trial is {describe_block(silent_s, at)}. Ctrl-C ends the trial")

    threads = CountedThreads("episode")
    with end_on_interrupt(lambda: threads.is_busy), Watchdog(say_block, limit_s=math.inf) as watchdog:
        found = _run(_play(asked, context, say, watchdog.beat), threads)
    _played_in.append(threads)
    return found


def exit_if_busy(code: int) -> None:
    """End the process here if a thread of an episode never ends: the interpreter's own exit would wait for it."""
    if any(threads.is_busy for threads in _played_in):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(playing: Coroutine[None, None, T], threads: CountedThreads) -> T:
    """Run the event loop without waiting at its end for calls in threads, as `asyncio.run` does: one may never end."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(threads)
    try:
        return loop.run_until_complete(playing)
    finally:
        loop.run_until_complete(_cancel(asyncio.all_tasks(loop)))
        loop.close()


async def _cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _play(
    asked: Sequence[tuple[Task, WorkflowSpec]],
    context: RolloutContext,
    say: Callable[[str], None],
    beat: Callable[[], None],
) -> list[TrajectoryGroup]:
    playing = asyncio.create_task(play_all(asked, context))
    began = said = time.monotonic()
    while not (await asyncio.wait({playing}, timeout=BEAT_S))[0]:
        beat()
        if (now := time.monotonic()) - said >= SILENT_S:
            said = now
            say(describe_wait(now - began, asked[0][1].episode_limit_s, context.running.describe_endless()))
    return playing.result()


def describe_wait(seconds: float, limit_s: float, endless: str) -> str:
    """Return where the episodes are after these seconds; `endless` says so of episodes that play many turns."""
    shorter = "; --set rollout.episode_limit_s=20 ends them earlier" if limit_s > 20 else ""
    where = endless or f"most wait at {find_most_common_wait()}"
    ends = f"They end after {limit_s:g} s (rollout.episode_limit_s){shorter}"
    return f"the episodes have run for {seconds:.0f} s; {where}. {ends}"


@contextmanager
def end_on_interrupt(is_busy: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Let Ctrl-C end the block also while a call blocks the event loop: asyncio would wait for the call's end.

    Cleaning up gets LEFT_S seconds, then the process ends; also after the block, if `is_busy` at its end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted, over = threading.Event(), threading.Event()

    def end() -> None:
        interrupted.wait()
        if not over.wait(LEFT_S):
            os._exit(INTERRUPTED)

    threading.Thread(target=end, name="interrupt", daemon=True).start()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if not is_busy():
            over.set()
            interrupted.set()
        signal.signal(signal.SIGINT, before)
