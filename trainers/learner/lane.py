"""A thread that does one thing after the other, and that nobody waits for at the end of the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")


class SerialExecutor:
    """Work in order, in one thread for all of it: how torch computes is set per thread.

    Args:
        name: Of the thread.
        first: Called in it before all work.
    """

    def __init__(self, name: str, first: Callable[[], None] = lambda: None) -> None:
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(first,), name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """Do the work after all that was submitted before."""
        future: Future[Result] = Future()
        self._queue.put((future, work))
        return future

    def close(self, *, wait: bool) -> None:
        """End after the work that was submitted; wait for that if asked to."""
        self._queue.put(None)
        if wait:
            self._thread.join()

    def _run(self, first: Callable[[], None]) -> None:
        first()
        while (task := self._queue.get()) is not None:
            future, work = task
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - whoever asks for the result raises it
                future.set_exception(error)
            del task, future, work  # what it held is not kept until the next comes
