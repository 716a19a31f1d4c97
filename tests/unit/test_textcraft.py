"""Crafting by recipes: exact bags, gold plans, and agents that share one inventory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from chat_models import save_tokenizer
from test_household import as_task
from test_spawn import Solver

from headrace.envs.contract import Problem, Split
from headrace.envs.registry import EnvironmentSettingsError, load_environment
from headrace.envs.tool_calls import ToolCall
from headrace.envs.tools.forms import parse_short_calls
from headrace.envs.tools.functions import read_tools, run_tool
from headrace.envs.tools.outcomes import Limits
from headrace.envs.tools.solutions import SolutionExamples, SolvedCalls, play_solution
from headrace.envs.tools.sub_agents import SPAWN
from headrace.envs.workflows.spawn import spawn
from headrace.envs.worlds.crafting import craft, find_bag, measure_depth, parse_bag
from headrace.envs.worlds.recipe_graph import TIERS
from headrace.envs.worlds.textcraft import TextCraft
from headrace.producers.rollout.play.actor import EngineActor
from headrace.producers.rollout.play.engine_room import EngineRoom, EpisodeClock
from headrace.schemas.records import Sampling

STATE: dict[str, Any] = {
    "recipes": {"plank": {"needs": {"#wood": 1}, "makes": 4}, "stool": {"needs": {"plank": 3, "nail": 2}, "makes": 1}},
    "tags": {"#wood": ["elm", "oak"]},
    "inventory": {"oak": 2, "elm": 1, "nail": 4},
    "is_tiny": False,
}


def fresh() -> dict[str, Any]:
    return json.loads(json.dumps(STATE))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("target", "ingredients", "told"),
    [
        ("4 plank", "1 oak", ""),
        ("8 plank", "1 oak, 1 elm", ""),
        ("8 plank", "1 oak", "not the ingredients of 8 plank"),
        ("4 plank", "1 oak, 1 elm", "not the ingredients of 4 plank"),
        ("4 plank", "1 oak, 1 nail", "not the ingredients of 4 plank"),
        ("12 plank", "3 elm", "not in the inventory: 3 elm"),
        ("2 plank", "1 oak", "the recipe makes 4 plank"),
        ("0 plank", "", "target is a number and one item"),
        ("1 oak", "1 elm", "there is no recipe for oak"),
        ("1 stool", "3 plank, 2 nail", "not in the inventory: 3 plank"),
        ("plank", "1 oak", "target is a number and one item"),
        ("4 plank, 1 stool", "1 oak", "target is a number and one item"),
        ("4 plank", "1 oak,", "such pairs with commas"),
        ("-4 plank", "1 oak", "target is a number and one item"),
    ],
)
def test_crafting_takes_exactly_the_ingredients_or_changes_nothing(target: str, ingredients: str, told: str) -> None:
    state = fresh()
    assert told in (answer := craft(state, target, ingredients))
    assert bool(answer) == (state == STATE)
    assert bool(told) == bool(answer)


def test_what_is_crafted_is_in_the_inventory_and_what_is_used_up_is_not() -> None:
    problem, world = Problem("", "", "1 stool", extra=fresh()), TextCraft(1)
    assert world.craft("4 plank", "1 oak", problem) == "ok"
    assert world.score(problem, "done").reward == 0
    assert world.craft("1 stool", "3 plank, 2 nail", problem) == "ok"
    assert json.loads(world.view_inventory(problem)) == {"oak": 1, "elm": 1, "nail": 2, "plank": 1, "stool": 1}
    assert world.craft("1 stool", "3 plank, 2 nail", problem).startswith("ERROR: not in the inventory: 3 plank")
    [plank, wood, oak] = json.loads(world.get_info("plank, #wood, oak", problem))
    assert plank["recipes"] == [{"ingredients": {"#wood": 1}, "result_count": 4}]
    assert (plank["depth"], plank["in_inventory"], wood["items"], oak["craftable"]) == (1, 1, ["elm", "oak"], False)
    assert world.score(problem, "done").reward == 1


@pytest.mark.parametrize("text", ["", "  ", "@view_inventory", "so\n@craft 1 a, 1 b", "<tool_call>{}</tool_call>",
                                  "<think>done</think>"])  # fmt: skip
def test_an_agent_that_never_ends_gets_nothing(text: str) -> None:
    assert TextCraft(1).score(Problem("", "", "1 oak", extra=fresh()), "done").reward == 1
    assert TextCraft(1).score(Problem("", "", "1 oak", extra=fresh()), text).reward == 0


def test_the_targets_of_a_sub_agent_are_the_items_that_its_task_names() -> None:
    world, problem = TextCraft(1), Problem("t", "", extra=fresh())
    assert find_bag("craft 8 plank; then 1 stool, 9 lives", STATE["recipes"]) == {"plank": 8, "stool": 1}
    assert world.sub_problem(problem, "8 plank and 1 stool").answer == "8 plank, 1 stool"
    nothing = world.sub_problem(problem, "help me")
    assert (nothing.answer, world.score(nothing, "done").reward) == ("", 0)


def play_gold(world: TextCraft, problem: Problem, root: Problem) -> float:
    """Carry out the worked solution of a problem, and those of its sub-agents, in one inventory."""
    tools = (*read_tools(world), SPAWN)
    shared = Problem(problem.task_id, problem.prompt, problem.answer, problem.tier, root.extra)
    answers = world.solve(problem)
    for answer in answers:
        for call in parse_short_calls(answer, tools):
            assert isinstance(call, ToolCall)
            if call.name == SPAWN.name:
                assert play_gold(world, world.sub_problem(problem, call.arguments["task"]), root) == 1
            else:
                told, _ = run_tool(world, shared, call.name, call.arguments)
                assert told not in ("no", "no recipe")
                assert "ERROR" not in told
    return world.score(shared, answers[-1]).reward


@pytest.mark.parametrize("spawns", [True, False])
@pytest.mark.parametrize("tier", TIERS)
def test_the_gold_plan_of_every_problem_reaches_its_target(tier: str, spawns: bool) -> None:
    world = TextCraft(3, tiers=[tier], spawns=spawns)
    for index in range(200):
        problem = as_task(world.problem("train", index))
        [item] = parse_bag(problem.answer) or {}
        assert measure_depth(problem.extra["recipes"], item) == int(tier[-1])
        assert world.score(problem, "done").reward == 0
        assert play_gold(world, as_task(problem), problem) == 1


def test_worked_solutions_are_played_in_one_inventory_and_taught_agent_by_agent() -> None:
    solved = SolvedCalls(TextCraft(1, tiers=["tiny2"]), Limits(), with_agents=True)
    played = asyncio.run(play_solution(solved, solved.environment.problem("train", 0)))
    assert (played.reward, played.fault) == (1, "")
    assert [turn.answer.partition(" ")[0] for turn in played.turns] == ["@get_info", "@spawn", "@craft", "done"]
    examples = [SolutionExamples(solved, "short").example(index) for index in range(40)]
    assert len({(len(one.prompt), one.completion.partition(" ")[0]) for one in examples}) == 6
    read = {message["content"] for one in examples for message in one.prompt[2::2]}  # type: ignore[index]
    assert "= ok\n" in read
    assert "= no\n" not in read


class Crafter(Solver):
    """An engine whose agents follow the worked solutions; some may stop too early."""

    world = TextCraft(1, tiers=["tiny2"])
    problem = world.problem("train", 0)
    lazy = ""
    """Agents whose prompt has this text say that they are done at once."""

    def answer(self, asked: Sequence[str]) -> str:
        """Return the answer of an agent after what it has read."""
        task = asked[0].partition("make ")[2].strip()
        if self.lazy and self.lazy in asked[0]:
            return "done"
        own = self.problem if task == self.problem.answer else self.world.sub_problem(self.problem, task)
        return self.world.solve(own)[len(asked) - 1]


def play(kind: type[Crafter], folder: Path) -> Any:
    tokenizer, room = save_tokenizer(folder), EngineRoom(1)
    engine: Any = kind(tokenizer, room)
    sampling = Sampling(max_tokens=100, stop_ids=tokenizer.stop_ids)
    actor = EngineActor(engine, "p", tokenizer, sampling, 1, None, EpisodeClock(60, room))
    actors = {"solver": actor, "sub": actor}
    return asyncio.run(asyncio.wait_for(spawn(kind.problem, kind.world, actors, calls="short", credit="agent"), 60))


def test_sub_agents_craft_in_the_inventory_of_the_one_that_started_them(tmp_path: Path) -> None:
    for _ in range(2):  # no episode leaves anything to the next one
        episode = play(Crafter, tmp_path)
        assert episode["solver"].reward == 1
        assert [one.reward for one in episode["sub"].sequences] == [1]


def test_each_agent_has_the_reward_of_its_own_targets(tmp_path: Path) -> None:
    class Lazy(Crafter):
        lazy = f"make {Crafter.world.solve(Crafter.problem)[1].removeprefix('@spawn ')}"

    episode = play(Lazy, tmp_path)
    assert (episode["solver"].reward, [one.reward for one in episode["sub"].sequences]) == (0, [0])

    class Careless(Crafter):
        lazy = f"make {Crafter.problem.answer}"

    episode = play(Careless, tmp_path)
    assert episode["solver"].reward == 0
    assert "sub" not in episode


def texts(draw: Random) -> Iterator[str]:
    while True:
        yield " ".join(draw.choices(["1", "2", "oak", "plank", ",", "#wood", "-1", "é🙂", "\n", "9" * 40, ""], k=4))


def test_no_text_raises_and_a_thousand_calls_keep_no_more_than_the_inventory() -> None:
    world, problem, some = TextCraft(1), Problem("", "", "1 stool", extra=fresh()), texts(Random(1))  # noqa: S311
    for _ in range(1000):
        for told in (world.craft(next(some), next(some), problem), world.get_info(next(some), problem)):
            assert told
        world.score(world.sub_problem(problem, next(some)), next(some))
    assert len(json.dumps(problem.extra)) < len(json.dumps(STATE)) + 20
    assert all(count >= 0 for count in problem.extra["inventory"].values())


@pytest.mark.parametrize("tier", TIERS)
def test_no_recipes_are_in_two_splits(tier: str) -> None:
    splits: tuple[Split, ...] = ("train", "held_out", "warm_start")
    world = TextCraft(1, tiers=[tier])
    keys = ("recipes", "tags")
    seen = [
        {json.dumps([world.problem(split, index).extra[key] for key in keys]) for index in range(120)}
        for split in splits
    ]
    assert not seen[0] & seen[1] | seen[0] & seen[2] | seen[1] & seen[2]
    assert TextCraft(2, tiers=[tier]).problem("held_out", 5) == world.problem("held_out", 5)


@pytest.mark.parametrize("settings", [{"tiers": ["x"]}, {"tiers": "tiny1"}, {"tiers": []}])
def test_settings_out_of_their_range_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(EnvironmentSettingsError, match="must be"):
        load_environment("textcraft", 1, settings)
