"""A link between two networks on one machine: with a latency, a bandwidth and losses, and cuts of any length.

The far network is a network namespace (`benchmarks/far_machine.py`), so its processes reach nothing but one another.
`ShapedLink.forward` makes one of their ports appear here, under the same number, and so also under the address that
a Kafka broker there gives to its clients.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

HOST = "127.0.0.1"
CHUNK_BYTES = 1 << 16
IN_FLIGHT_CHUNKS = 256
"""Most chunks of a connection that are on their way: a window of 16 MiB."""
SHORTEST_REPEAT_S = 0.2
"""A lost packet is sent again after a round trip, but not sooner (Linux's least RTO); what follows it waits."""
OUT, BACK = "out", "back"
"""From here to the far side, and back."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a link is like, in each direction.

    Args:
        round_trip_s: Seconds for a byte and its answer.
        bytes_per_s: Bandwidth that all connections share.
        loss: Share of the chunks, of up to 64 KiB, that are sent again.
    """

    round_trip_s: float = 0.3
    bytes_per_s: float = 12.5e6
    loss: float = 0.0


class ShapedLink:
    """Forwards ports while the context lasts. Methods may be called from any thread."""

    def __init__(self, shape: Shape = Shape(), seed: int = 0) -> None:
        self._shape, self._draw = shape, random.Random(seed)  # noqa: S311 - losses, not a secret
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._whole = asyncio.Event()
        self._free_at = {OUT: 0.0, BACK: 0.0}
        self._servers: list[asyncio.Server] = []
        self.carried: Counter[tuple[int, str]] = Counter()
        """(port, `out` or `back`) to the bytes that have arrived."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop.call_soon_threadsafe(self._whole.set)
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def forward(self, port: int, far: Path) -> None:
        """Accept connections to a port here, and carry their bytes to the socket of the far side. Raises OSError."""

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(asyncio.CancelledError):  # the context ends
                await self._carry(port, far, reader, writer)

        self._servers.append(self._run(asyncio.start_server(carry, HOST, port, limit=CHUNK_BYTES)))

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Let nothing through either way for the context; then what was on its way arrives.

        Connections stay open, so only time-outs notice.
        """
        self._loop.call_soon_threadsafe(self._whole.clear)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._whole.set)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the loop's next turn

    async def _carry(self, port: int, far: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Be one connection until either side closes it."""
        try:
            await self._whole.wait()
            await asyncio.sleep(self._shape.round_trip_s)  # the handshake of TCP
            try:
                far_reader, far_writer = await asyncio.open_unix_connection(far, limit=CHUNK_BYTES)
            except OSError:
                return
            try:
                ways = (reader, far_writer, (port, OUT)), (far_reader, writer, (port, BACK))
                pumps = [asyncio.create_task(self._pump(*way)) for way in ways]
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
            finally:
                far_writer.close()
        finally:
            writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: tuple[int, str]) -> None:
        """Carry one direction of a connection, in order, until its end has arrived."""
        on_its_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(IN_FLIGHT_CHUNKS)
        sender = asyncio.create_task(self._send(reader, on_its_way, way[1]))
        try:
            while True:
                due, chunk = await on_its_way.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                await self._whole.wait()
                if not chunk:
                    return
                self.carried[way] += len(chunk)
                with suppress(ConnectionError):
                    writer.write(chunk)
                    await writer.drain()
        finally:
            sender.cancel()

    async def _send(
        self, reader: asyncio.StreamReader, on_its_way: asyncio.Queue[tuple[float, bytes]], direction: str
    ) -> None:
        """Put each chunk on the line, with the time at which it is due on the other side; an empty one is the end."""
        shape, last_due = self._shape, 0.0
        chunk = b"begin"
        while chunk:
            try:
                chunk = await reader.read(CHUNK_BYTES)
            except ConnectionError:
                chunk = b""
            sent_at = max(time.monotonic(), self._free_at[direction]) + len(chunk) / shape.bytes_per_s
            self._free_at[direction] = sent_at
            lost = self._draw.random() < shape.loss
            due = sent_at + shape.round_trip_s / 2 + (max(SHORTEST_REPEAT_S, shape.round_trip_s) if lost else 0.0)
            last_due = max(last_due, due)
            await on_its_way.put((last_due, chunk))
