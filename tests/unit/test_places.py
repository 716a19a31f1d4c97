"""Episodes that wait for a place at a full server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.envs.contact import CONTACT, Contact
from headrace.envs.openenv import places
from headrace.envs.openenv.places import Full, Places
from headrace.infra.unreachable import OutOfTime


class Server:
    """A server with so many places, and the sessions that it began."""

    def __init__(self, free: int, slow_s: float = 0.0) -> None:
        self.free, self.slow_s, self.places = free, slow_s, Places()
        self.begun: list[int] = []
        self.refused: list[float] = []

    async def begin(self, number: int) -> int:
        if self.free <= 0:
            self.refused.append(asyncio.get_running_loop().time())
            raise Full("it is full")
        self.free -= 1
        await asyncio.sleep(self.slow_s)
        self.begun.append(number)
        return number

    async def play(self, number: int, lasts_s: float) -> None:
        await self.places.open(lambda: self.begin(number))
        await asyncio.sleep(lasts_s)
        self.free += 1
        self.places.note_closed()


class Heard(Contact):
    def __init__(self) -> None:
        self.full: list[str] = []

    def note_full(self, why: str) -> None:
        self.full.append(why)


def run(server: Server, play: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """Play within a time limit; return how long it took."""

    async def timed() -> float:
        began_s = asyncio.get_running_loop().time()
        async with asyncio.timeout(20):
            await play()
        assert not server.places._line
        return asyncio.get_running_loop().time() - began_s

    return asyncio.run(timed())


def test_places_are_given_in_the_order_of_the_waiting_as_soon_as_one_is_free_and_one_episode_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places, "FULL_LIMIT_S", 0.2)
    monkeypatch.setattr(places, "PAUSE_S", 60.0)
    server = Server(1)

    async def play() -> None:
        await asyncio.gather(*(server.play(number, 0.02) for number in range(20)))

    assert run(server, play) < 10, "an episode waited for its own pause, not for the place"
    assert server.begun == list(range(20)), "the last waited longer than the limit, but sessions were opened"
    assert len(server.refused) < 19 + 20 + 5, "each was refused once, and then one at a time tried"


def test_a_wait_without_any_session_of_the_worker_is_reported_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "PAUSE_S", 0.05)
    monkeypatch.setattr(places, "FULL_LIMIT_S", 0.4)
    monkeypatch.setattr(places, "SAID_AFTER_S", 0.2)
    server, heard = Server(0), Heard()

    async def play() -> None:
        CONTACT.set(heard)
        ended = await asyncio.gather(*(server.play(number, 0) for number in range(5)), return_exceptions=True)
        assert [str(one) for one in ended] == ["it is full for 0.4 s: let it serve more sessions"] * 5
        assert all(isinstance(one, OutOfTime) for one in ended)

    run(server, play)
    assert set(heard.full) == {"it is full"}


def test_an_own_session_that_lasts_makes_no_episode_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "FULL_LIMIT_S", 0.1)
    server, heard = Server(1), Heard()

    async def play() -> None:
        CONTACT.set(heard)
        await asyncio.gather(*(server.play(number, 0.5) for number in range(2)))

    run(server, play)
    assert (server.begun, heard.full) == ([0, 1], [])


def test_a_slow_start_and_one_that_is_cancelled_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "SLOW_S", 0.05)
    server = Server(0, slow_s=1.0)

    async def play() -> None:
        playing = [asyncio.create_task(server.play(number, 0)) for number in range(6)]
        await asyncio.sleep(0.02)
        for one in playing[:2]:
            one.cancel()
        server.free = 4
        await asyncio.gather(*playing[2:])

    assert run(server, play) < 3, "four starts of 1 s went on together"
    assert server.begun == [2, 3, 4, 5]
