"""Connections to a generation server that does not answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from headrace.producers.engines.served.server_api import HttpConnections, ServerAway


@pytest.fixture
def silent() -> Iterator[str]:
    """Take connections and answer nothing, as a frozen server does."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_a_request_under_way_when_its_server_is_given_up_is_one_whose_server_went_away(silent: str) -> None:
    connections = HttpConnections(silent)

    async def ask() -> None:
        asking = asyncio.ensure_future(connections.post_async("/generate", {}))
        await asyncio.sleep(0.05)  # until it is under way; if it is not yet, the same holds
        await asyncio.to_thread(connections.close)
        with pytest.raises(ServerAway, match="closed"):
            await asking
        with pytest.raises(ServerAway, match="closed"):
            await connections.post_async("/generate", {})

    asyncio.run(ask())


def test_a_request_that_is_cancelled_is_cancelled_and_nothing_else(silent: str) -> None:
    connections = HttpConnections(silent)

    async def ask() -> None:
        asking = asyncio.ensure_future(connections.post_async("/generate", {}))
        await asyncio.sleep(0.05)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(ask())
    connections.close()


def test_a_question_that_costs_nothing_waits_only_for_its_limit(silent: str) -> None:
    connections = HttpConnections(silent)
    with pytest.raises(ServerAway, match="ReadTimeout"):
        connections.call("GET", "/model_info", limit_s=0.05)
    connections.close()
    with pytest.raises(ServerAway, match="closed"):
        connections.call("GET", "/model_info")
