"""Household tasks: the commands of ALFWorld, what they make to read, and goals that a walkthrough reaches."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.envs.contract import Problem, Split
from headrace.envs.payload import problem_from_json, problem_to_json
from headrace.envs.registry import EnvironmentSettingsError, load_environment
from headrace.envs.worlds import alfworld_games
from headrace.envs.worlds.floor_plans import FAMILIES, TIERS
from headrace.envs.worlds.house import NOTHING_HAPPENS, House
from headrace.envs.worlds.household import OVER, Household
from headrace.infra.errors import UsageError


def as_task(problem: Problem) -> Problem:
    """Return a problem as a worker gets it: keys of its state in alphabetical order."""
    return problem_from_json(problem_to_json(problem))


def kitchen(family: str = "heat", thing: str = "mug", place: str = "cabinet") -> House:
    receptacles = {
        "cabinet 1": False,
        "countertop 1": True,
        "fridge 1": False,
        "microwave 1": False,
        "sinkbasin 1": True,
    }
    things = {"mug 1": "countertop 1", "mug 2": "fridge 1", "apple 1": "countertop 1", "knife 1": "countertop 1"}
    goal = {"family": family, "thing": thing, "place": place, "task": ""}
    return House({"receptacles": receptacles, "things": things, "marks": {}, "at": "", "goal": goal})


TRANSCRIPT = """
look > You are in the middle of a room. Looking quickly around you, you see nothing.
inventory > You are not carrying anything.
take mug 1 from countertop 1 > Nothing happens.
go to fridge 1 > You arrive at fridge 1. The fridge 1 is closed.
take mug 2 from fridge 1 > Nothing happens.
open fridge 1 > You open the fridge 1. The fridge 1 is open. In it, you see a mug 2.
close fridge 1 > You close the fridge 1.
go to fridge 1 > Nothing happens.
go to countertop 1 > You arrive at countertop 1. On the countertop 1, you see a apple 1, a knife 1, and a mug 1.
look > You are facing the countertop 1. Next to it, you see nothing.
take knife 1 from countertop 1 > You pick up the knife 1 from the countertop 1.
inventory > You are carrying: a knife 1.
slice apple 1 with knife 1 > You sliced the apple 1 with the knife 1.
examine apple 1 > Nothing happens.
take apple 1 from countertop 1 > Nothing happens.
move knife 1 to countertop 1 > You move the knife 1 to the countertop 1.
take apple 1 from countertop 1 > You pick up the apple 1 from the countertop 1.
examine apple 1 > This is a sliced apple 1.
move apple 1 to countertop 1 > You move the apple 1 to the countertop 1.
take mug 1 from countertop 1 > You pick up the mug 1 from the countertop 1.
examine mug 1 > There's nothing special about mug 1.
heat mug 1 with microwave 1 > Nothing happens.
go to sinkbasin 1 > You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing.
clean mug 1 with sinkbasin 1 > You clean the mug 1 using the sinkbasin 1.
go to fridge 1 > You arrive at fridge 1. The fridge 1 is closed.
cool mug 1 with fridge 1 > You cool the mug 1 using the fridge 1.
examine mug 1 > This is a cool and clean mug 1.
go to microwave 1 > You arrive at microwave 1. The microwave 1 is closed.
move mug 1 to microwave 1 > Nothing happens.
heat mug 1 with microwave 1 > You heat the mug 1 using the microwave 1.
examine mug 1 > This is a hot and clean mug 1.
examine microwave 1 > The microwave 1 is closed.
fly to the moon > Nothing happens."""


def test_every_command_says_what_alfworld_says() -> None:
    house = kitchen()
    assert house.enter().endswith("you see a cabinet 1, a countertop 1, a fridge 1, a microwave 1, and a sinkbasin 1.")
    for line in TRANSCRIPT.strip().splitlines():
        command, _, told = line.partition(" > ")
        assert house.act(command) == told
    assert not house.is_won()
    for command in ("go to cabinet 1", "open cabinet 1", "move mug 1 to cabinet 1"):
        house.act(command)
    assert house.is_won()


def test_goals_ask_for_the_thing_itself_in_its_place_and_state() -> None:
    cold = kitchen()
    cold.things["mug 1"] = "cabinet 1"
    assert not cold.is_won(), "it is not hot"
    two = kitchen("pick_two")
    two.things.update({"mug 1": "cabinet 1"})
    assert not two.is_won()
    two.things["mug 2"] = "cabinet 1"
    assert two.is_won()
    look = kitchen("look", place="desklamp")
    look.things.update({"desklamp 1": "countertop 1", "mug 1": ""})
    look.act("go to countertop 1")
    assert look.act("use desklamp 1") == "You turn on the desklamp 1."
    assert look.is_won()
    look.act("go to fridge 1")
    assert not look.is_won(), "the light is elsewhere"


@pytest.mark.parametrize(("tier", "family"), [("tiny", "pick"), *((t, f) for t in TIERS[1:] for f in FAMILIES)])
def test_the_walkthrough_of_every_problem_reaches_its_goal_by_possible_commands(tier: str, family: str) -> None:
    world = Household(3, tiers=[tier], families=[family])
    for index in range(200):
        problem = as_task(world.problem("train", index))
        house = House(dict(problem.extra))
        assert not house.is_won()
        answers, earned = world.solve(problem), 0.0
        for at, answer in enumerate(answers, 1):
            step = world.act(problem, answer)
            earned += step.reward or 0.0
            assert step.done == (at == len(answers))
            assert not step.observation.startswith(NOTHING_HAPPENS)
        assert earned == 1
        assert len(answers) <= (7 if tier == "tiny" else 12)
    assert world.act(problem, "look").observation == OVER


@pytest.mark.parametrize("tier", TIERS)
def test_no_house_is_in_two_splits_and_held_out_ones_are_the_same_for_every_seed(tier: str) -> None:
    splits: tuple[Split, ...] = ("train", "held_out", "warm_start")
    worlds = [Household(seed, tiers=[tier]) for seed in (1, 2)]
    seen = [{json.dumps(worlds[0].problem(split, index).extra) for index in range(120)} for split in splits]
    assert all(len(one) > 100 for one in seen)
    assert not seen[0] & seen[1] | seen[0] & seen[2] | seen[1] & seen[2]
    assert worlds[0].problem("held_out", 5) == worlds[1].problem("held_out", 5)
    assert worlds[0].problem("train", 5) != worlds[1].problem("train", 5)


def test_the_tiny_tier_lists_six_commands_at_most_and_takes_their_numbers() -> None:
    world = Household(1, tiers=["tiny"])
    assert as_task(world.problem("train", 0)).text == "wax to jar\njar1 sofa2 tub3\n"
    for index in range(200):
        problem = as_task(world.problem("train", index))
        length, shown = len(problem.text), problem.text
        for answer in world.solve(problem):
            assert f"{answer} " in shown.replace("\n", " ") + " "
            shown = world.act(problem, answer).observation
            assert 1 < len(re.findall(r"[1-7]", shown)) <= 6
            length += len(answer) + len(shown) + 2
        assert length < 240, "an episode fits into a context of 256 characters"


def test_the_same_action_three_times_in_a_row_fails_after_the_third_step() -> None:
    world = Household(1)
    problem = as_task(world.problem("train", 0))
    assert [world.act(problem, "look").done for _ in range(4)] == [False, False, False, True]
    problem = as_task(world.problem("train", 0))
    actions = ["look", "inventory", "help", "look", "look", "look"]
    assert [world.act(problem, action).done for action in actions] == [False] * 5 + [True]


def test_older_commands_and_odd_blanks_are_understood() -> None:
    house = kitchen("pick")
    state: dict[str, Any] = {**house._state, "tier": "house", "last": "", "equal": 0, "steps": 0, "is_over": False}
    problem, world = Problem("", "", extra=state), Household(1)
    for action in ("go to countertop 1", " take  mug 1 from countertop 1 ", "go to cabinet 1", "open cabinet 1"):
        assert not world.act(problem, action).observation.startswith(NOTHING_HAPPENS)
    assert world.act(problem, "put mug 1 in/on cabinet 1").reward == 1


def test_no_text_raises_and_an_episode_of_a_thousand_steps_keeps_no_more_than_its_house() -> None:
    world, draw = Household(1, tiers=["house"]), Random(1)  # noqa: S311
    problem = as_task(world.problem("train", 7))
    size, began = len(json.dumps(problem.extra)), time.process_time()
    for number in range(1000):
        words = draw.choices(["go", "to", "take", "mug 1", "cabinet 1", "from", "\n", "ACTION:", "é🙂", "7", ""], k=3)
        commands = House(dict(problem.extra)).list_commands()
        step = world.act(problem, draw.choice(commands) if number % 2 else " ".join(words))
        assert number % 2 == 0 or step.done or not step.observation.startswith(NOTHING_HAPPENS)
        problem.extra["is_over"] = False  # type: ignore[index]
    assert time.process_time() - began < 2, "a step takes some microseconds"
    assert len(json.dumps(problem.extra)) < size + 600


def test_prompts_have_an_example_and_the_actions_unless_they_are_switched_off() -> None:
    whole = load_environment("alfworld", 1, {"tiers": ["room"], "families": ["cool"]}).problem("train", 0).text
    assert "An example:" in whole
    assert whole.count("Your task is to: ") == 2
    bare = load_environment("alfworld", 1, {"shows_example": False, "lists_actions": False}).problem("train", 0).text
    assert "AVAILABLE ACTIONS" in whole
    assert "AVAILABLE ACTIONS" not in bare
    assert "An example:" not in bare


@pytest.mark.parametrize(
    "settings",
    [{"tiers": ["huge"]}, {"tiers": []}, {"tiers": "tiny"}, {"families": ["cook"]}, {"engine": "alfworld"},
     {"games": "x"}, {"engine": "other"}, {"engine": "alfworld", "games": "nowhere"}],
)  # fmt: skip
def test_settings_out_of_their_range_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(EnvironmentSettingsError, match="must be"):
        load_environment("alfworld", 1, settings)


def test_a_text_cannot_be_scored() -> None:
    with pytest.raises(UsageError, match='use workflow = "world"'):
        Household(1).score(Problem("", ""), "look")


def test_game_files_are_divided_among_the_splits_and_a_warm_start_has_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alfworld_games, "_see_first", lambda _: ("a room", ["look"]))  # without the engine
    folders = {"train": 100, "valid_seen": 3, "more": 100}
    for folder, count in folders.items():
        (tmp_path / folder).mkdir()
        for number in range(count):
            (tmp_path / folder / f"{number}{alfworld_games.SUFFIX}").touch()
    world = load_environment("alfworld", 1, {"engine": "alfworld", "games": str(tmp_path)})
    splits: tuple[Split, ...] = ("train", "held_out", "warm_start")
    sizes = {split: world.size(split) or 0 for split in splits}
    names = {split: {world.problem(split, index).task_id for index in range(sizes[split])} for split in splits}
    assert sum(sizes.values()) == len(set().union(*names.values())) == 203
    assert (sizes["held_out"], sizes["warm_start"]) == (3 + 10, 24)
    assert {name.partition("/")[0] for name in names["held_out"]} == {"valid_seen", "more"}
    assert world.problem("warm_start", 24 + 3) == world.problem("warm_start", 3)
    for path in tmp_path.rglob("*.tw-pddl"):
        if path.parent.name != "valid_seen":
            path.unlink()
    few = load_environment("alfworld", 1, {"engine": "alfworld", "games": str(tmp_path)})
    with pytest.raises(UsageError, match="has no game of the split warm_start: add games, or remove"):
        few.problem("warm_start", 0)
