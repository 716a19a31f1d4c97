"""Calls a tool within a time limit: a sync function in a thread of its own, an async one on the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from headrace.infra.own_frames import locate_thread, locate_wait
from headrace.infra.unreachable import OutOfTime


class ToolOverdue(OutOfTime):
    """A tool did not return within its time limit; `at` is where it was."""

    def __init__(self, tool: str, limit_s: float, at: str) -> None:
        super().__init__(f"{tool} took longer than {limit_s:g} s")
        self.at = at


async def call_tool(function: Callable[..., Any], arguments: Mapping[str, Any], limit_s: float) -> Any:
    """Return what a tool returns, or raise what it raises, always as an Exception.

    A call that does not return in time is left alone: an async one is cancelled, the thread of a sync one goes on until
    the function returns. Raises ToolOverdue.
    """
    name = function.__name__
    if inspect.iscoroutinefunction(function):
        return await _await_async(name, function(**arguments), limit_s)
    answer, thread = _start_thread(partial(function, **arguments))
    await _wait(answer, name, limit_s, lambda: locate_thread(thread.ident or 0))
    found = _take_result(name, answer)
    return await _await_async(name, found, limit_s) if inspect.iscoroutine(found) else found


async def _await_async(name: str, coroutine: Coroutine[Any, Any, Any], limit_s: float) -> Any:
    async def run() -> Any:
        try:
            return await coroutine
        except (KeyboardInterrupt, SystemExit) as error:  # would end the event loop
            raise _as_exception(name, error) from error

    task = asyncio.create_task(run())
    try:
        await _wait(task, name, limit_s, lambda: locate_wait(task))
        return _take_result(name, task)
    finally:
        task.cancel()
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody else reads its exception


async def _wait(running: asyncio.Future[Any], name: str, limit_s: float, locate: Callable[[], str]) -> None:
    await asyncio.wait({running}, timeout=limit_s)
    if not running.done():
        raise ToolOverdue(name, limit_s, locate())


def _take_result(name: str, ended: asyncio.Future[Any]) -> Any:
    try:
        return ended.result()
    except asyncio.CancelledError as error:  # by a cancel scope of the tool's own: nobody cancelled the episode
        raise _as_exception(name, error) from error


def _start_thread(function: Callable[[], Any]) -> tuple[asyncio.Future[Any], threading.Thread]:
    """Run a function in a new daemon thread, for which neither other calls nor the end of the process wait."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    answer: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: Exception | None) -> None:
        if answer.cancelled():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)
            answer.exception()  # it may come after the time limit, when nobody reads it

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(function)
        except BaseException as raised:  # noqa: BLE001 - passed to the one who waits for the answer
            error = _as_exception(getattr(function, "func", function).__name__, raised)
        with suppress(RuntimeError):  # the loop is closed: nobody waits for the answer
            loop.call_soon_threadsafe(settle, result, error)

    thread = threading.Thread(target=run, name="tool", daemon=True)
    thread.start()
    return answer, thread


def _as_exception(name: str, error: BaseException) -> Exception:
    """Return an error of a tool as one that a future can carry and that ends no event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    made = RuntimeError(f"{name} raised {type(error).__name__}: {error}".removesuffix(": "))
    made.__cause__ = error
    return made.with_traceback(error.__traceback__)
