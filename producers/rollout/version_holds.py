"""Holds exact weight versions in the engine while evaluation tasks need them, a few at a time."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

HELD_VERSIONS = 2
"""Most versions of one policy held at once; further evaluations wait."""


class VersionHolds:
    """Counts the tasks that need each version. All tasks take policies in the same order, so no deadlock is possible.

    Args:
        hold: Blocking; makes a version available or raises VersionGone. Called in a thread.
        release: Blocking; undoes one hold.
        most: Most versions of one policy at once.
    """

    def __init__(
        self, hold: Callable[[str, int], None], release: Callable[[str, int], None], most: int = HELD_VERSIONS
    ) -> None:
        self._hold, self._release, self._most = hold, release, most
        self._users: defaultdict[str, Counter[int]] = defaultdict(Counter)
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
        users = self._users[policy]
        async with self._freed:
            await self._freed.wait_for(lambda: version in users or len(users) < self._most)
            users[version] += 1
        try:
            holding = asyncio.ensure_future(asyncio.to_thread(self._hold, policy, version))
            try:
                await asyncio.shield(holding)
            except asyncio.CancelledError:
                # The thread goes on; its hold is released when it ends.
                holding.add_done_callback(lambda done: self._undo(done, policy, version))
                raise
            try:
                yield
            finally:
                await asyncio.shield(asyncio.to_thread(self._release, policy, version))
        finally:
            users[version] -= 1
            if not users[version]:
                del users[version]
            async with self._freed:
                self._freed.notify_all()

    def _undo(self, holding: asyncio.Future[None], policy: str, version: int) -> None:
        if not holding.cancelled() and holding.exception() is None:
            self._release(policy, version)
