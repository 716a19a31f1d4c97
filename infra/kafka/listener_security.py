"""Finds out the security protocol of a Kafka listener over a socket.

librdkafka cannot say: a client without TLS or without a user only sees closed connections.
"""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import suppress
from dataclasses import dataclass

ASK_S = 2.0
LONGEST_ANSWER_BYTES = 1 << 16
SASL_HANDSHAKE = struct.pack(">hhihh", 17, 1, 1, -1, 0)
"""A request (KIP-43, KIP-152) without a mechanism: the answer lists the supported mechanisms."""


@dataclass(frozen=True, slots=True)
class Listener:
    """The security protocol of a listener."""

    has_tls: bool
    mechanisms: tuple[str, ...] | None
    """SASL mechanisms; empty if clients have no user, None if unknown."""

    def __str__(self) -> str:
        """Return its protocol by librdkafka's name, and its mechanisms."""
        protocol = name_protocol(has_tls=self.has_tls, has_sasl=bool(self.mechanisms))
        return f"{protocol} ({', '.join(self.mechanisms)})" if self.mechanisms else protocol

    def is_fit_for(self, protocol: str) -> bool:
        """Return whether a client with this `security.protocol` fits the listener."""
        if self.mechanisms is None:
            return protocol.endswith("SSL") == self.has_tls
        return protocol == name_protocol(has_tls=self.has_tls, has_sasl=bool(self.mechanisms))


def name_protocol(*, has_tls: bool, has_sasl: bool) -> str:
    """Return a value of `security.protocol`."""
    plain = "SSL" if has_tls else "PLAINTEXT"
    return f"SASL_{plain}" if has_sasl else plain


def look_at_listener(host: str, port: int) -> Listener | None:
    """Return the listener at an address; None if none answers, or not as Kafka."""
    try:
        with socket.create_connection((host, port), ASK_S) as plain, suppress(OSError):
            return Listener(has_tls=False, mechanisms=_ask_mechanisms(plain))
        with (
            socket.create_connection((host, port), ASK_S) as plain,
            _make_unverified_context().wrap_socket(plain, server_hostname=host) as secure,
        ):
            try:
                return Listener(has_tls=True, mechanisms=_ask_mechanisms(secure))
            except OSError:  # it may require client certificates
                return Listener(has_tls=True, mechanisms=None)
    except (OSError, ValueError):  # ValueError: a name that is no host name
        return None


def _make_unverified_context() -> ssl.SSLContext:
    """Return a TLS context without verification: nothing secret is sent, and the answer is only shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _ask_mechanisms(connected: socket.socket) -> tuple[str, ...]:
    """Return the SASL mechanisms. Raises OSError if the answer is not from Kafka."""
    connected.sendall(struct.pack(">i", len(SASL_HANDSHAKE)) + SASL_HANDSHAKE)
    size = struct.unpack(">i", _receive(connected, 4))[0]
    if not 10 <= size <= LONGEST_ANSWER_BYTES:
        raise ConnectionError("the answer is not from Kafka")
    answer = _receive(connected, size)
    (count,), at, found = struct.unpack_from(">i", answer, 6), 10, []
    try:
        for _ in range(count):
            (length,) = struct.unpack_from(">h", answer, at)
            found.append(answer[at + 2 : at + 2 + length].decode())
            at += 2 + length
    except (struct.error, ValueError) as error:
        raise ConnectionError("the answer is not from Kafka") from error
    return tuple(found)


def _receive(connected: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        if not (more := connected.recv(size - len(found))):
            raise ConnectionError("the server closed the connection")
        found += more
    return found
