"""Episodes whose environment cannot be reached. Time is made up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from headrace.envs.contact import CONTACT
from headrace.envs.contract import Episode
from headrace.producers.rollout.pauses import Pauses
from headrace.producers.rollout.play.reachability import LONGEST_WAIT_S, MOST_TIMES, SAID_AFTER_S, Reachability
from headrace.schemas.records import Failure

AWAY = Failure(0, "unreachable", "ConnectionRefusedError: no", "own.py:5 in judge")
PLAYED: Episode = {}


class World:
    """A clock that goes on by what is slept, and an environment that is there from a time on."""

    def __init__(self, back_at_s: float = 0.0) -> None:
        self.now_s, self.back_at_s = 100.0, 100.0 + back_at_s
        self.tries: list[float] = []
        self.pauses = Pauses()
        self.reachability = Reachability(self.pauses, lambda: self.now_s, self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        assert self.now_s < 5000, "it waits for ever"
        await asyncio.sleep(0)

    async def play(self) -> Episode | Failure:
        self.tries.append(self.now_s)
        await asyncio.sleep(0)
        return PLAYED if self.now_s >= self.back_at_s else AWAY

    async def never(self) -> Episode | Failure:
        await asyncio.sleep(0)
        return AWAY


def played(world: World, *plays: Callable[[], Awaitable[Episode | Failure]]) -> list[Episode | Failure]:
    async def run() -> list[Episode | Failure]:
        return list(await asyncio.gather(*(world.reachability.play_when_reachable(play) for play in plays)))

    return asyncio.run(run())


def test_an_episode_is_played_again_until_its_environment_answers_with_longer_and_longer_pauses() -> None:
    world = World(back_at_s=20)
    assert played(world, world.play) == [PLAYED]
    pauses = [later - earlier for earlier, later in zip(world.tries, world.tries[1:], strict=False)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0]
    assert world.pauses.detail == ""


def test_while_it_is_away_one_at_a_time_tries_it_and_none_begins() -> None:
    world = World(back_at_s=60)
    at_once, most, failed = 0, 0, asyncio.Event()

    async def watched() -> Episode | Failure:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once if world.now_s < world.back_at_s else 0)
        ended = await world.play()
        at_once -= 1
        failed.set()
        return ended

    async def run() -> list[Episode | Failure]:
        first = asyncio.create_task(world.reachability.play_when_reachable(watched))
        await failed.wait()
        return list(await asyncio.gather(first, *(world.reachability.play_when_reachable(watched) for _ in range(20))))

    assert asyncio.run(run()) == [PLAYED] * 21
    assert most == 1


def test_all_go_on_as_soon_as_one_says_that_it_has_reached_it_however_that_one_ends() -> None:
    world = World(back_at_s=5)
    playing, over, begun = 0, asyncio.Event(), asyncio.Event()

    async def opened() -> Episode | Failure:
        nonlocal playing
        if await world.play() == AWAY:
            return AWAY
        CONTACT.get().note_reached()
        playing += 1
        if playing == 5:
            begun.set()
        await over.wait()
        return Failure(0, "environment")

    async def run() -> list[Episode | Failure]:
        together = asyncio.gather(*(world.reachability.play_when_reachable(opened) for _ in range(5)))
        async with asyncio.timeout(10):
            await begun.wait()
        over.set()
        return list(await together)

    assert asyncio.run(run()) == [Failure(0, "environment")] * 5
    assert world.pauses.detail == ""


def test_the_wait_is_reported_once_it_has_lasted_and_until_it_is_over() -> None:
    world = World(back_at_s=30)
    said: list[tuple[float, str]] = []

    async def watched() -> Episode | Failure:
        ended = await world.play()
        said.append((world.now_s, world.pauses.detail))
        return ended

    played(world, watched)
    assert all(not words for at_s, words in said if at_s - 100 < SAID_AFTER_S)
    assert said[-1][1] == "environment: ConnectionRefusedError: no at own.py:5 in judge"
    assert world.pauses.detail == ""
    assert not world.pauses.has_to_hold_tasks


def test_tasks_may_wait_for_their_environment_without_being_taken_for_stalled() -> None:
    pauses = Pauses()
    pauses.begin("environment", "away")
    assert pauses.has_to_hold_tasks


def test_an_episode_that_alone_cannot_reach_it_fails_after_some_times() -> None:
    world = World()
    tries = 0

    async def alone() -> Episode | Failure:
        nonlocal tries
        tries += 1
        return await world.never()

    async def run() -> Episode | Failure:
        waiting = asyncio.create_task(world.reachability.play_when_reachable(alone))
        while not waiting.done():
            await world.reachability.play_when_reachable(world.play)
        return await waiting

    ended = asyncio.run(run())
    assert (ended, tries) == (AWAY, MOST_TIMES)


def test_an_episode_waits_ten_minutes_at_most_so_that_another_may_be_tried() -> None:
    world = World()
    [ended] = played(world, world.never)
    assert ended == AWAY
    assert LONGEST_WAIT_S <= world.now_s - 100 < LONGEST_WAIT_S + 20


def test_an_episode_that_fails_otherwise_has_reached_it_unless_its_time_was_over() -> None:
    for reason, opens in (("error", True), ("time_limit", False)):
        world, failed = World(back_at_s=1000), Failure(0, reason)
        answers = iter([AWAY] * 4 + [failed])

        async def play(answers: Iterator[Episode | Failure] = answers) -> Episode | Failure:
            return next(answers)

        assert played(world, play) == [failed]
        assert (world.pauses.detail == "") is opens
