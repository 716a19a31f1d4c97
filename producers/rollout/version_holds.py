"""Holds exact weight versions in the engine while evaluation tasks need them, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

HELD_VERSIONS = 2
"""Most versions of one policy held at once; further evaluations wait."""


@dataclass(slots=True)
class _Held:
    """One version of a policy, held once for all tasks that need it."""

    made: asyncio.Future[None]
    """Done once the engine has the version, or cannot have it."""
    users: int = 0
    end: asyncio.Task[None] | None = None
    """Releases it; begun when its last user has left."""


class VersionHolds:
    """Counts the tasks that need each version. All tasks take policies in the same order, so no deadlock is possible.

    Args:
        hold: Blocking; makes a version available or raises VersionGone.
        release: Blocking; undoes one hold.
        threads: For both calls, and for nothing else: a hold may take as long as a server takes to start.
        most: Most versions of one policy at once.
    """

    def __init__(
        self,
        hold: Callable[[str, int], None],
        release: Callable[[str, int], None],
        threads: Executor,
        most: int = HELD_VERSIONS,
    ) -> None:
        self._hold, self._release, self._threads, self._most = hold, release, threads, most
        self._held: dict[tuple[str, int], _Held] = {}
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def hold(self, versions: Mapping[str, int]) -> AsyncIterator[None]:
        """Hold these versions during the block. Raises VersionGone if a version cannot be fetched."""
        async with AsyncExitStack() as stack:
            for policy, version in sorted(versions.items()):
                await stack.enter_async_context(self._hold_one(policy, version))
            yield

    @asynccontextmanager
    async def _hold_one(self, policy: str, version: int) -> AsyncIterator[None]:
        async with self._freed:
            await self._freed.wait_for(lambda: self._can_join(policy, version))
            if (policy, version) not in self._held:
                self._held[policy, version] = _Held(self._run_in_thread(self._hold, policy, version))
            held = self._held[policy, version]
            held.users += 1
        try:
            await asyncio.shield(held.made)
            yield
        finally:
            held.users -= 1
            if not held.users:
                held.end = asyncio.create_task(self._release_unused(policy, version, held))
                if held.made.done():  # else a cancelled task would wait for its hold
                    await asyncio.shield(held.end)

    def _can_join(self, policy: str, version: int) -> bool:
        held = self._held.get((policy, version))
        if held is not None:
            return held.end is None
        return sum(holder == policy for holder, _ in self._held) < self._most

    async def _release_unused(self, policy: str, version: int, held: _Held) -> None:
        """Release a version that nobody uses any more, once its hold is made."""
        try:
            await asyncio.wait({held.made})
            if not held.made.cancelled() and held.made.exception() is None:
                await self._run_in_thread(self._release, policy, version)
        finally:
            del self._held[policy, version]
            async with self._freed:
                self._freed.notify_all()

    def _run_in_thread(self, call: Callable[[str, int], None], policy: str, version: int) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(self._threads, call, policy, version)
