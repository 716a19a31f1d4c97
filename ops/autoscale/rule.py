"""How many workers a pool should have: a dead band on the share of its time that a trainer waits. No I/O, no clock.

Workers are added when a trainer starves, whatever their consumer lag. They are removed while no trainer waits and they
have more room than they need.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

LOOK_BACK = 10
"""Newest versions from which a number is computed."""
URGENT_AFTER = 3
"""Versions after which a trainer that waits for more than URGENT of its time gets workers at once."""
URGENT = 0.25
STARVES, IDLES = 0.10, 0.05
"""Shares of waiting: above the first, workers are added; below the second, they may be removed; between them, held."""
MOST_WAIT = 0.95
SPARE = 1.10
"""Workers that are kept for each that is needed."""
REGRET_WITHIN = 3 * LOOK_BACK
"""Versions within which workers must be added again for their removal to have been a mistake."""


@dataclass(frozen=True, slots=True)
class Step:
    """What making one version took."""

    version: int
    wait_s: float
    """Seconds that the trainer waited for groups."""
    whole_s: float
    """Seconds from the end of the step before, with the wait."""
    consumed: int
    """Groups that it trained on for the first time."""
    entered: int
    """Groups that came into its window meanwhile."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Some versions of one policy together."""

    policy: str
    version: int
    """The newest of them."""
    versions: int
    wait_share: float
    """Share of the time that the trainer waited for groups."""
    consumed: int
    entered: int
    busy_share: float
    """Share of the workers' room that was in use."""

    @classmethod
    def of(cls, policy: str, steps: Sequence[Step], busy_share: float = 1.0) -> Demand:
        """Add up some steps, at least one."""
        whole_s = sum(step.whole_s for step in steps)
        wait_share = min(MOST_WAIT, sum(step.wait_s for step in steps) / whole_s) if whole_s > 0 else 0.0
        consumed, entered = sum(step.consumed for step in steps), sum(step.entered for step in steps)
        return cls(policy, steps[-1].version, len(steps), wait_share, consumed, entered, busy_share)


@dataclass(frozen=True, slots=True)
class Choice:
    """A number of workers, and why."""

    count: int
    reason: str
    """A sentence."""
    demand: Demand


@dataclass(frozen=True, slots=True)
class Move:
    """An earlier decision."""

    policy: str
    version: int
    """The policy's newest version then."""
    before: int
    after: int


def compute_count(count: int, demand: Demand) -> int:
    """Return the number of workers that a pool of `count` should have, at least 1.

    With w the share of waiting: ceil(count / (1 - w)) if w > 0.10, and min(count, ceil(count * consumed / entered *
    1.10)) if w < 0.05. The second is AstraFlow's rule where workers always play. Here the feeder issues no more tasks
    than the trainers need, so idle workers play less: `entered` is divided by the busy share, which gives the groups
    that could have entered.
    """
    if demand.wait_share > STARVES:
        return max(1, _round_up(count / (1 - demand.wait_share)))
    if demand.wait_share < IDLES and demand.entered:
        possible = demand.entered / max(demand.busy_share, 1e-3)
        return max(1, min(count, _round_up(count * min(1.0, demand.consumed / possible) * SPARE)))
    return count


def choose_count(
    count: int,
    steps: Mapping[str, Sequence[Step]],
    busy: Mapping[str, float],
    limits: tuple[int, int],
    mistakes: Collection[int] = (),
) -> Choice | None:
    """Return the new number of a pool's workers, by the most starved of its trainers; None to leave it as it is.

    Args:
        count: Present number.
        steps: Policy to the versions that it has made with this number of workers, oldest first.
        busy: Policy to the share of the workers' room that was in use meanwhile.
        limits: Least and most workers.
        mistakes: Numbers that were too few before, of `find_mistakes`.
    """
    urgent = [Demand.of(policy, made[-URGENT_AFTER:]) for policy, made in steps.items() if len(made) >= URGENT_AFTER]
    starved = max(urgent, key=lambda one: one.wait_share, default=None)
    if starved is not None and starved.wait_share > URGENT:
        return _choose(count, starved, limits, mistakes)
    if any(len(made) < LOOK_BACK for made in steps.values()) or not steps:
        return None
    whole = [Demand.of(policy, made[-LOOK_BACK:], busy[policy]) for policy, made in steps.items()]
    return _choose(count, max(whole, key=lambda one: (one.wait_share, one.busy_share)), limits, mistakes)


def find_mistakes(moves: Sequence[Move]) -> set[int]:
    """Return the numbers of workers that were soon too few, since the load rose last.

    Without this memory, a number between two loads would be left and taken again for ever.

    Args:
        moves: Decisions on the pool, oldest first.
    """
    found = set[int]()
    for before, move in pairwise((None, *moves)):
        if move is None or move.after <= move.before:
            continue
        if before is not None and before.after < before.before and move.version - before.version <= REGRET_WITHIN:
            found.add(before.after)
        elif before is None or before.after < before.before:
            found.clear()  # a rise that follows no removal: the load has risen
    return found


def _choose(count: int, demand: Demand, limits: tuple[int, int], mistakes: Collection[int]) -> Choice | None:
    least, most = limits
    wanted = allowed = compute_count(count, demand)
    if wanted < count and mistakes and min(mistakes) <= wanted <= max(mistakes):
        allowed = min(count, max(mistakes) + 1)
    chosen = max(least, min(most, allowed))
    return None if chosen == count else Choice(chosen, _explain(count, wanted, chosen, demand, limits), demand)


def _explain(count: int, wanted: int, chosen: int, demand: Demand, limits: tuple[int, int]) -> str:
    over = f"over versions {demand.version - demand.versions + 1} to {demand.version}"
    waits = f"the trainer of {demand.policy} waited for groups for {demand.wait_share:.0%} of its time {over}"
    if demand.wait_share > STARVES:
        why = f"{waits}, so it needs {wanted} workers"
    elif wanted < count:
        used = f"{demand.busy_share:.0%} of the workers' room was in use"
        why = f"{waits}, and {used}, so {wanted} {'worker is' if wanted == 1 else 'workers are'} enough"
    else:
        why = waits
    if chosen == wanted:
        return why
    least, most = limits
    bound = (
        f"at most {most}" if chosen == most else f"at least {least}" if chosen == least else "fewer were too few before"
    )
    return f"{why}; {bound}"


def _round_up(value: float) -> int:
    return math.ceil(value - 1e-9)
