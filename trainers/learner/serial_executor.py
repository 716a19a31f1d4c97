"""A thread that runs tasks one after the other. The process does not wait for it at exit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class SerialExecutor:
    """Runs tasks in order in a single thread, because torch keeps its compute settings per thread.

    Args:
        name: Name of the thread.
        first: Called in the thread before the first task.
    """

    def __init__(self, name: str, first: Callable[[], None] = lambda: None) -> None:
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(first,), name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue a task; return the future of its result."""
        future: Future[T] = Future()
        self._queue.put((future, work))
        return future

    def close(self, *, wait: bool) -> None:
        """End the thread after the queued tasks; with `wait`, return when it has ended."""
        self._queue.put(None)
        if wait:
            self._thread.join()

    def _run(self, first: Callable[[], None]) -> None:
        first()
        while (task := self._queue.get()) is not None:
            future, work = task
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - the future raises it to its reader
                future.set_exception(error)
            del task, future, work  # free their memory before waiting for the next task
