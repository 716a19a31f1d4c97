"""States of the world and the steps between them.

A process sees nothing of another but what is on the broker. So what an action does depends on the process and the
broker alone, and is worked out once for each pair of them, however the others stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.infra.recipe.settings import Recipe
from protocol.broker import STAGE, Blocked, Broker
from protocol.frozen import Frozen, freeze, thaw
from protocol.processes import CuratorProcess, FeederProcess, LoudEnd, Process, TrainerProcess
from protocol.run import began
from protocol.worker import WorkerProcess

TICK_S = 30.0
"""Longer than a transaction may be open, and than all waits of processes but those that double."""
Act = Callable[[Process], object]
Fault = Callable[["World", "State"], Iterator["Step"]]


@dataclass(frozen=True, slots=True)
class Part:
    """A process in a state."""

    name: str
    frozen: Frozen
    actions: tuple[str, ...]
    is_asleep: bool = False
    is_missed: bool = False
    """Whether nobody has replaced it while it sleeps: the run waits for it."""

    def __hash__(self) -> int:
        return hash((self.name, self.frozen, self.is_asleep))


@dataclass(frozen=True, slots=True)
class State:
    """A state of the world."""

    broker: Frozen
    parts: tuple[Part, ...]
    faults: int = 0
    """How many may still happen."""

    def with_part(self, part: Part) -> State:
        """Return the state with another state of a process, or with a further process."""
        if any(one.name == part.name for one in self.parts):
            return replace(self, parts=tuple(part if one.name == part.name else one for one in self.parts))
        return replace(self, parts=(*self.parts, part))

    def without(self, name: str) -> State:
        return replace(self, parts=tuple(part for part in self.parts if part.name != name))

    def part(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)


Step = tuple[str, State]
"""What happens, in words, and the state after it."""


@dataclass(slots=True)
class World:
    """All that can happen in one setting.

    Args:
        recipe: Of the run.
        faults: Each returns, from a state, the steps by which it can happen there.
    """

    recipe: Recipe
    faults: tuple[Fault, ...] = ()
    known: dict[Any, tuple[Frozen, Part] | None] = field(default_factory=dict)
    """(broker, process, action) to what comes of it; None for nothing."""
    interned: dict[Frozen, Frozen] = field(default_factory=dict)
    """Brokers and processes, each known by one object."""
    stores: dict[Frozen, bool] = field(default_factory=dict)
    """Broker to whether the store beside it is frozen."""
    verdicts: dict[Frozen, tuple[str, bool]] = field(default_factory=dict)
    """Broker to the promise that is broken there, and whether the run has come to its end."""

    def begin(self, faults: int = 0) -> State:
        """Return the state in which everybody is up and owns what it will."""
        broker = began(self.recipe)
        processes = self.cast()
        for process in processes:
            STAGE.actor = process.name
            process.act("start")
        state = State(self.freeze(broker), (), faults)
        for process in processes:
            state = state.with_part(self.part(process))
        for part in state.parts:
            action = {"C": "turn", "W": "follow"}.get(part.name[0])
            state = (action and self.step(state, part, action)) or state
        return state

    def cast(self) -> list[Process]:
        """Return everybody, in the order in which they start."""
        return [
            TrainerProcess("T"), FeederProcess("F"), WorkerProcess("W1"), WorkerProcess("W2"), CuratorProcess("C1"),
            CuratorProcess("C2"),
        ]  # fmt: skip

    def has_end(self) -> bool:
        """Return whether all comes to an end: else only what holds in each state is looked at."""
        return True

    # ---------------------------------------------------------------------------------------------------------- steps

    def steps(self, state: State, *, is_over: bool = False) -> Iterator[Step]:
        """Yield all steps from a state; time moves only where nothing else does, and not after the end."""
        moved = False
        for part in state.parts:
            for action in () if part.is_asleep else part.actions:
                after = self.step(state, part, action)
                if after is not None:
                    moved = True
                    yield f"{part.name} {action}", after
            if part.is_asleep and not part.is_missed:
                yield f"{part.name} wakes", self.wake(state, part)
        if not moved and not is_over:
            yield "tick", self.tick(state)
        if self.is_ill(state):
            yield "all comes back", self.heal(state)
        yield from self.faults_at(state)

    def faults_at(self, state: State) -> Iterator[Step]:
        """Yield the steps by which something goes wrong."""
        for fault in self.faults if state.faults else ():
            for what, after in fault(self, state):
                yield what, replace(after, faults=state.faults - 1)

    def step(self, state: State, part: Part, action: str) -> State | None:
        """Return the state after an action of a process; None where it waits, or does nothing."""
        key = state.broker, part.frozen, part.name, action
        if key not in self.known:
            found = self.apply(state, part, lambda process: process.act(action))
            is_same = found is not None and (found[0], found[1]) == (state.broker, part)
            self.known[key] = None if is_same else found
        found = self.known[key]
        return None if found is None else self.after(state, found)

    def after(self, state: State, found: tuple[Frozen, Part]) -> State:
        """Return the state after a process has changed, and the broker; one that has ended for good is gone."""
        broker, part = found
        after = replace(state, broker=broker)
        return after.with_part(part) if part.actions else after.without(part.name)

    def apply(self, state: State, part: Part, act: Act) -> tuple[Frozen, Part] | None:
        """Return broker and process after something was done to them; None where it waits."""
        broker, process = self.thaw(state), thaw(part.frozen.data)
        STAGE.actor = part.name
        try:
            act(process)
        except Blocked:
            return None
        except LoudEnd as end:
            process.end()
            broker.marks.add(f"loud: {end}")
        return self.freeze(broker), replace(self.part(process), is_asleep=part.is_asleep, is_missed=part.is_missed)

    def tick(self, state: State) -> State:
        """Let time pass: what is open for too long is aborted."""
        broker = self.thaw(state)
        broker.now += TICK_S
        broker.expire_transactions()
        return replace(state, broker=self.freeze(broker))

    def wake(self, state: State, part: Part) -> State:
        """Let a process go on that slept."""
        awake = replace(part, is_asleep=False, is_missed=False)
        found = self.apply(state, awake, lambda process: process.wake())
        return self.after(state, found) if found is not None else state.with_part(awake)

    def is_ill(self, state: State) -> bool:
        """Tell whether the run waits for something to come back."""
        return any(part.is_missed for part in state.parts) or self.has_frozen_store(state)

    def has_frozen_store(self, state: State) -> bool:
        """Tell whether the store answers nobody."""
        if state.broker not in self.stores:
            self.stores[state.broker] = self.thaw(state).is_store_frozen
        return self.stores[state.broker]

    def heal(self, state: State) -> State:
        """Let come back what the run waits for."""
        for part in state.parts:
            if part.is_missed:
                state = self.wake(state, part)
        if not self.has_frozen_store(state):
            return state
        broker = self.thaw(state)
        broker.is_store_frozen = False
        return replace(state, broker=self.freeze(broker))

    # ------------------------------------------------------------------------------------------------- into values

    def thaw(self, state: State) -> Broker:
        """Put the broker of a state on the stage."""
        STAGE.broker = thaw(state.broker.data)
        return STAGE.broker

    def freeze(self, broker: Broker) -> Frozen:
        frozen = Frozen(broker.key(), freeze(broker))
        return self.interned.setdefault(frozen, frozen)

    def part(self, process: Process) -> Part:
        frozen = Frozen(process.key(), freeze(process))
        return Part(process.name, self.interned.setdefault(frozen, frozen), process.actions())
