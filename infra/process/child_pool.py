"""Runs code that may hang or crash in child processes, each call within a time limit.

One thread of this process, with an event loop of its own, owns all pools: so a caller may be async or block, in any
thread, and no event loop of a caller ever waits.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache, partial
from itertools import chain
from typing import Any

import cloudpickle

from headrace.infra.process.carried_errors import convert_to_exception, unpack_error
from headrace.infra.process.child_handle import Call, ChildDied, ChildHandle, numbers

LEAST_CHILDREN, MOST_CHILDREN = 2, 16


class ChildPool:
    """Child processes that have built the same object. Any thread may use it, and sessions of it.

    Args:
        what: Whose they are, for errors.
        build: Builds the object in each child; pickled with what it refers to.
        most: Most children; 0 for about as many as there are cores.

    Raises TypeError for what cannot be pickled.
    """

    def __init__(self, what: str, build: Callable[[], object], most: int = 0) -> None:
        try:
            self.recipe = cloudpickle.dumps(build)
        except Exception as error:
            raise TypeError(f"{what} cannot be sent to a child process ({type(error).__name__}: {error})") from error
        cores = len(os.sched_getaffinity(0))
        self._most = most or min(max(cores, LEAST_CHILDREN), MOST_CHILDREN)
        self.may_repeat = self._most > 1
        self._most_alive = 2 * self._most if self._most > 1 else 1
        """Late calls may hold children beyond the most."""
        self._children: list[ChildHandle] = []
        self._spare: list[ChildHandle] = []
        """In which calls run alone."""
        self._alone: asyncio.Semaphore | None = None
        self.loop = _start_loop()
        weakref.finalize(self, self.loop.call_soon_threadsafe, _kill_all, self._children, self._spare)

    def start(self) -> None:
        """Start the first children, without waiting for them."""
        for _ in range(min(LEAST_CHILDREN, self._most)):
            self.loop.call_soon_threadsafe(self._start_child)

    def open_session(self) -> Session:
        """Return a session; it must be ended."""
        return Session(self)

    @property
    def has_ready(self) -> bool:
        """Whether a session would not wait for the start of a child."""
        return any(child.ready.done() and not child.death for child in self._children)

    def choose_child(self) -> ChildHandle:
        """Return the child with the fewest calls; start one more if all have some."""
        alive = [child for child in self._children if not child.death]
        usable = [child for child in alive if not child.overdue]
        ready = [child for child in usable if child.ready.done()]
        best = min(ready, key=_get_load, default=None)
        is_starting = len(ready) < len(usable)
        may_start = not is_starting and len(usable) < self._most and len(alive) < self._most_alive
        if may_start and (best is None or best.calls):
            usable.append(self._start_child())
        return best or min(usable or alive, key=_get_load)

    def _start_child(self) -> ChildHandle:
        child = ChildHandle(self.recipe, partial(_discard, self._children))
        self._children.append(child)
        return child

    async def run_alone(self, call: Call, kept: bytes, function: bytes) -> tuple[str, bytes]:
        """Run a call in a child in which nothing else runs."""
        self._alone = self._alone or asyncio.Semaphore(self._most)
        async with self._alone:
            child = self._spare.pop() if self._spare else ChildHandle(self.recipe, partial(_discard, self._spare))
            try:
                await child.wait_until_ready()
                return await child.run(call, 0, kept, function)
            finally:
                if child.death or child.calls:
                    child.kill()
                else:
                    self._spare.append(child)


def _discard(children: list[ChildHandle], child: ChildHandle) -> None:
    if child in children:
        children.remove(child)


def _kill_all(*several: list[ChildHandle]) -> None:
    for child in chain(*several):
        child.kill()


def _get_load(child: ChildHandle) -> tuple[int, int]:
    return len(child.calls), child.sessions


@cache
def _start_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="children", daemon=True).start()
    return loop


class Session:
    """Calls that go to the same child, one after the other or at the same time."""

    def __init__(self, pool: ChildPool) -> None:
        self._pool, self._number = pool, next(numbers)
        self._child: ChildHandle | None = None
        self._kept: dict[str, tuple[ChildHandle, bytes]] = {}
        """The objects that the child keeps, by name, as they were sent last to this child."""
        self._has_state = False
        """Whether there may be something in the child that later calls need."""
        self._is_over = False

    async def wait_until_ready(self) -> None:
        """Wait until a child can take a call. Raises what its start raises."""
        if self._child is None and not self._pool.has_ready:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._take_child(), self._pool.loop))

    async def call(self, call: Call) -> Any:
        """Return what a function returns, or raise what it raises. Raises Overdue and ChildDied."""
        return await asyncio.wrap_future(self._submit(call))

    def call_and_wait(self, call: Call) -> Any:
        """Do as `call`, and block."""
        return self._submit(call).result()

    def end(self) -> None:
        """End the session; a call that still runs is left alone until its time limit."""
        self._pool.loop.call_soon_threadsafe(self._end)

    def _submit(self, call: Call) -> Future[Any]:
        try:
            sent = pickle.dumps(call.kept), pickle.dumps((call.function, call.arguments))
        except Exception as error:
            raise TypeError(
                f"{call.what} runs in a child process, and what it is called with cannot be sent there "
                f"({type(error).__name__}: {error}): keep plain data in it"
            ) from error
        return asyncio.run_coroutine_threadsafe(self._run(call, *sent), self._pool.loop)

    async def _run(self, call: Call, kept: bytes, function: bytes) -> Any:
        had_state = self._has_state
        self._has_state = had_state or call.leaves_state
        try:
            child = await self._take_child(had_state=had_state)
            is_there = self._kept.get(call.kept_name) == (child, kept)
            self._kept[call.kept_name] = (child, kept)
            kind, payload = await child.run(call, self._number, None if is_there else kept, function)
        except ChildDied as error:
            if error.is_own or had_state or not (call.may_repeat and self._pool.may_repeat):
                raise
            kind, payload = await self._pool.run_alone(call, kept, function)
        if kind == "error":
            raise convert_to_exception(call.what, unpack_error(payload))
        return pickle.loads(payload)

    async def _take_child(self, *, had_state: bool = False) -> ChildHandle:
        if self._is_over:
            raise RuntimeError("the episode is over")
        if self._child is None or (self._child.death and not had_state):
            if self._child is not None:
                self._child.sessions -= 1
            self._child = self._pool.choose_child()
            self._child.sessions += 1
        child = self._child
        if child.death:
            raise ChildDied(
                f"what earlier calls of this episode left is lost: their child process {child.death}", child.at
            )
        await child.wait_until_ready()
        return child

    def _end(self) -> None:
        self._is_over = True
        if self._child is not None:
            self._child.sessions -= 1
            self._child.send(self._number, "end")
            self._child.end_if_stuck()
