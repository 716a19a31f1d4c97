"""Breadth first over all steps of a world, and a fair schedule from each state."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from protocol.promises import broken, is_done
from protocol.world import State, World

ROUNDS = 60
"""Of a fair schedule: in each everybody has a turn, and time passes where nobody moved."""


@dataclass(slots=True)
class Violation:
    """A promise that does not hold, and the steps that lead there."""

    what: str
    path: list[str]

    def __str__(self) -> str:
        return "\n".join([self.what, *(f"  {number:3} {step}" for number, step in enumerate(self.path, 1))])


@dataclass(slots=True)
class Explorer:
    """What was seen of a world.

    Args:
        world: The world.
        most: States at which to stop; the exploration is then not exhaustive.
    """

    world: World
    most: int = 1_000_000
    came: dict[State, tuple[State | None, str]] = field(default_factory=dict)
    """Each state that was seen, to the one before it and the step between them."""
    live: set[State] = field(default_factory=set)
    """States from which a fair schedule comes to the end."""
    is_complete: bool = False

    def sketch(self, faults: int = 1) -> Violation | None:
        """Return the first violation along one fair schedule, with a fault at each point of it and fair after that.

        And along another without a fault, on which everybody has a turn before anybody has the next.
        """
        state = self.world.begin(faults)
        self.came[state] = None, ""
        if found := self.look_at(state):
            return found
        while not is_done(self.world, state):
            if what := broken(self.world, state):
                return Violation(what, self.path(state))
            for what, after in self.world.faults_at(state):
                if self._is_new(state, what, after) and (found := self.look_at(after)):
                    return found
            before, (state, steps) = state, self.round(state, most=1)
            self._is_new(before, steps[0], state)
        return self.look_at(state)

    def explore(self, faults: int) -> Violation | None:
        """Return the first violation, which is one of the shortest; None where there is none."""
        first = self.world.begin(faults)
        self.came[first] = None, ""
        queue = deque([first])
        while queue and len(self.came) < self.most:
            state = queue.popleft()
            if (found := self.look_at(state)) is not None:
                return found
            is_over = not state.parts or is_done(self.world, state)
            for what, after in self.world.steps(state, is_over=is_over):
                if self._is_new(state, what, after):
                    queue.append(after)
        self.is_complete = not queue
        return None

    def _is_new(self, before: State, what: str, after: State) -> bool:
        if after in self.came:
            return False
        self.came[after] = before, what
        return True

    def path(self, state: State) -> list[str]:
        """Return the steps that lead to a state."""
        found: list[str] = []
        at: State | None = state
        while at is not None:
            at, step = self.came[at]
            found.append(step)
        return found[-2::-1]

    def look_at(self, state: State) -> Violation | None:
        """Return what is broken in a state, or on the fair schedules from it."""
        if what := broken(self.world, state):
            return Violation(what, self.path(state))
        if not self.world.has_end():
            return None
        if self.world.is_ill(state) and (found := self._burns(state)):
            return found
        return self._is_stuck(state)

    def _burns(self, state: State) -> Violation | None:
        """Return what is broken while all but one go on, and that does not come back."""
        at, path = state, ["... and while it lasts"]
        for _ in range(ROUNDS // 2):
            at, steps = self.round(at)
            path += steps
            if what := broken(self.world, at):
                return Violation(what, self.path(state) + path)
        return None

    def _is_stuck(self, state: State) -> Violation | None:
        """Return what keeps a fair schedule from coming to the end, or None."""
        at, passed, path = self.world.heal(state), [state], ["... and on a fair schedule"]
        for _ in range(ROUNDS):
            if at in self.live or is_done(self.world, at):
                self.live.update(passed)
                return None
            passed.append(at)
            at, steps = self.round(at)
            path += steps
            if what := broken(self.world, at):
                return Violation(what, self.path(state) + path)
        what = f"not at its end after {ROUNDS} rounds of a fair schedule"
        return Violation(what, self.path(state) + path)

    def round(self, state: State, most: int = 1_000) -> tuple[State, list[str]]:
        """Let everybody who is awake take each of its actions once, at most so many."""
        taken: list[str] = []
        for name in [part.name for part in state.parts if not part.is_asleep]:
            for action in ("start", "go", "follow", "turn", "publish", "deliver"):
                part = next((part for part in state.parts if part.name == name), None)
                if part is None or action not in part.actions or len(taken) == most:
                    continue
                after = self.world.step(state, part, action)
                if after is not None:
                    taken.append(f"{name} {action}")
                    state = after
        if not taken:
            return self.world.tick(state), ["tick"]
        return state, taken
