"""Household tasks in text, with the commands of ALFWorld (arXiv 2010.03768): find things, change them, put them away.

The reward is 1 for a goal that is reached, at the end. The tier `tiny` is for models of 100,000 parameters: it shows
the possible commands as a numbered list, and a number is an answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from copy import deepcopy
from random import Random
from typing import Any

from headrace.envs.contract import Problem, Score, Split
from headrace.envs.split_shares import is_of_split
from headrace.envs.worlds.contract import Step
from headrace.envs.worlds.drawn import DrawnByTier, check_choice
from headrace.envs.worlds.floor_plans import FAMILIES, TIERS, draw_house
from headrace.envs.worlds.house import House, kind_of
from headrace.envs.worlds.walkthrough import walk
from headrace.infra.errors import UsageError

TINY = TIERS[0]
RULES = """\
You do a task in a house. In each turn you read what you see, and give one of the available actions. Think first, then \
end your answer with the action, as in this line:
ACTION: look"""
SAME_ANSWERS, FREE_STEPS = 3, 3
"""So many equal actions in a row are a failure, but not within so many first steps."""
OVER = "The task is over."
_OLDER_MOVE = re.compile(r"^put (.+) (?:in|on|in/on) (.+)$")


class Household(DrawnByTier):
    """Problems without end.

    Args:
        seed: Of the problems; held-out ones are the same for every seed.
        tiers: `tiny`, `room` and `house`, drawn alike.
        families: `pick`, `look`, `clean`, `heat`, `cool` and `pick_two`, drawn alike; the tier `tiny` has only `pick`.
        shows_example: Whether a prompt has the walkthrough of another task of its family; not in the tier `tiny`.
        lists_actions: Whether the available actions are told in each turn; the tier `tiny` always does.

    Raises ValueError for an unknown tier or family.
    """

    name = "alfworld"
    all_tiers = TIERS
    stream = "household"

    def __init__(
        self,
        seed: int,
        tiers: Sequence[str] = ("house",),
        families: Sequence[str] = FAMILIES,
        shows_example: bool = True,
        lists_actions: bool = True,
    ) -> None:
        super().__init__(seed, tiers)
        check_choice("families", families, FAMILIES)
        self._families = tuple(families)
        self._shows_example, self._lists_actions = shows_example, lists_actions

    def problem(self, split: Split, index: int) -> Problem:
        """Return a problem: a house in its first state, with the task and what is seen first as the prompt."""
        task_id, draw = self.begin_draw(split, index)
        while True:
            tier, family = draw.choice(self._tiers), draw.choice(self._families)
            state = draw_house(draw, tier, family)
            if is_of_split(split, json.dumps(state, sort_keys=True)):
                break
        state = {**state, **begin_visit(), "tier": tier}
        house = House(state)
        if tier == TINY:
            prompt = f"{state['goal']['task']}\n{self._show(house, tier, '')}\n"
        else:
            shown = self._write_example(draw, family) if self._shows_example else ""
            prompt = f"{RULES}\n\n{shown}{self._show(house, tier, _open(house))}"
        return Problem(task_id, prompt, tier=tier, extra=state)

    def score(self, problem: Problem, text: str) -> Score:  # noqa: ARG002
        """Raise UsageError: a text cannot be scored."""
        raise UsageError('household tasks are played turn by turn: use workflow = "world"')

    def act(self, problem: Problem, action: str) -> Step:
        """See `Acts.act`."""
        state: Any = problem.extra
        if state["is_over"]:
            return Step(OVER, 0.0, done=True)
        house, tier = House(state), state["tier"]
        command = _read_command(house, tier, action)
        is_stuck = note_action(state, command)
        seen, is_won = house.act(command), house.is_won()
        state["is_over"] = is_won or is_stuck
        return Step(self._show(house, tier, seen), float(is_won), done=state["is_over"])

    def solve(self, problem: Problem) -> Sequence[str]:
        """Return the answers of a perfect policy: in the tier `tiny` it searches, in others it knows the places."""
        state, answers = deepcopy(dict(problem.extra)), list[str]()
        house, is_tiny = House(state), state["tier"] == TINY
        for command in walk(house, searches=is_tiny):
            numbers = {one: number for number, one in _number_commands(house).items()} if is_tiny else {}
            answers.append(numbers.get(command, command))
            house.act(command)
        return answers

    def _show(self, house: House, tier: str, seen: str) -> str:
        """Return what is read after a command: in the tier `tiny` only the list of the next ones."""
        if tier == TINY:
            shown = [f"{_shorten(command)}{number}" for number, command in _number_commands(house).items()]
            return " ".join([*([f"{kind_of(house.at)}:"] if house.at else []), *shown])
        return list_available(seen, house.list_commands()) if self._lists_actions else seen

    def _write_example(self, draw: Random, family: str) -> str:
        """Return the walkthrough of another small house, as a transcript."""
        house = House(draw_house(draw, "room", family))
        turns = [_open(house)]
        for command in walk(house, searches=True):
            turns += [f"ACTION: {command}", house.act(command)]
        return "\n\n".join(("An example:", *turns, "Now your own task.", ""))


def begin_visit() -> dict[str, Any]:
    """Return what an episode keeps about its actions: plain JSON."""
    return {"last": "", "equal": 0, "steps": 0, "is_over": False}


def note_action(state: dict[str, Any], command: str) -> bool:
    """Return whether the agent is stuck: its last actions were the same."""
    state["equal"] = state["equal"] + 1 if command == state["last"] else 1
    state["last"], state["steps"] = command, state["steps"] + 1
    return bool(state["equal"] >= SAME_ANSWERS and state["steps"] > FREE_STEPS)


def list_available(seen: str, commands: Sequence[str]) -> str:
    """Return what is seen, with the commands that are possible."""
    return f"{seen}\nAVAILABLE ACTIONS: {', '.join(commands)}"


def read_move(command: str) -> str:
    """Return a command with single blanks, and `move … to …` for the `put … in/on …` of ALFWorld 0.3."""
    return _OLDER_MOVE.sub(r"move \1 to \2", " ".join(command.split()))


def _open(house: House) -> str:
    """Return what is read first."""
    return f"{house.enter()}\n\nYour task is to: {house.goal['task']}"


def _read_command(house: House, tier: str, action: str) -> str:
    """Return the command that an action asks for; in the tier `tiny` perhaps by its number in the list."""
    numbered = _number_commands(house) if tier == TINY else {}
    return numbered.get(action.strip(), read_move(action))


def _number_commands(house: House) -> dict[str, str]:
    """Return the commands that the tier `tiny` lists, six at most, by number.

    A place or thing has the same number throughout an episode, and `open` has the one after these.
    """
    named = [*sorted(house.receptacles), *sorted(house.things)]
    numbered = {}
    for command in house.list_commands():
        verb, *words = command.split()
        if verb == "open":
            numbered[str(len(named) + 1)] = command
        elif verb in ("go", "take", "move"):
            numbered[str(named.index(" ".join(words[1:] if verb == "go" else words[:2])) + 1)] = command
    return numbered


def _shorten(command: str) -> str:
    """Return a command as the tier `tiny` lists it: `bed` of `go to bed 1`, `take cup` of `take cup 1 from bed 1`."""
    verb, *words = command.split()
    if verb == "go":
        return words[1]
    return "open" if verb == "open" else f"{'put' if verb == 'move' else verb} {words[0]}"
