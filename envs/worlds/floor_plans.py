"""Draws houses: receptacles by the floor plan of a room, things by what fits where, and a goal of one of six families.

No house is drawn in which the goal is reached already, or in which it cannot be reached.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from headrace.envs.worlds.furniture import (
    CAN,
    FITS,
    HUT_RECEPTACLES,
    HUT_THINGS,
    LAMPS,
    OPENABLE,
    ROOMS,
    STATIONS,
    THINGS,
)
from headrace.envs.worlds.house import kind_of

TIERS = ("tiny", "room", "house")
"""By size: three receptacles with short names, the smallest floor plan of a room, floor plans of all sizes."""
FAMILIES = ("pick", "look", "clean", "heat", "cool", "pick_two")
_ROOMS_OF = {"look": tuple(LAMPS), "clean": ("kitchen", "bathroom"), "heat": ("kitchen",), "cool": ("kitchen",)}
_DISTRACTORS = {"room": (4, 8), "house": (10, 24)}
_TASKS = {
    "pick": ("put a {thing} in {place}.", "put some {thing} on {place}."),
    "look": ("look at {thing} under the {place}.", "examine the {thing} with the {place}."),
    "clean": ("put a clean {thing} in {place}.", "clean some {thing} and put it in {place}."),
    "heat": ("put a hot {thing} in {place}.", "heat some {thing} and put it in {place}."),
    "cool": ("put a cool {thing} in {place}.", "cool some {thing} and put it in {place}."),
    "pick_two": ("put two {thing} in {place}.", "find two {thing} and put them in {place}."),
}
_HUT_SIZE, _HUT_ROOM = 3, 2
"""Receptacles, and things in one of them."""


def draw_house(draw: Random, tier: str, family: str) -> dict[str, Any]:
    """Return the state of a house as `House` takes it, with its task as `goal.task`; the tier `tiny` has no family."""
    return _draw_hut(draw) if tier == "tiny" else _draw_room(draw, tier, family)


def _draw_hut(draw: Random) -> dict[str, Any]:
    places = sorted(f"{kind} 1" for kind in draw.sample(HUT_RECEPTACLES, _HUT_SIZE))
    target, *others = draw.sample(HUT_THINGS, _HUT_SIZE)
    goal = draw.choice(places)
    room = dict.fromkeys(places, _HUT_ROOM)
    things = {}
    for thing in (target, *others):
        free = [place for place in places if room[place] and not (thing == target and place == goal)]
        things[f"{thing} 1"] = place = draw.choice(free)
        room[place] -= 1
    asked = {"family": "pick", "thing": target, "place": kind_of(goal), "task": f"{target} to {kind_of(goal)}"}
    return _build_state(places, things, asked)


def _draw_room(draw: Random, tier: str, family: str) -> dict[str, Any]:
    room = draw.choice(_ROOMS_OF.get(family, tuple(ROOMS)))
    numbers = {
        kind: least if tier == "room" else draw.randint(least, most) for kind, (least, most) in ROOMS[room].items()
    }
    kinds = [kind for kind, number in numbers.items() if number]
    possible = [
        (thing, place)
        for thing in THINGS[room]
        for place in ([LAMPS[room]] if family == "look" else kinds)
        if thing in CAN.get(family, THINGS[room])
        and (family == "look" or (place in FITS[thing] and place != STATIONS.get(family)))
        and _list_fitting(thing, kinds, but=place)
    ]
    thing, place = draw.choice(possible)
    chosen = [thing] * (2 if family == "pick_two" else draw.choice((1, 1, 2)))
    chosen += [LAMPS[room]] if family == "look" else []
    chosen += draw.choices([kind for kind in THINGS[room] if kind != thing], k=draw.randint(*_DISTRACTORS[tier]))
    things, count = {}, Counter[str]()
    for kind in chosen:
        if free := _list_fitting(kind, kinds, but=place if kind == thing else ""):
            count[kind] += 1
            where = draw.choice(free)
            things[f"{kind} {count[kind]}"] = f"{where} {draw.randint(1, numbers[where])}"
    task = draw.choice(_TASKS[family]).format(thing=thing, place=place)
    places = [f"{kind} {number}" for kind in kinds for number in range(1, numbers[kind] + 1)]
    return _build_state(places, things, {"family": family, "thing": thing, "place": place, "task": task})


def _list_fitting(thing: str, kinds: list[str], but: str) -> list[str]:
    return [kind for kind in kinds if kind in FITS[thing] and kind != but]


def _build_state(places: list[str], things: dict[str, str], goal: dict[str, str]) -> dict[str, Any]:
    receptacles = {place: kind_of(place) not in OPENABLE for place in places}
    return {"receptacles": receptacles, "things": things, "marks": {}, "at": "", "goal": goal}
