"""In which order requests are taken in, and how a wait ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from patience import PATIENCE_S

from headrace.producers.engines.served import request_gate
from headrace.producers.engines.served.admission import Admission
from headrace.producers.engines.served.request_gate import RequestGate


def can_stay() -> bool:
    return True


def test_requests_are_taken_in_as_they_came_those_that_were_under_way_first_and_none_over_the_limit() -> None:
    gate, taken = RequestGate(Admission(2)), list[str]()

    async def ask(name: str, *, goes_on: bool = False) -> None:
        assert await gate.wait_for_place(can_stay, None, goes_on=goes_on)
        taken.append(name)

    async def play() -> None:
        await ask("a")
        await ask("b")
        asking = [asyncio.create_task(ask(name)) for name in "cde"]
        await asyncio.sleep(0)
        asking.append(asyncio.create_task(ask("f", goes_on=True)))
        await asyncio.sleep(0)
        assert (gate.under_way, gate.held_back, taken) == (2, 4, ["a", "b"])
        gate.leave(goes_on=True)
        await ask("a again", goes_on=True)
        asking[1].cancel()
        for _ in range(4):
            asking.append(asyncio.create_task(ask("late")))  # comes before the one that is told
            gate.leave()
            await asyncio.sleep(0.001)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*asking[:5], return_exceptions=True)
        for one in asking[5:]:
            one.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    asyncio.run(play())
    assert taken == ["a", "b", "a again", "f", "c", "e", "late"]
    assert (gate.under_way, gate.held_back) == (2, 0)


def test_requests_that_are_held_back_are_taken_in_when_the_limit_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_gate, "TURN_S", 0.002)
    gate = RequestGate(Admission(1))

    async def play() -> list[bool]:
        asking = [asyncio.create_task(gate.wait_for_place(can_stay, None, goes_on=False)) for _ in range(3)]
        await asyncio.sleep(0)
        assert gate.held_back == 2
        gate.admission = Admission(3)
        return await asyncio.gather(*asking)

    assert asyncio.run(play()) == [True, True, True]


def leave_it() -> bool:
    return False


def lose_it() -> bool:
    raise LookupError("the version is gone")


@pytest.mark.parametrize(
    ("stays", "left_s", "ended"),
    [(can_stay, 0.003, "False"), (leave_it, None, "False"), (lose_it, None, "the version")],
)
def test_a_wait_ends_with_its_time_and_where_it_is_for_nothing_and_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, stays: Callable[[], bool], left_s: float | None, ended: str
) -> None:
    monkeypatch.setattr(request_gate, "TURN_S", 0.002)
    gate = RequestGate(Admission(1))
    is_held = []

    def look() -> bool:
        is_held.append(gate.held_back)
        return stays() if len(is_held) > 1 else True

    async def play() -> object:
        await gate.wait_for_place(can_stay, None, goes_on=False)
        end = None if left_s is None else time.monotonic() + left_s
        first = asyncio.create_task(gate.wait_for_place(look, end, goes_on=False))
        await asyncio.sleep(0)
        second = asyncio.create_task(gate.wait_for_place(can_stay, None, goes_on=False))
        async with asyncio.timeout(PATIENCE_S):
            [found] = await asyncio.gather(first, return_exceptions=True)
            gate.leave()
            assert await second
        return found

    assert str(asyncio.run(play())).startswith(ended)
    assert (is_held[0], gate.held_back, gate.under_way) == (1, 0, 1)
