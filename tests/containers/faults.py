"""What can befall a server or the way to it; each lasts as long as its context."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from servers import Server

LATENCY_S = 0.5


def cut(server: Server) -> Iterator[None]:
    """Every connection is closed, and new ones are refused."""
    server.link.cut()
    yield
    server.link.heal()


def late(server: Server) -> Iterator[None]:
    """Every answer comes half a second late."""
    server.link.delay(LATENCY_S)
    yield
    server.link.heal()


def swallowed(server: Server) -> Iterator[None]:
    """Nothing gets through and nobody says so."""
    server.link.swallow()
    yield
    server.link.heal()


def paused(server: Server) -> Iterator[None]:
    """The server's processes stand still."""
    server.container.pause()
    yield
    server.container.unpause()


def disconnected(server: Server) -> Iterator[None]:
    """The container leaves its network and comes back."""
    network = server.container.client.networks.get("bridge")
    network.disconnect(server.container, force=True)
    yield
    network.connect(server.container)


def killed(server: Server) -> Iterator[None]:
    """The server is killed and started again."""
    server.container.kill()
    yield
    server.container.start()


FAULTS: dict[str, Callable[[Server], AbstractContextManager[None]]] = {
    fault.__name__: contextmanager(fault) for fault in (cut, late, swallowed, paused, disconnected, killed)
}
