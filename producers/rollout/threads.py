"""The threads for blocking calls of episodes; it counts calls that never return."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

MOST_THREADS = 64


class EpisodeThreads(ThreadPoolExecutor):
    """The event loop's executor, used by `asyncio.to_thread`: a call that blocks for ever cannot be cancelled."""

    def __init__(self) -> None:
        super().__init__(MOST_THREADS, thread_name_prefix="episode")
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
