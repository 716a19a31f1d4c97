"""Lets code in a box reach listed hosts: a box has no network, so its owner carries each connection to its host.

The first process of a box listens, inside, at the address of each listed host, and hands these sockets to the owner. So
the kernel keeps all else closed as in every box: other ports and hosts, UDP, DNS, and abstract sockets.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from headrace.infra.errors import UsageError

WEB_PORTS = (80, 443)
"""Ports of a host that is listed without one."""
MOST_PORTS = 250
"""Listed at most; one message can hand over 253 sockets."""
MOST_CONNECTIONS = 64
"""Open at a time for a box; more are closed at once."""
CONNECT_S = 10.0
CHUNK = 1 << 16
_LABEL = "[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*", re.ASCII)


class Target(NamedTuple):
    """A port of a listed host, and the host's address inside the box: its own, or one of 127.120.0.0/16 for a name."""

    host: str
    address: str
    port: int


def read_hosts(hosts: Collection[str]) -> list[Target]:
    """Return the ports that `host` (80 and 443) and `host:port` name. Raises UsageError."""
    found, addresses = dict[Target, None](), {"localhost": "127.0.0.1"}
    for listed in [hosts] if isinstance(hosts, str) else hosts:
        name, colon, port = listed.lower().partition(":")
        ports = [int(port)] if re.fullmatch("[0-9]{1,5}", port) else [] if colon else WEB_PORTS
        if not ports or not all(0 < one < 1 << 16 for one in ports) or not _NAME.fullmatch(name):
            raise UsageError(
                "hosts of a box are names or IPv4 addresses, as `example.org` (ports 80 and 443) or `127.0.0.1:8080`, "
                f"without wildcards; got {listed!r}"
            )
        with suppress(ValueError):
            addresses[name] = str(ipaddress.IPv4Address(name))
        address = addresses.setdefault(name, f"127.120.0.{len(addresses)}")
        found |= dict.fromkeys(Target(name, address, one) for one in ports)
    if len(found) > MOST_PORTS:
        raise UsageError(f"hosts of a box have at most {MOST_PORTS} ports together; got {len(found)}")
    return list(found)


class Relay:
    """Carries the connections of a box to its listed hosts, whose names it resolves outside, for each connection.

    Args:
        targets: Listed ports, in the order in which the box hands over the sockets.
    """

    def __init__(self, targets: list[Target]) -> None:
        self._targets = targets
        self._ours, self.theirs = socket.socketpair()
        self._servers: list[asyncio.Server] = []
        self._carrying: set[asyncio.Task[None] | None] = set()

    async def start(self) -> None:
        """Take over the sockets, which the box has sent, and serve them. Raises OSError."""
        self._ours.setblocking(False)
        descriptors = socket.recv_fds(self._ours, 1, len(self._targets))[1]
        listeners = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        for target, listener in zip(self._targets, listeners, strict=True):
            self._servers.append(await asyncio.start_server(partial(self._carry, target), sock=listener))

    async def stop(self) -> None:
        """Close all connections."""
        self._ours.close()
        self.theirs.close()
        for server in self._servers:
            server.close()
        ended = [task for task in self._carrying if task and task.cancel()]
        await asyncio.gather(*ended, return_exceptions=True)

    async def _carry(self, target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect to the host, and pass on what both sides send until both have ended."""
        writers, task = [writer], asyncio.current_task()
        try:
            if len(self._carrying) < MOST_CONNECTIONS:
                self._carrying.add(task)
                async with asyncio.timeout(CONNECT_S):
                    answers, there = await asyncio.open_connection(target.host, target.port)
                writers.append(there)
                async with asyncio.TaskGroup() as both:
                    both.create_task(_pump(reader, there))
                    both.create_task(_pump(answers, writer))
                for one in writers:
                    one.close()
                    await one.wait_closed()
        except* OSError:
            pass  # the program in the box sees a closed connection
        finally:
            self._carrying.discard(task)
            for one in writers:
                one.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()
    with suppress(OSError):  # the other side may have ended meanwhile
        writer.write_eof()
