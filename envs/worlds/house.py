"""The rules of a house: which commands are possible, what they do, and what is read afterwards, as in ALFWorld 0.4.2.

A thing or receptacle has a kind and a number, such as `mug 1`. The agent stands before one receptacle, or in the middle
of the room, and holds one thing at most. What is in a closed receptacle is not seen, and cannot be taken; only what is
held can be examined. Names are listed in their alphabetical order, since a task keeps no other one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from headrace.envs.worlds.furniture import CAN, FITS, HUT_THINGS, KNIVES, OPENABLE, STATIONS

NOTHING_HAPPENS = "Nothing happens."
_IN_THE_MIDDLE = "You are in the middle of a room. Looking quickly around you, you see "
MARKS = {"clean": "clean", "heat": "hot", "cool": "cool"}
"""Action to what it makes of a thing."""
_OPPOSITES = {"hot": "cool", "cool": "hot"}
HELD = ""
"""The place of the thing that the agent holds."""
HELP = """
Available commands:
  look:                             look around where you are
  inventory:                        say what you carry
  go to (receptacle):               go to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):    put an object in or on a receptacle
  examine (something):              look at a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object in a receptacle
  clean (object) with (receptacle): clean an object in a receptacle
  cool (object) with (receptacle):  cool an object in a receptacle
  slice (object) with (object):     slice an object with a knife"""


def kind_of(name: str) -> str:
    """Return the kind of a thing or receptacle: `mug` of `mug 1`."""
    return name.partition(" ")[0]


class House:
    """A house, as a view of its state, which the commands change.

    Args:
        state: Plain JSON. `receptacles`: name to whether it is open, which is true for those that cannot be closed.
            `things`: name to the receptacle in or on which it is, or `HELD`. `marks`: name to a list of `clean`, `hot`,
            `cool`, `sliced` and `on`. `at`: the receptacle before the agent, or an empty text. `goal`: `family`, and
            the kinds `thing` and `place`.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        self.receptacles: dict[str, bool] = state["receptacles"]
        self.things: dict[str, str] = state["things"]
        self.goal: dict[str, str] = state["goal"]
        self._marks: dict[str, list[str]] = state["marks"]
        self._state = state

    @property
    def at(self) -> str:
        """The receptacle before the agent; empty in the middle of the room."""
        return str(self._state["at"])

    @property
    def held(self) -> str:
        """The thing that the agent holds; empty for none."""
        return next((thing for thing, place in self.things.items() if place == HELD), "")

    def list_seen(self) -> list[str]:
        """Return the things in or on the receptacle before the agent; none if it is closed."""
        return self._list_in(self.at) if self.at and self.receptacles[self.at] else []

    def list_commands(self) -> list[str]:
        """Return all commands that are possible now."""
        elsewhere = (f"go to {name}" for name in sorted(self.receptacles) if name != self.at)
        return [*elsewhere, *self._list_here(), "look", "inventory", "help"]

    def _list_here(self) -> Iterator[str]:
        """Yield what can be done with the receptacle before the agent, what is in it, and what is held."""
        at, held = self.at, self.held
        if at:
            yield f"examine {at}"
            if kind_of(at) in OPENABLE:
                yield f"close {at}" if self.receptacles[at] else f"open {at}"
        for thing in self.list_seen():
            yield from self._list_for_seen(thing, at, held)
        if held:
            yield f"examine {held}"
            yield from self._list_for_held(held, at)

    def _list_for_seen(self, thing: str, at: str, held: str) -> Iterator[str]:
        if kind_of(thing) in CAN["use"]:
            yield f"use {thing}"
        elif not held:
            yield f"take {thing} from {at}"
        if kind_of(held) in KNIVES and kind_of(thing) in CAN["slice"]:
            yield f"slice {thing} with {held}"

    def _list_for_held(self, held: str, at: str) -> Iterator[str]:
        if at and self.receptacles[at] and can_hold(kind_of(held), kind_of(at)):
            yield f"move {held} to {at}"
        for action, station in STATIONS.items():
            if kind_of(at) == station and kind_of(held) in CAN[action]:
                yield f"{action} {held} with {at}"

    def act(self, command: str) -> str:
        """Carry out a command and return what is read; one that is not possible changes nothing."""
        if command not in self.list_commands():
            return NOTHING_HAPPENS
        verb, *words = command.split()
        if not words:
            return {"look": self._look(), "inventory": self._tell_held(), "help": HELP}[verb]
        name = " ".join(words[-2:])
        if verb == "examine":
            return self._examine_place(name) if name in self.receptacles else self._examine_thing(name)
        if verb in ("go", "open", "close"):
            return self._visit(verb, name)
        return self._handle(verb, " ".join(words[:2]), name)

    def _visit(self, verb: str, place: str) -> str:
        if verb == "go":
            self._state["at"] = place
            return f"You arrive at {place}. {self._examine_place(place)}"
        self.receptacles[place] = verb == "open"
        return f"You {verb} the {place}.{f' {self._examine_place(place)}' if verb == 'open' else ''}"

    def _handle(self, verb: str, thing: str, other: str) -> str:
        """Take, move or use a thing, or change it by a receptacle or another thing."""
        if verb == "take":
            self.things[thing] = HELD
            return f"You pick up the {thing} from the {other}."
        if verb == "move":
            self.things[thing] = other
            return f"You move the {thing} to the {other}."
        if verb == "use":
            self._mark(thing, "on")
            return f"You turn on the {thing}."
        if verb == "slice":
            self._mark(thing, "sliced")
            return f"You sliced the {thing} with the {other}."
        self._mark(thing, MARKS[verb])
        return f"You {verb} the {thing} using the {other}."

    def enter(self) -> str:
        """Return what is read first."""
        return f"{_IN_THE_MIDDLE}{_join(sorted(self.receptacles))}."

    def _look(self) -> str:
        """Return what is read where the agent stands: later, ALFWorld does not tell the receptacles again."""
        return f"You are facing the {self.at}. Next to it, you see nothing." if self.at else f"{_IN_THE_MIDDLE}nothing."

    def _tell_held(self) -> str:
        return f"You are carrying: a {self.held}." if self.held else "You are not carrying anything."

    def is_won(self) -> bool:
        """Return whether the goal is reached."""
        family, thing, place = self.goal["family"], self.goal["thing"], self.goal["place"]
        if family == "look":
            is_lit = any(
                "on" in self._marks.get(lamp, ()) for lamp in self.list_lamps() if self.things[lamp] == self.at
            )
            return is_lit and kind_of(self.held) == thing
        mark, there = MARKS.get(family), list[str]()
        for name, where in self.things.items():
            if kind_of(name) == thing and kind_of(where) == place and (not mark or mark in self._marks.get(name, ())):
                there.append(where)
        return len(there) > len(set(there)) if family == "pick_two" else bool(there)

    def list_lamps(self) -> list[str]:
        """Return what can be turned on."""
        return sorted(name for name in self.things if kind_of(name) in CAN["use"])

    def _list_in(self, place: str) -> list[str]:
        return sorted(thing for thing, where in self.things.items() if where == place)

    def _mark(self, thing: str, mark: str) -> None:
        marks = [one for one in self._marks.get(thing, ()) if one not in (mark, _OPPOSITES.get(mark))]
        self._marks[thing] = [*marks, mark]

    def _examine_place(self, place: str) -> str:
        if not self.receptacles[place]:
            return f"The {place} is closed."
        seen = _join(self._list_in(place))
        if kind_of(place) in OPENABLE:
            return f"The {place} is open. In it, you see {seen}."
        return f"On the {place}, you see {seen}."

    def _examine_thing(self, thing: str) -> str:
        marks = self._marks.get(thing, ())
        if kind_of(thing) in CAN["use"]:
            return f"This {thing} is {'on' if 'on' in marks else 'off'}."
        heat = "hot" if "hot" in marks else "cool" if "cool" in marks else ""
        words = [*([heat] if heat else []), *(["clean"] if "clean" in marks else [])]
        if "sliced" not in marks and words == ["cool"]:
            words = ["cold"]
        told = " ".join(part for part in (" and ".join(words), "sliced" if "sliced" in marks else "") if part)
        return f"This is a {told} {thing}." if told else f"There's nothing special about {thing}."


def can_hold(thing: str, place: str) -> bool:
    """Return whether a kind of thing can be in or on a kind of receptacle."""
    return thing in HUT_THINGS or place in FITS[thing]


def _join(names: Iterable[str]) -> str:
    found = [f"a {name}" for name in names]
    if len(found) < 2:
        return "".join(found) or "nothing"
    return f"{', '.join(found[:-1])}, and {found[-1]}"
