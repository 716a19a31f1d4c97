"""The rules of crafting: recipes over items, an inventory, and a plan that reaches a target.

A recipe makes some of an item out of an exact bag of others. An ingredient such as `#kolu` is a tag: any item that has
it will do. All of it is plain JSON: `recipes` maps an item to `needs` (ingredient to number) and `makes` (number),
`tags` maps a tag to its items, `inventory` maps an item to the number of it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

_PART = re.compile(r"(\d{1,6}) ([A-Za-z_]+)")


def parse_bag(text: str) -> dict[str, int] | None:
    """Return the items of a text such as `2 oak, 1 elm` with their numbers, or None for any other text."""
    bag = Counter[str]()
    for part in text.split(","):
        if (found := _PART.fullmatch(part.strip())) is None or not int(found[1]):
            return None
        bag[found[2]] += int(found[1])
    return dict(bag)


def find_bag(text: str, known: Mapping[str, object]) -> dict[str, int]:
    """Return the numbers of known items that a free text asks for, as in `craft 2 oak, and then 1 elm`."""
    return {name: int(number) for number, name in _PART.findall(text) if name in known and int(number)}


def write_bag(bag: Mapping[str, int]) -> str:
    """Return items as `parse_bag` reads them."""
    return ", ".join(f"{number} {item}" for item, number in sorted(bag.items()))


def craft(state: Mapping[str, Any], target: str, ingredients: str) -> str:
    """Craft, and return what went wrong; an empty text if nothing did. An error leaves the inventory as it is."""
    asked, given, inventory = parse_bag(target), parse_bag(ingredients), state["inventory"]
    if asked is None or given is None or len(asked) != 1:
        return "target is a number and one item, ingredients are such pairs with commas between them"
    [(item, number)] = asked.items()
    if (recipe := state["recipes"].get(item)) is None:
        return f"there is no recipe for {item}"
    if number % recipe["makes"]:
        return f"the recipe makes {recipe['makes']} {item}, so the number must be a multiple of it"
    if not _is_bag_of(recipe["needs"], number // recipe["makes"], given, state["tags"]):
        return f"these are not the ingredients of {number} {item}"
    if lacking := {name: count for name, count in given.items() if inventory.get(name, 0) < count}:
        return f"not in the inventory: {write_bag(lacking)}"
    for name, count in given.items():
        inventory[name] -= count
    inventory[item] = inventory.get(item, 0) + number
    return ""


def _is_bag_of(needs: Mapping[str, int], times: int, given: Mapping[str, int], tags: Mapping[str, list[str]]) -> bool:
    """Return whether a bag is exactly what a recipe needs, so many times over."""
    left = Counter(given)
    left.subtract({name: count * times for name, count in needs.items() if name not in tags})
    if any(count < 0 for count in left.values()):
        return False
    for tag in needs.keys() & tags.keys():  # no item has two tags
        open_count = needs[tag] * times
        for item in tags[tag]:
            taken = min(open_count, left[item])
            left[item] -= taken
            open_count -= taken
        if open_count:
            return False
    return not any(left.values())


def plan_crafts(state: Mapping[str, Any], item: str, number: int) -> list[tuple[str, int, dict[str, int]]]:
    """Return the crafts that bring an item into the inventory: item, number and ingredients of each, in their order.

    What the inventory holds already of an item that has a recipe is not used. An item of a tag is the first of which
    the inventory has enough.
    """
    recipe, crafts, bag = state["recipes"][item], list[tuple[str, int, dict[str, int]]](), dict[str, int]()
    times = -(-number // recipe["makes"])
    for name, count in sorted(recipe["needs"].items()):
        chosen = _choose_item(state, name, count * times)
        if chosen in state["recipes"]:
            crafts += plan_crafts(state, chosen, count * times)
        bag[chosen] = bag.get(chosen, 0) + count * times
    return [*crafts, (item, times * recipe["makes"], bag)]


def _choose_item(state: Mapping[str, Any], name: str, number: int) -> str:
    items = state["tags"].get(name, [name])
    return str(next((item for item in items if state["inventory"].get(item, 0) >= number), items[0]))


def measure_depth(recipes: Mapping[str, Any], item: str) -> int:
    """Return how many crafts lie above one another for an item; 0 without a recipe."""
    return 1 + max(measure_depth(recipes, name) for name in recipes[item]["needs"]) if item in recipes else 0
