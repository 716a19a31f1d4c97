"""Crafting by recipes that must be asked for, alone or with sub-agents that share the inventory.

The recipes are drawn anew for each problem, so none can be known by heart. Played by the workflows `spawn` and `tools`;
an agent ends with an answer without a call. Its reward is 1 if its targets are in the inventory then.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.envs.contract import Problem, Score, Split
from headrace.envs.split_shares import is_of_split
from headrace.envs.thoughts import read_answer
from headrace.envs.worlds.crafting import craft, find_bag, measure_depth, parse_bag, plan_crafts, write_bag
from headrace.envs.worlds.drawn import DrawnByTier
from headrace.envs.worlds.recipe_graph import TIERS, TINY, draw_recipes

DONE, OK = "done", "ok"
SUB_TIER = "sub"
"""Tier of the problems of sub-agents."""
RULES = """\
You craft items. `get_info` says how an item is crafted, `view_inventory` what there is, and `craft` crafts: it takes \
exactly the ingredients of the recipe, for a multiple of what the recipe makes. When the task is done, answer `done` \
without a call."""
SPAWN_RULES = """ \
You may let sub-agents craft ingredients: give `spawn` a task such as `2 oak, 1 elm`. They share your inventory."""
_CRAFTING = threading.Lock()
"""Agents of an episode craft at the same time. It is no attribute, so that the environment can be copied."""


class TextCraft(DrawnByTier):
    """Problems without end.

    Args:
        seed: Of the problems; held-out ones are the same for every seed.
        tiers: From `tiny1`, `tiny2`, `depth2` to `depth5`, drawn alike.
        spawns: Whether worked solutions let sub-agents craft the ingredients; set it to false for the workflow `tools`.

    Raises ValueError for an unknown tier.
    """

    name = stream = "textcraft"
    all_tiers = TIERS
    shares_extra = True
    """All agents of an episode share `problem.extra`, and so the inventory."""

    def __init__(self, seed: int, tiers: Sequence[str] = ("depth2", "depth3"), spawns: bool = True) -> None:
        super().__init__(seed, tiers)
        self._spawns = spawns
        self.tools = (self.get_info, self.view_inventory, self.craft)

    def problem(self, split: Split, index: int) -> Problem:
        """Return a problem with recipes of its own; its `answer` is what must be in the inventory at last."""
        task_id, draw = self.begin_draw(split, index)
        while True:
            tier = draw.choice(self._tiers)
            state, item, number = draw_recipes(draw, tier)
            if is_of_split(split, json.dumps([item, number, state["recipes"]], sort_keys=True)):
                break
        state["is_tiny"] = tier in TINY
        target = write_bag({item: number})
        return Problem(task_id, self._ask(state, target), target, tier, state)

    def sub_problem(self, problem: Problem, task: str) -> Problem:
        """Return the problem of a sub-agent: its targets are the numbers of items that the task names."""
        targets = write_bag(find_bag(task, problem.extra["recipes"]))
        prompt = self._ask(problem.extra, task.strip())
        arguments = problem.template_arguments
        return Problem(
            f"{problem.task_id} / {task}", prompt, targets, SUB_TIER, problem.extra, template_arguments=arguments
        )

    def score(self, problem: Problem, text: str) -> Score:
        """Return reward 1 if the agent has ended, by an answer without a call, and its targets are in the inventory."""
        answer, targets = read_answer(text).strip(), parse_bag(problem.answer)
        has_ended = bool(answer) and "<tool_call>" not in answer and not f"\n{answer}".count("\n@")
        inventory = problem.extra["inventory"]
        has_all = bool(targets) and all(inventory.get(item, 0) >= number for item, number in (targets or {}).items())
        return Score(float(has_ended and has_all))

    def solve(self, problem: Problem) -> Sequence[str]:
        """Return the answers of a perfect policy: it asks for recipes, lets others craft or crafts itself, and ends."""
        extra, answers = problem.extra, list[str]()
        delegates = self._spawns and problem.tier != SUB_TIER
        for item, number in (parse_bag(problem.answer) or {}).items():
            crafts = plan_crafts(extra, item, number)
            *before, (_, made, bag) = crafts
            answers += [f"@get_info {', '.join(names)}" for names in _list_unknown(extra, item, only_tags=delegates)]
            parts = {name: count for name, count in sorted(bag.items()) if name in extra["recipes"]}
            if delegates and parts:
                answers.append("\n".join(f"@spawn {count} {name}" for name, count in parts.items()))
            elif not delegates:
                answers += [_write_craft(*one) for one in before]
            answers.append(_write_craft(item, made, bag))
        return [*answers, DONE]

    def get_info(self, items: str, problem: Problem) -> str:
        """Tell how items are crafted.

        Args:
            items: Names, with commas between them.
        """
        state = problem.extra
        names = [name.strip() for name in items.split(",")][:20]
        if state["is_tiny"]:
            recipes = state["recipes"]
            return "; ".join(
                f"1 {name}: {write_bag(recipes[name]['needs'])}" if name in recipes else "no recipe" for name in names
            )
        return json.dumps([_describe(state, name) for name in names])

    def view_inventory(self, problem: Problem) -> str:
        """Tell what there is."""
        there = {name: number for name, number in problem.extra["inventory"].items() if number}
        return write_bag(there) if problem.extra["is_tiny"] else json.dumps(there)

    def craft(self, target: str, ingredients: str, problem: Problem) -> str:
        """Craft an item.

        Args:
            target: Number and name, such as `4 plank`.
            ingredients: Numbers and names of all that is used up, such as `1 oak, 2 elm`.
        """
        with _CRAFTING:
            wrong = craft(problem.extra, target, ingredients)
        if not wrong:
            return OK
        return "no" if problem.extra["is_tiny"] else f"ERROR: {wrong}; the inventory is as it was"

    def _ask(self, state: Mapping[str, Any], task: str) -> str:
        """Return the prompt of an agent."""
        if state["is_tiny"]:  # with the inventory, so that prompts differ: a warm start teaches equal ones once
            return f"{write_bag(state['inventory'])}\nmake {task}\n"
        return f"{RULES}{SPAWN_RULES if self._spawns else ''}\n\nCraft {task}."


def _list_unknown(state: Mapping[str, Any], item: str, *, only_tags: bool) -> Iterator[list[str]]:
    """Yield what an agent must ask for, turn by turn: an item, then its ingredients with a recipe and its tags."""
    asked, names = set[str](), [item]
    while names:
        yield names
        asked.update(names)
        needed = {part for name in names for part in state["recipes"].get(name, {}).get("needs", ())} - asked
        names = sorted(part for part in needed if part in state["tags"] or (part in state["recipes"] and not only_tags))


def _write_craft(item: str, number: int, bag: Mapping[str, int]) -> str:
    return f"@craft {number} {item}, {write_bag(bag)}"


def _describe(state: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what is to be known of an item or tag."""
    recipes, inventory = state["recipes"], state["inventory"]
    if name in state["tags"]:
        return {"tag": name, "items": state["tags"][name]}
    told = {
        "item": name,
        "craftable": name in recipes,
        "depth": measure_depth(recipes, name),
        "in_inventory": inventory.get(name, 0),
    }
    if recipe := recipes.get(name):
        told["recipes"] = [{"ingredients": recipe["needs"], "result_count": recipe["makes"]}]
    return told
