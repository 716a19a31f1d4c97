"""The tasks that a worker has started and not concluded, each run by an asyncio task."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from headrace.infra.kafka.topic_reader import PartitionId


class OpenTasks:
    """Open tasks of a worker. Only the event loop may use it."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        """Error of the first task that failed."""
        self._open: dict[asyncio.Task[None], PartitionId] = {}

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, partition_id: PartitionId, work: Coroutine[None, None, None]) -> None:
        """Run a task of a partition."""
        task = asyncio.create_task(work)
        self._open[task] = partition_id
        task.add_done_callback(self._note_end)

    def cancel(self, partition_ids: frozenset[PartitionId]) -> None:
        """Cancel the tasks of partitions that this worker has lost."""
        for task, partition_id in self._open.items():
            if partition_id in partition_ids:
                task.cancel()

    async def drain(self, timeout_s: float) -> None:
        """Wait until all tasks have ended, at most `timeout_s` seconds."""
        if self._open:
            await asyncio.wait(self._open, timeout=timeout_s)

    async def cancel_all(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        del self._open[task]
        if not task.cancelled() and task.exception() is not None:
            self.failure = self.failure or task.exception()
