"""Loopback ports that a server keeps over restarts: drawn once, and held until the server has bound them."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

import psutil

HOST = "127.0.0.1"
PORTS_BELOW_EPHEMERAL = 12_000
"""Ports are drawn from this many just below the kernel's ephemeral range."""


def draw_port() -> socket.socket:
    """Find a free port and hold it: bound but not listening, so nobody else gets it, but the server may bind it.

    Ports come from below the ephemeral range. Inside it, any outgoing connection could take the port; even a client of
    the server could get it while the server is down, and then connect to itself.
    """
    ephemeral = _read_ephemeral_start()
    for _ in range(200):
        port = ephemeral - 1 - secrets.randbelow(PORTS_BELOW_EPHEMERAL)
        candidate = socket.socket()
        try:
            candidate.bind((HOST, port))  # without SO_REUSEADDR: two of us cannot draw the same port
        except OSError:
            candidate.close()
            continue
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # now the server may bind beside it
        return candidate
    begin = ephemeral - PORTS_BELOW_EPHEMERAL
    raise OSError(
        f"no port from {begin} to {ephemeral - 1} on {HOST} seems to be free: end processes that use these ports"
    )


def hold_port(port: int) -> socket.socket:
    """Hold a port that was drawn earlier. Raises OSError if it is in use."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections in TIME_WAIT do not count
    try:
        held.bind((HOST, port))
    except OSError:
        held.close()
        raise
    return held


def find_port_user(port: int) -> str:
    """Return the process that uses a port, as far as this user may see; listeners first."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.Error:
        return "another process"
    users = [c for c in connections if c.laddr and c.laddr.port == port and c.pid]
    users.sort(key=lambda connection: connection.status != psutil.CONN_LISTEN)
    for user in users:
        try:
            return f"process {user.pid} ({psutil.Process(user.pid).name()})"
        except psutil.Error:
            continue
    return "another process"


def _read_ephemeral_start() -> int:
    try:
        start = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        start = 32_768
    return start if start > PORTS_BELOW_EPHEMERAL + 1_024 else 32_768
