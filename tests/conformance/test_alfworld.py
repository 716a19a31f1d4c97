"""Headrace's own household tasks beside ALFWorld's engine: the same houses, commands and words.

Not in the gate: the engine is built with cmake. `make test-alfworld` installs it and compares.
"""

from __future__ import annotations

import asyncio
import re
import sys
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest
from install_alfworld import ENGINE

from headrace.envs.registry import load_environment
from headrace.envs.worlds.floor_plans import FAMILIES, draw_house
from headrace.envs.worlds.house import NOTHING_HAPPENS, House
from headrace.envs.worlds.solutions import WorldSolutions
from headrace.envs.worlds.walkthrough import walk

pytestmark = [pytest.mark.alfworld, pytest.mark.filterwarnings("ignore")]
ROOT = Path(__file__).parents[2]
HOUSES = [(family, seed) for family in FAMILIES for seed in range(2)]


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find the engine while a test of it runs, and only then."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ENGINE), str(ROOT / "examples")])


def build(family: str, seed: int, folder: Path, *, plans: bool = False) -> tuple[House, Any]:
    """Return a house in both engines."""
    from headrace.envs.worlds.alfworld_games import SUFFIX, Game, read_logic
    from headrace.envs.worlds.game_files import write_game

    state = draw_house(Random(f"{family} {seed}"), "room", family)  # noqa: S311
    path = folder / f"game{SUFFIX}"
    path.write_text(write_game(state, *read_logic()))
    return House(deepcopy(state)), Game(path, plans=plans)


def without_order(text: str) -> str:
    """Return what is read with the things that are seen in their alphabetical order."""
    found = re.fullmatch(r"(.*you see )(.*)(\..*)", text.strip(), re.DOTALL)
    if found is None or found[2] == "nothing":
        return text.strip()
    return found[1] + "; ".join(sorted(re.split(r", and |, ", found[2]))) + found[3]


def act_in_both(ours: House, theirs: Any, command: str) -> None:
    # The engine lets one slice what is in a closed receptacle; here nothing in it can be reached.
    unseen = {name for name, place in ours.things.items() if place and not ours.receptacles[place]}
    theirs_now = [
        one for one in theirs.commands if not (one.startswith("slice") and one[6:].partition(" with")[0] in unseen)
    ]
    assert sorted(ours.list_commands()) == theirs_now
    told = theirs.act(command)
    assert without_order(ours.act(command)) == without_order(told) or command == "help"
    assert ours.is_won() == theirs.is_won


@pytest.mark.parametrize(("family", "seed"), HOUSES)
def test_both_engines_say_the_same_on_the_planners_way_and_on_ours(family: str, seed: int, tmp_path: Path) -> None:
    ours, theirs = build(family, seed, tmp_path, plans=True)
    assert theirs.plan
    for command in theirs.plan:
        act_in_both(ours, theirs, command)
    assert ours.is_won()
    ours, theirs = build(family, seed, tmp_path)
    for command in walk(ours):
        act_in_both(ours, theirs, command)
    assert theirs.is_won


@pytest.mark.parametrize(("family", "seed"), HOUSES)
def test_both_engines_say_the_same_wherever_one_goes(family: str, seed: int, tmp_path: Path) -> None:
    ours, theirs = build(family, seed, tmp_path)
    draw = Random(seed)  # noqa: S311
    for _ in range(40):
        if ours.is_won():
            break
        # half of the time a command other than `go to`, of which there are many
        near = [command for command in ours.list_commands() if not command.startswith("go to")]
        act_in_both(ours, theirs, draw.choice(near if draw.random() < 0.5 else ours.list_commands()))
    assert without_order(theirs.act("fly to the moon")) == NOTHING_HAPPENS


def test_written_games_are_played_by_the_environment(tmp_path: Path) -> None:
    import alfworld_games  # type: ignore[import-not-found]  # examples/alfworld_games.py

    written = alfworld_games.write_games(tmp_path / "train", 3, 1, tier="room")
    assert len(written) == 3
    world = load_environment("alfworld", 1, {"engine": "alfworld", "games": str(tmp_path)})
    assert (world.size("train"), world.size("held_out"), world.size("warm_start")) == (2, 0, 1)
    problem = world.problem("train", 0)
    assert "Welcome" not in problem.text
    assert "Your task is to: " in problem.text
    assert "AVAILABLE ACTIONS: " in problem.text
    played = asyncio.run(WorldSolutions(world, {}).play(problem))
    assert (played.reward, played.fault) == (1.0, "")
    assert WorldSolutions(world, {}).example(0).completion
