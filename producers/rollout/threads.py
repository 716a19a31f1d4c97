"""The threads of a worker for blocking calls; they count calls that never return."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

MOST_THREADS = 64


class CountedThreads(ThreadPoolExecutor):
    """A pool that knows its running calls: a call that blocks for ever cannot be cancelled.

    Args:
        name: Of the threads.
    """

    def __init__(self, name: str) -> None:
        super().__init__(MOST_THREADS, thread_name_prefix=name)
        self._calls: set[Future[Any]] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a call in one of the threads."""
        call = super().submit(fn, *args, **kwargs)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call

    @property
    def is_busy(self) -> bool:
        """Whether the interpreter's exit would wait for a running call."""
        return any(call.running() for call in self._calls.copy())


class WorkerThreads:
    """The pools of a worker, so that calls of one kind never wait for those of another."""

    def __init__(self) -> None:
        self.episodes = CountedThreads("episode")
        """The event loop's executor, used by `asyncio.to_thread`."""
        self.holds = CountedThreads("hold")
        """For exact versions; a call may take as long as a server takes to start."""
        self.leaving = ThreadPoolExecutor(2, thread_name_prefix="leaving")
        """For the worker's exit."""

    @property
    def is_busy(self) -> bool:
        """Whether the interpreter's exit would wait for a call of an episode or for a hold."""
        return self.episodes.is_busy or self.holds.is_busy
