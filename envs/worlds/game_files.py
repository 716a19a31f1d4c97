"""Writes houses as game files of ALFWorld's engine: JSON with its domain and grammar, and the house in PDDL."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.envs.worlds.furniture import CAN, FITS, OPENABLE
from headrace.envs.worlds.house import kind_of

_NEEDED = {"rtype": ("fridge", "microwave", "sinkbasin"), "otype": ("butterknife", "knife")}
"""Types that the domain names, whether a house has such things or not."""
_ABLE = {"clean": "cleanable", "heat": "heatable", "cool": "coolable", "slice": "sliceable", "use": "toggleable"}
_MARKED = {"clean": "isClean", "heat": "isHot", "cool": "isCool"}


def write_game(state: Mapping[str, Any], domain: str, grammar: str, walkthrough: list[str] | None = None) -> str:
    """Return the game of a house, in the state that `floor_plans.draw_house` gives, as ALFWorld's data have it.

    Args:
        state: Of the house.
        domain, grammar: The engine's.
        walkthrough: Commands that reach the goal; None if nobody has looked for them.
    """
    told = grammar.replace("UNKNOWN GOAL", state["goal"]["task"].removesuffix("."))
    game = {"pddl_domain": domain, "grammar": told, "pddl_problem": write_problem(state)}
    return json.dumps({**game, "solvable": None if walkthrough is None else True, "walkthrough": walkthrough})


def write_problem(state: Mapping[str, Any]) -> str:
    """Return a house as a problem in PDDL."""
    ids = _name_ids(state)
    objects = " ".join(f"{name} - {kind}" for name, kind in _list_objects(state, ids))
    facts = " ".join(f"({fact})" for fact in _list_facts(state, ids))
    return (
        f"(define (problem house) (:domain alfred) (:objects {objects}) (:init {facts}) "
        f"(:goal {_write_goal(state['goal'])}) (:metric minimize (total-cost)))"
    )


def _name_ids(state: Mapping[str, Any]) -> dict[str, str]:
    """Return name to id. The engine numbers the ids of a kind, in alphabetical order, from the highest number down."""
    names = [*state["receptacles"], *state["things"]]
    ids = {}
    for name in names:
        kind, number = name.split()
        highest = sum(kind_of(other) == kind for other in names)
        is_basin = kind.endswith("basin")  # it takes a sink basin for a part of a sink
        ids[name] = f"{kind.removesuffix('basin')}_bar_{highest - int(number):02}{'_basin' if is_basin else ''}"
    return ids


def _list_objects(state: Mapping[str, Any], ids: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    yield from (("agent1", "agent"), ("loc_start", "location"))
    for kind, own, type_of in (("receptacle", "receptacles", "rtype"), ("object", "things", "otype")):
        kinds = {kind_of(name) for name in state[own]} | set(_NEEDED[type_of])
        yield from ((f"{one}Type", type_of) for one in sorted(kinds))
        yield from ((ids[name], kind) for name in state[own])
    yield from ((f"loc_{ids[name]}", "location") for name in state["receptacles"])


def _list_facts(state: Mapping[str, Any], ids: Mapping[str, str]) -> Iterator[str]:
    yield from ("atLocation agent1 loc_start", "= (total-cost) 0")
    for name in state["receptacles"]:
        yield f"receptacleAtLocation {ids[name]} loc_{ids[name]}"
        yield f"receptacleType {ids[name]} {kind_of(name)}Type"
        if kind_of(name) in OPENABLE:
            yield f"openable {ids[name]}"
    for name, place in state["things"].items():
        yield f"objectType {ids[name]} {kind_of(name)}Type"
        yield f"inReceptacle {ids[name]} {ids[place]}"
        yield f"objectAtLocation {ids[name]} loc_{ids[place]}"
        if kind_of(name) not in CAN["use"]:
            yield f"pickupable {ids[name]}"
        yield from (f"{able} {ids[name]}" for action, able in _ABLE.items() if kind_of(name) in CAN[action])
    kinds, places = ({kind_of(name) for name in state[own]} for own in ("things", "receptacles"))
    yield from (f"canContain {place}Type {kind}Type" for kind in sorted(kinds) for place in sorted(places & FITS[kind]))


def _write_goal(goal: Mapping[str, str]) -> str:
    """Return the condition of a goal, as `House.is_won` has it."""
    family, thing, place = goal["family"], goal["thing"], goal["place"]
    if family == "look":
        return (
            f"(and (exists (?o - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?o {place}Type) "
            "(toggleable ?o) (isToggled ?o) (inReceptacle ?o ?r) (receptacleAtLocation ?r ?l) (atLocation ?a ?l))) "
            f"(exists (?p - object ?a - agent) (and (objectType ?p {thing}Type) (holds ?a ?p))))"
        )
    put = f"(objectType ?o {thing}Type) (inReceptacle ?o ?r) (receptacleType ?r {place}Type)"
    if mark := _MARKED.get(family):
        put += f" ({mark} ?o)"
    if family == "pick_two":
        put += f" (exists (?p - object) (and (not (= ?o ?p)) (objectType ?p {thing}Type) (inReceptacle ?p ?r)))"
    return f"(exists (?o - object ?r - receptacle) (and {put}))"
