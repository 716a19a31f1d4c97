"""The cells of the kill matrix: who dies, and at which moment. A pure function of the seed."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

SLOTS = {
    "trainer": ("train-player",),
    "worker": ("rollout-flips-0", "rollout-flips-1"),
    "feeder": ("feed",),
    "curator": ("curate-player-0", "curate-player-1"),
    "evaluator": ("evaluate",),
    "broker": ("broker",),
    "store": ("store",),
}
"""Kind to the names of its processes, as the launcher gives them. A supervisor is none of them: with it dies all. At a
named point all are killed, at a random time it alone is, and the others must notice."""
IN_A_TURN = ("handled", "begun", "produced", "committing", "committed")
OWN_POINTS = {
    "trainer": tuple(
        f"train.{moment}"
        for moment in (
            *IN_A_TURN,
            "stepped",
            "copied",
            "before_upload",
            "after_upload",
            "before_checkpoint",
            "after_checkpoint",
        )
    ),
    "worker": tuple(
        f"rollout.{moment}"
        for moment in ("started", "played", "delivered", "committing", "committed", "before_swap", "after_swap")
    ),
    "feeder": tuple(f"feed.{moment}" for moment in IN_A_TURN),
    "curator": tuple(f"curate.{moment}" for moment in (*IN_A_TURN, "offsets_sent")),
    "evaluator": tuple(f"evaluate.{moment}" for moment in IN_A_TURN),
}
"""Kind to the failpoints that its own process passes (`infra/failpoints.py`)."""
SINGLES = ("broker", "store", "feeder", "worker", "curator", "trainer", "evaluator", "supervisor")
PAIRS = (("broker", "trainer"), ("curator", "worker"))
MOMENTS = 20
"""Of each kind and pair."""
AT_RANDOM = 0.3
"""Share of these at a random time instead of a named point."""
LONGEST_DELAY_S = 4.0
RARE = ("checkpoint", "evaluate.")
"""Points that a process passes seldom: the first or second time is late enough."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One kill."""

    kinds: tuple[str, ...]
    """Who dies at once; `supervisor` is `headrace up` with all its children."""
    slot: int
    """Which one, of a kind with several processes."""
    point: str = ""
    """The failpoint at which they die; empty for a random time."""
    nth: int = 1
    """How often one process passes the point before it happens."""
    delay_s: float = 0.0
    """The random time."""

    @property
    def who(self) -> str:
        """The kinds, for people."""
        return " + ".join(self.kinds)

    @property
    def moment(self) -> str:
        """The moment, for people."""
        return f"{self.point} #{self.nth}" if self.point else f"after {self.delay_s:.2f} s"

    @property
    def dies_by_itself(self) -> bool:
        """Whether the victim's own process passes the point, and can kill itself there."""
        return len(self.kinds) == 1 and self.point in OWN_POINTS.get(self.kinds[0], ())


def plan(seed: int, moments: int = MOMENTS) -> list[Cell]:
    """Return every kind and pair at so many moments each, shuffled."""
    draw = random.Random(seed)  # noqa: S311 - a plan, not a secret
    cells = [cell for kinds in (*((kind,) for kind in SINGLES), *PAIRS) for cell in _of(kinds, moments, draw)]
    draw.shuffle(cells)
    return cells


def _of(kinds: tuple[str, ...], moments: int, draw: random.Random) -> Iterable[Cell]:
    points = _points_of(kinds)
    draw.shuffle(points)
    at_random = round(moments * AT_RANDOM)
    for n in range(moments - at_random):
        point = points[n % len(points)]
        most = 2 if any(word in point for word in RARE) else 12
        yield Cell(kinds, draw.randrange(2), point, draw.randint(1, most))
    for _ in range(at_random):
        yield Cell(kinds, draw.randrange(2), delay_s=draw.uniform(0, LONGEST_DELAY_S))


def _points_of(kinds: tuple[str, ...]) -> list[str]:
    """The victims' own points; those of everybody where the victims have none (servers, supervisor)."""
    own = [point for kind in kinds for point in OWN_POINTS.get(kind, ())]
    return own or [point for points in OWN_POINTS.values() for point in points]
