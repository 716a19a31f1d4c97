"""Room in the engine: requests hold it, in the order in which they came, and nothing else does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_recipes import sums_recipe
from patience import PATIENCE_S
from test_episodes import TASK, Echo, FakeEngine, context, spec

from headrace.envs.contract import Actor, Environment, Episode, Problem, Score
from headrace.envs.isolation import IsolatedEnvironment
from headrace.envs.judging import score_answer
from headrace.envs.workflows.single_turn import single_turn
from headrace.infra.recipe.settings import EPISODES_PER_REQUEST
from headrace.producers.engines.contract import Generation
from headrace.producers.rollout import worker
from headrace.producers.rollout.intake.slots import Slots
from headrace.producers.rollout.play.engine_room import EngineRoom, EpisodeClock, wait_for_turn
from headrace.producers.rollout.play.episodes import (
    RolloutContext,
    WorkflowSpec,
    _build_actors,
    play_episode,
    play_group,
)
from headrace.schemas.records import Failure, Task, TrajectoryGroup


class Counting(FakeEngine):
    """Takes two turns of the event loop for a request; remembers the most requests at once, and whose they were."""

    def __init__(self, fail: Exception | None = None) -> None:
        super().__init__(fail=fail)
        self.now = self.most = 0

    async def generate(self, *given: Any, **more: Any) -> Generation:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(0)
            return await super().generate(*given, **more)
        finally:
            self.now -= 1


def in_room(engine: FakeEngine, places: int) -> RolloutContext:
    return replace(context(engine), room=EngineRoom(places))


async def play(task: Task, a_spec: WorkflowSpec, a_context: RolloutContext) -> TrajectoryGroup:
    at_once = task.n_asked
    groups = await play_group(task, a_spec, a_context, asyncio.Event(), lambda *_: None, at_once)
    return groups["p"]


async def turn(times: int = 3) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


@given(st.integers(1, 3), st.lists(st.tuples(st.sampled_from(["ask", "ask", "leave", "cancel"]), st.integers(0, 9))))
def test_requests_never_exceed_the_room_and_no_place_is_ever_lost(places: int, acts: list[tuple[str, int]]) -> None:
    async def run() -> None:
        room = EngineRoom(places)
        asked: dict[int, tuple[asyncio.Task[None], asyncio.Event]] = {}

        async def request(episode: int, may_leave: asyncio.Event) -> None:
            await room.enter(episode)
            try:
                await may_leave.wait()
            finally:
                room.leave()

        for number, (act, which) in enumerate(acts):
            if act == "ask":
                may_leave = asyncio.Event()
                asked[number] = asyncio.create_task(request(which, may_leave)), may_leave
            elif asked:
                chosen, may_leave = asked.pop(list(asked)[which % len(asked)])
                may_leave.set() if act == "leave" else chosen.cancel()
            await turn(which if which < 4 else 3 * len(acts))  # few turns: the next act comes amid what this one causes
            assert room.running <= places
            if which >= 4:
                assert room.running == min(places, sum(not one.done() for one, _ in asked.values()))
        for _, may_leave in asked.values():
            may_leave.set()
        await turn(3 * len(acts))
        assert (room.running, room.waiting, room.count_free(0)) == (0, 0, places)

    asyncio.run(run())


def test_a_request_that_is_cancelled_as_it_gets_a_place_gives_the_place_to_the_next() -> None:
    async def run() -> None:
        room = EngineRoom(1)
        await room.enter()
        first, second = (asyncio.create_task(room.enter()) for _ in range(2))
        await turn()
        room.leave()
        first.cancel()
        await turn()
        assert (first.cancelled(), second.done(), room.running, room.waiting) == (True, True, 1, 0)

    asyncio.run(run())


def test_an_episode_that_waits_for_a_tool_holds_no_room_and_lets_other_tasks_begin() -> None:
    async def run() -> None:
        tool, at_tool = asyncio.Event(), list[str]()

        async def use_tool(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
            await actors["solver"].generate([1])
            at_tool.append(problem.task_id)
            await tool.wait()
            return await single_turn(problem, env, actors)

        a_context = in_room(Counting(), 1)
        slots, playing = Slots(5, a_context.room), list[asyncio.Task[TrajectoryGroup]]()
        for _ in range(2):
            assert slots.reserve(2) is not None
            assert slots.reserve(2) is None, "its episodes will ask for all the room at once"
            playing.append(asyncio.create_task(play(replace(TASK, n_asked=2), spec(use_tool), a_context)))
            await turn(2)
            assert slots.reserve(2) is None, "one has the room, and one waits for it"
            await turn(20)
        assert (len(at_tool), a_context.room.count_free(slots.taken)) == (4, 1)
        assert slots.reserve(2) is None, "one slot is left"
        tool.set()
        assert [len(group.trajectories) for group in await asyncio.gather(*playing)] == [2, 2]

    asyncio.run(run())


async def spawn_agents(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
    """Let an agent ask, wait for four agents that each wait for four more, and ask again."""

    async def be_agent(depth: int) -> None:
        await actors["solver"].generate([1])
        if depth:
            await asyncio.gather(*(be_agent(depth - 1) for _ in range(4)))
            await actors["solver"].generate([1])

    await be_agent(2)
    return await single_turn(problem, env, actors)


def test_agents_that_wait_for_agents_of_their_own_end_also_where_the_engine_has_room_for_one() -> None:
    engine = Counting()
    group = asyncio.run(play(TASK, spec(spawn_agents), in_room(engine, 1)))
    assert (len(group.trajectories), engine.most, len(engine.calls)) == (3, 1, 3 * (2 + 4 * 2 + 16 + 1))


def test_free_room_goes_to_the_episode_that_began_first_of_training_and_evaluations() -> None:
    async def run() -> None:
        room, let_in = EngineRoom(1), list[str]()
        clocks = {name: EpisodeClock(1.0, room) for name in ("training", "evaluation", "later training")}

        async def ask(name: str) -> None:
            async with clocks[name].hold_place():
                let_in.append(name)
                await turn()

        asked = ["later training", "evaluation", "training", "later training", "evaluation", "training"]
        asking = [asyncio.create_task(ask(name)) for name in asked]
        await turn(1)
        asking[2].cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await asyncio.gather(*map(ask, ("evaluation", "training")))
        assert let_in == [
            "later training",  # nobody else had asked
            *("training", "evaluation", "evaluation", "later training"),
            *("evaluation", "training"),
        ]

    asyncio.run(run())


def test_the_time_of_an_episode_stands_only_while_it_waits_for_room_and_for_nothing_else() -> None:
    async def run() -> None:
        room, now_s = EngineRoom(1), 0.0
        clock = EpisodeClock(10.0, room, lambda: now_s)

        async def ask(may_end: asyncio.Event) -> None:
            async with clock.hold_place():
                await may_end.wait()

        async def count_after(seconds: float) -> float:
            nonlocal now_s
            await turn()
            now_s += seconds
            return clock.count_left_s()

        assert await count_after(1.0) == 9.0, "a tool"
        await room.enter()
        first, second = asyncio.Event(), asyncio.Event()
        asking = [asyncio.create_task(ask(event)) for event in (first, second)]
        assert await count_after(100.0) == 9.0, "both wait"
        room.leave()
        assert await count_after(2.0) == 7.0, "one is in the engine, and one waits"
        first.set()
        assert await count_after(2.0) == 5.0
        second.set()
        assert await count_after(7.0) == -2.0, "a tool again"
        await asyncio.gather(*asking)

    asyncio.run(run())


def test_no_episode_is_ended_while_it_waits_for_room_and_then_it_has_all_its_time() -> None:
    async def run() -> None:
        engine = FakeEngine()
        a_context, a_spec = in_room(engine, 1), spec(limit_s=0.01)
        now_s = 0.0
        clock = EpisodeClock(a_spec.episode_limit_s, a_context.room, lambda: now_s)
        actors = _build_actors(TASK, 0, a_spec, a_context, clock)
        await a_context.room.enter()
        playing = asyncio.create_task(play_episode(0, Problem("t", "12"), a_spec, actors, clock))
        await turn()
        now_s = 1000.0
        await asyncio.sleep(0.1)
        assert not playing.done()
        a_context.room.leave()
        ended = await playing
        assert not isinstance(ended, Failure)
        assert [call["deadline_s"] for call in engine.calls] == [0.01]

    asyncio.run(run())


def test_scores_that_wait_for_their_turn_hold_up_further_tasks_and_stop_the_clocks_of_their_episodes(
    tmp_path: Path,
) -> None:
    class Gated(Echo):
        def score(self, problem: Problem, text: str) -> Score:
            while not (tmp_path / "open").exists():
                time.sleep(0.01)
            return Score(1.0)

    async def score(problem: Problem, env: Environment, _actors: object) -> Episode:
        assert (await score_answer(env, problem, "")).reward == 1
        return {}

    async def run() -> None:
        now_s, room = 0.0, EngineRoom(3)
        isolated = IsolatedEnvironment(Gated(), scores=1, limit_s=PATIENCE_S, waiting=wait_for_turn)
        clocks = [EpisodeClock(10.0, room, lambda: now_s) for _ in range(3)]
        a_spec = replace(spec(score), environment=isolated)
        scoring = [asyncio.create_task(play_episode(0, Problem("t", "12"), a_spec, {}, clock)) for clock in clocks]
        async with asyncio.timeout(PATIENCE_S):
            while room.held_up != 2 or not isolated.pool.has_ready:  # noqa: ASYNC110 - another thread
                await asyncio.sleep(0.01)
        now_s = 8.0
        assert [clock.count_left_s() for clock in clocks] == [2.0, 10.0, 10.0]
        assert room.count_free(3) == 1
        (tmp_path / "open").touch()
        assert await asyncio.gather(*scoring) == [{}] * 3
        assert room.count_free(0) == 3

    asyncio.run(run())


@pytest.mark.parametrize(
    ("asked", "wanted"), [((256, 0, None), (256, 2048)), ((256, 0, 4), (4, 32)), ((64, 9, 4), (4, 9))]
)
def test_a_worker_runs_so_many_times_its_requests_of_episodes_unless_the_recipe_has_a_number(
    monkeypatch: pytest.MonkeyPatch, asked: tuple[int, int, int | None], wanted: tuple[int, int]
) -> None:
    assert EPISODES_PER_REQUEST == 8
    concurrency, episodes, given_concurrency = asked
    recipe = sums_recipe(rollout={"concurrency": concurrency, "episodes": episodes})
    built: list[Any] = []
    for name in ("check_sources", "build_workflow_spec", "rollout_plug_ins"):
        monkeypatch.setattr(worker, name, lambda *_: None)
    monkeypatch.setattr(worker, "RolloutWorker", lambda _run, options, _spec: built.append(options))
    run = cast("Any", type("Run", (), {"recipe": recipe, "plug_ins": None}))
    worker.build(run, None, "w1", "", given_concurrency)
    assert (built[0].concurrency, built[0].episodes) == wanted
