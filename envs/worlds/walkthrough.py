"""Plans the commands that reach the goal of a house."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.envs.worlds.furniture import STATIONS
from headrace.envs.worlds.house import House, kind_of


def walk(house: House, *, searches: bool = False) -> Iterator[str]:
    """Yield commands until the goal is reached. The caller carries out each one before it takes the next.

    With `searches`, receptacles are looked into, in their order, until the thing is seen, as one must who does not know
    where it is. Without, the way is the shortest.
    """
    goal = house.goal
    family = goal["family"]
    found = sorted(name for name in house.things if kind_of(name) == goal["thing"])
    for thing in found[: 2 if family == "pick_two" else 1]:
        if searches:
            yield from _search(house, thing)
        yield from _reach_into(house, house.things[thing])
        yield f"take {thing} from {house.at}"
        if family == "look":
            [lamp, *_] = house.list_lamps()
            yield from _go(house, house.things[lamp])
            yield f"use {lamp}"
            return
        if family in STATIONS:
            station = _find(house, STATIONS[family])
            yield from _go(house, station)
            yield f"{family} {thing} with {station}"
        place = _find(house, goal["place"])
        yield from _reach_into(house, place)
        yield f"move {thing} to {place}"


def _search(house: House, thing: str) -> Iterator[str]:
    for place in sorted(house.receptacles):
        if kind_of(place) != house.goal["place"] and thing not in house.list_seen():
            yield from _reach_into(house, place)


def _reach_into(house: House, place: str) -> Iterator[str]:
    yield from _go(house, place)
    if not house.receptacles[place]:
        yield f"open {place}"


def _go(house: House, place: str) -> Iterator[str]:
    if house.at != place:
        yield f"go to {place}"


def _find(house: House, kind: str) -> str:
    return next(name for name in sorted(house.receptacles) if kind_of(name) == kind)
