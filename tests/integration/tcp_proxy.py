"""What stands between a client and a server: far away, or failing as a test says, by a cut, a black hole, errors."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Literal, Self

Mode = Literal["pass", "cut", "hole", "slow", "503"]
"""pass; cut: connections end at once; hole: bytes vanish and nothing comes back; slow: every piece waits; 503: an HTTP
error answers whatever is asked."""

SLOW_S = 0.2
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class TcpProxy:
    """Listens on a port of its own on loopback and passes bytes on to `target`, which may be set later."""

    def __init__(self, target: str = "") -> None:
        self.target = target
        self.mode: Mode = "pass"
        self.delay_s = 0.0
        """How long a piece is under way, each way; many are at once. It holds for connections that are opened later."""
        self.connections = 0
        """Opened by clients so far."""
        self.passed = {"up": 0, "down": 0}
        """Bytes to the server and to its clients so far."""
        self.before_passing: Callable[[], None] = lambda: None
        """Called with each piece counted and not yet passed on."""
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone would leave `accept` waiting
        self._listener.close()
        self._end_connections()

    @contextmanager
    def failing(self, mode: Mode) -> Iterator[None]:
        """Fail in that way inside the block. Connections do not outlive a change: bytes of theirs may be missing."""
        self._turn(mode)
        try:
            yield
        finally:
            self._turn("pass")

    def _turn(self, mode: Mode) -> None:
        self.mode = mode
        self._end_connections()

    def _end_connections(self) -> None:
        with self._lock:
            ending, self._open = self._open, set()
        for connection in ending:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        if self.mode == "cut":
            client.close()
            return
        host, _, port = self.target.rpartition(":")
        try:
            server = socket.create_connection((host, int(port or 0)), timeout=5)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        with self._lock:
            self._open |= {client, server}
        threading.Thread(target=self._pump, args=(server, client, False), daemon=True).start()
        self._pump(client, server, True)

    def _pump(self, source: socket.socket, sink: socket.socket, asks: bool) -> None:
        send = self._delayed(sink, self.delay_s) if self.delay_s else sink.sendall
        with suppress(OSError):
            while data := source.recv(65536):
                match self.mode:
                    case "hole":
                        continue
                    case "503" if asks:
                        source.sendall(BUSY)
                        break
                    case "slow":
                        time.sleep(SLOW_S)
                with self._lock:
                    self.passed["up" if asks else "down"] += len(data)
                self.before_passing()
                send(data)
        with self._lock:
            self._open -= {source, sink}
        for connection in (source, sink):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _delayed(self, sink: socket.socket, delay_s: float) -> Callable[[bytes], None]:
        """Return what takes pieces that arrive at the sink that much later, in their order."""
        under_way: SimpleQueue[tuple[float, bytes]] = SimpleQueue()

        def arrive() -> None:
            with suppress(OSError):
                while True:
                    due, data = under_way.get()
                    time.sleep(max(due - time.monotonic(), 0))
                    sink.sendall(data)

        threading.Thread(target=arrive, name="under-way", daemon=True).start()
        return lambda data: under_way.put((time.monotonic() + delay_s, data))
