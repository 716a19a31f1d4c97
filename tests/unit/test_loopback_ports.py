from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from headrace.infra.embedded import loopback_ports
from headrace.infra.embedded.loopback_ports import HOST, draw_port, find_port_user, hold_port
from headrace.infra.embedded.server_process import PortTaken
from headrace.infra.embedded.store_server import EmbeddedStore


def test_a_held_port_goes_to_nobody_but_a_server_may_listen_on_it() -> None:
    with draw_port() as held:
        port = held.getsockname()[1]
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((HOST, port))
        with socket.create_server((HOST, port)) as server:  # with SO_REUSEADDR, as Java and Go do
            assert server.getsockname()[1] == port


def test_a_port_with_a_listener_is_not_held_and_its_user_is_named() -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            hold_port(port)
        assert find_port_user(port).startswith(f"process {os.getpid()} (")


def test_a_server_that_gets_no_port_blames_the_ports_and_not_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loopback_ports, "PORTS_BELOW_EPHEMERAL", 1)
    with draw_port() as held:
        port = held.getsockname()[1]
        with pytest.raises(
            PortTaken, match=f"gets no port: no port from {port} to {port} on .* seems to be free"
        ) as caught:
            EmbeddedStore(tmp_path).claim()
    assert "disk" not in str(caught.value)
