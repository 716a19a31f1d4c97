"""Draws recipes in layers, each of which needs an item of the layer below, and an inventory that suffices."""

from __future__ import annotations

import string
from collections import Counter
from random import Random
from typing import Any

from headrace.envs.worlds.crafting import plan_crafts

TIERS = ("tiny1", "tiny2", "depth2", "depth3", "depth4", "depth5")
"""By the number of crafts above one another. The tiny ones have letters as names: capitals can be crafted."""
TINY = TIERS[:2]
_BASE, _LAYER = 6, 3
"""Items without a recipe, and items of a layer."""
_PLENTY = 10**6


def draw_recipes(draw: Random, tier: str) -> tuple[dict[str, Any], str, int]:
    """Return recipes, tags and inventory as `crafting.craft` takes them, with the item to craft and its number."""
    state = _draw_tiny(draw, is_deep=tier == TINY[1]) if tier in TINY else _draw_layers(draw, int(tier[-1]))
    recipes, item = state["recipes"], state.pop("top")
    number = 1 if tier in TINY else draw.randint(1, 3)
    needed = {name for recipe in recipes.values() for name in recipe["needs"]} - recipes.keys()
    base = sorted({one for name in needed for one in state["tags"].get(name, [name])})
    state["inventory"] = dict.fromkeys(base, _PLENTY)
    used = Counter[str]()
    for _, _, bag in plan_crafts(state, item, number):
        used.update({name: count for name, count in bag.items() if name not in recipes})
    stock = {name: used[name] + draw.randint(0, 2) for name in base}
    state["inventory"] = {name: count for name, count in stock.items() if count}
    return state, item, number


def _draw_tiny(draw: Random, *, is_deep: bool) -> dict[str, Any]:
    top, lower = draw.sample(string.ascii_uppercase[:8], 2)
    first, second, third = draw.sample(string.ascii_lowercase[:8], 3)
    counts = draw.choices((1, 2, 3), k=3)
    plain = {"needs": {first: counts[0], second: counts[1]}, "makes": 1}
    if not is_deep:
        return {"recipes": {top: plain}, "tags": {}, "top": top}
    return {"recipes": {top: {"needs": {lower: 1, third: counts[2]}, "makes": 1}, lower: plain}, "tags": {}, "top": top}


def _draw_layers(draw: Random, depth: int) -> dict[str, Any]:
    names = _draw_names(draw, _BASE + _LAYER * depth + 1)
    tag = f"#{names.pop()}"
    base, rest = names[:_BASE], names[_BASE:]
    layers = [rest[at : at + _LAYER] for at in range(0, len(rest), _LAYER)]
    recipes: dict[str, Any] = {}
    below, last = [*base[2:], tag], [*base[2:], tag]
    for layer in layers:
        for item in layer:
            needs = {draw.choice(last), *draw.sample(below, draw.randint(0, 2))}
            recipes[item] = {
                "needs": {name: draw.randint(1, 2) for name in sorted(needs)},
                "makes": draw.choice((1, 1, 2, 4)),
            }
        below, last = [*below, *layer], layer
    return {"recipes": recipes, "tags": {tag: base[:2]}, "top": draw.choice(layers[-1])}


def _draw_names(draw: Random, count: int) -> list[str]:
    """Return different invented words."""
    names: dict[str, None] = {}
    while len(names) < count:
        names["".join(draw.choice(letters) for letters in ("bdfgklmnprst", "aeiou", "klmnrst", "aeiou"))] = None
    return list(names)
