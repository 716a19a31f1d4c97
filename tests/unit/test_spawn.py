"""The workflow `spawn`: trees of agents end, share a budget, and each sequence says which agent started it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_models import END, save_tokenizer

from headrace.consumers.algorithms.validate import find_sequence_fault
from headrace.envs.contract import Episode, Problem
from headrace.envs.registry import check_roles
from headrace.envs.split_sums import SplitSums
from headrace.envs.tools.outcomes import Limits
from headrace.envs.tools.solutions import SolutionExamples, SolvedCalls, play_solution
from headrace.envs.workflows.spawn import spawn
from headrace.infra.weights.policy_files import Tokenizer
from headrace.producers.engines.contract import Generation
from headrace.producers.rollout.play.actor import EngineActor
from headrace.producers.rollout.play.engine_room import EngineRoom, EpisodeClock
from headrace.schemas.records import Sampling

WORLD = SplitSums(1)
SPLITS = "".join(f"@spawn {at}\n" for at in range(4))


class Solver:
    """An engine that plays the solutions of split sums; it fails if it gets more requests at once than it has room."""

    def __init__(self, tokenizer: Tokenizer, room: EngineRoom) -> None:
        self.tokenizer, self.room, self.read = tokenizer, room, list[str]()

    async def generate(self, _policy: str, ids: Sequence[int], _sampling: Sampling, **_more: Any) -> Generation:
        """See `Engine.generate`."""
        assert self.room.running <= self.room.places
        await asyncio.sleep(0)
        asked = re.findall(r"user\n(.*?)<\|im_end\|>", self.tokenizer.decode(ids, special_tokens=True), re.DOTALL)
        self.read.append(asked[-1])
        said = np.array(self.tokenizer.encode_plain(self.answer(asked) + END), np.int32)
        return Generation(said, np.zeros(len(said), np.float32), ((1, len(said)),), "stop")

    def answer(self, asked: Sequence[str]) -> str:
        """Return the answer to the messages of the user."""
        return WORLD.solve(WORLD.sub_problem(Problem("", ""), asked[0]))[len(asked) - 1]


class Nested(Solver):
    """Its first agent, and those that it starts, start four agents each."""

    def answer(self, asked: Sequence[str]) -> str:
        """Return calls first, and what the agents said after that."""
        return SPLITS if len(asked) == 1 else "done"


class Thinking(Solver):
    """Its agents think before they answer."""

    def answer(self, asked: Sequence[str]) -> str:
        """Return a thought and the answer."""
        return f"<think>so it is</think>\n\n{super().answer(asked)}"


def play(kind: type[Solver], folder: Path, *roles: str, **settings: Any) -> tuple[Episode, Solver]:
    tokenizer, room = save_tokenizer(folder), EngineRoom(1)
    engine: Any = kind(tokenizer, room)
    clock, sampling = EpisodeClock(60, room), Sampling(max_tokens=100, stop_ids=tokenizer.stop_ids)
    actors = {role: EngineActor(engine, "p", tokenizer, sampling, 1, None, clock) for role in roles or ("solver",)}
    problem = WORLD.sub_problem(Problem("", ""), "k3+5,6+7?")
    return asyncio.run(asyncio.wait_for(spawn(problem, WORLD, actors, calls="short", **settings), 60)), engine


def test_agents_start_others_and_read_their_answers(tmp_path: Path) -> None:
    episode, engine = play(Solver, tmp_path)

    assert sorted(engine.read) == ["= 8\n= 13\n", "k3+5,6+7?", "k3+5?", "k6+7?"]
    made = episode["solver"]
    assert (made.reward, made.parts["spawned"], made.parts["unanswered"]) == (1.0, 2, 0)
    assert [(one.agent_id, one.parent, one.reward) for one in made.sequences] == [
        ("main", -1, None),
        ("main.1", 0, None),
        ("main.2", 0, None),
    ]
    assert not any(find_sequence_fault(one, 9) for one in made.sequences)


def test_thoughts_of_an_agent_are_not_read_by_the_one_that_started_it(tmp_path: Path) -> None:
    class Thoughtful(SplitSums):
        def solve(self, problem: Problem) -> Sequence[str]:
            return [f"<think>so it is</think>\n{answer}" for answer in super().solve(problem)]

    _, engine = play(Thinking, tmp_path)
    assert "= 8\n= 13\n" in engine.read

    solved, problem = SolvedCalls(Thoughtful(1), Limits(), with_agents=True), WORLD.problem("train", 0)
    played = asyncio.run(play_solution(solved, problem))
    assert (played.fault, sum(map(int, played.turns[0].results))) == ("", int(problem.answer))


def test_four_agents_that_start_four_each_end_in_an_engine_of_one_place(tmp_path: Path) -> None:
    episode, _ = play(Nested, tmp_path, max_depth=2, budget_answers=0)

    made = episode["solver"]
    assert made.parts["spawned"] == 20
    assert made.parts["unknown_tools"] == 64, "those at the greatest depth cannot start any"
    assert made.parts["turns"] == 42
    places = {one.agent_id: at for at, one in enumerate(made.sequences)}
    assert len(places) == 21
    assert all(one.parent == places.get(one.agent_id.rpartition(".")[0], -1) for one in made.sequences)


@pytest.mark.parametrize("budget", [{"budget_answers": 7}, {"budget_tokens": 7 * len(SPLITS)}])
def test_all_agents_share_one_budget(tmp_path: Path, budget: dict[str, int]) -> None:
    episode, engine = play(Nested, tmp_path, max_depth=2, **budget)

    assert 7 <= len(engine.read) <= 28, "each agent that answers meanwhile may exceed tokens by one answer"
    assert episode["solver"].parts["unanswered"] >= 14


def test_one_answer_starts_no_more_agents_than_it_may(tmp_path: Path) -> None:
    episode, engine = play(Nested, tmp_path, max_children=3)

    assert episode["solver"].parts["refused"] == 1
    assert "= error: one answer may start 3 agents\n" in engine.read[-1]


def test_a_sub_agent_may_have_a_role_and_a_reward_of_its_own(tmp_path: Path) -> None:
    episode, _ = play(Solver, tmp_path, "solver", "sub", credit="agent")

    assert [one.reward for one in episode["sub"].sequences] == [1.0, 1.0]
    assert [one.parent for one in episode["sub"].sequences] == [-1, -1], "the one that started them has another role"
    assert len(episode["solver"].sequences) == 1
    with pytest.raises(ValueError, match="sub_problem"):
        asyncio.run(spawn(Problem("", ""), Bare(), {"a": EngineActor(*[None] * 7)}, credit="agent"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one is `sub`"):
        check_roles("spawn", ["a", "b"])


class Bare:
    name = "bare"

    def size(self, _split: str) -> None: ...

    def problem(self, _split: str, _index: int) -> Problem:
        return Problem("", "")

    def score(self, _problem: Problem, _text: str) -> float:
        return 0.0


def test_worked_solutions_of_a_tree_are_played_and_taught_agent_by_agent() -> None:
    solved = SolvedCalls(WORLD, Limits(), with_agents=True)
    played = asyncio.run(play_solution(solved, WORLD.problem("held_out", 0)))
    assert (played.reward, played.fault) == (1.0, "")
    examples = [SolutionExamples(solved, "short").example(index) for index in range(40)]
    assert {(len(one.prompt), "@spawn" in one.completion, "," in one.prompt[0]["content"]) for one in examples} == {  # type: ignore[index]
        (1, True, True),
        (3, False, True),
        (1, False, False),
    }


@pytest.mark.parametrize("most", [1, 4])
def test_held_out_sums_are_in_no_other_split_whatever_their_letter(most: int) -> None:
    world = SplitSums(3, most=most)
    held_out, train, warm_start = (
        {world.problem(split, index).text[1:] for index in range(300)} for split in ("held_out", "train", "warm_start")
    )
    assert held_out
    assert not held_out & (train | warm_start)
