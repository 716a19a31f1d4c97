"""One pool of workers as the autoscaler sees it: when its number was changed last, and what followed. No I/O, no clock.

After each change, by whomever, it waits until the pool has so many workers. It counts only versions that were made with
them from the beginning, so that a number is judged by its own effect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from headrace.infra.inflection import inflect
from headrace.ops.autoscale.rule import LOOK_BACK, URGENT_AFTER, Choice, Move, Step, choose_count, find_mistakes

SETTLE_S = 90.0
"""Longest wait for a new number of workers to play, in seconds; the pool may have workers that it does not count."""
MOST_SAMPLES = 4096


@dataclass(frozen=True, slots=True)
class Seen:
    """A pool at one moment."""

    count: int
    """Number of workers that the pool should have."""
    playing: int
    """Workers of the workflow that play."""
    newest: Mapping[str, int]
    """Newest version of each policy of the workflow that is still trained."""
    steps: Mapping[str, Sequence[Step]]
    """Policy to its newest versions, oldest first."""
    busy_share: float | None
    """Share of their room that is in use; None if none plays."""
    now_s: float
    """Monotonic time in seconds."""


class PoolWatch:
    """Decides on the number of one pool's workers.

    Args:
        limits: Least and most workers.
        moves: Decisions of earlier autoscalers of the run, oldest first.
    """

    def __init__(self, limits: tuple[int, int], moves: Iterable[Move] = ()) -> None:
        self._limits, self._moves = limits, list(moves)
        self._count, self._changed_s = -1, 0.0
        self._since: dict[str, int] | None = None
        """Newest version of each policy when the present number of workers began to play; None before."""
        self._samples: deque[tuple[Mapping[str, int], float]] = deque(maxlen=MOST_SAMPLES)
        """Newest versions, and the share of the workers' room in use."""

    def look(self, seen: Seen) -> Choice | str:
        """Take in a moment; return the number to ask for, or why there is none; empty if the present one is right."""
        if seen.count != self._count or not seen.playing:  # after an outage, too, whose wait says nothing of the number
            self._begin(seen)
        if not seen.newest:
            return "every trainer of the workflow has made its last version"
        if not seen.count:
            return "the pool is paused, as it has 0 workers: `headrace scale rollout=N` starts some"
        if not seen.playing:
            return "no worker of the workflow reports that it plays: they are starting, or they or Kafka are away"
        if self._since is None:
            is_complete = seen.playing == seen.count
            if not is_complete and seen.now_s - self._changed_s < SETTLE_S:
                return f"{seen.playing} of {seen.count} {inflect(seen.count, 'worker')} play"
            self._since = dict(seen.newest)
        if seen.busy_share is not None:
            self._samples.append((dict(seen.newest), seen.busy_share))
        # The groups of the first version were begun before.
        steps = {
            policy: [
                step for step in seen.steps.get(policy, ()) if step.version > self._since.setdefault(policy, at) + 1
            ]
            for policy, at in seen.newest.items()
        }
        least = min(map(len, steps.values()))
        if least < URGENT_AFTER:
            return f"fewer than {URGENT_AFTER} versions were made with this number of workers"
        busy = {policy: self._find_busy_share(policy, made) for policy, made in steps.items()}
        found = choose_count(seen.count, steps, busy, self._limits, find_mistakes(self._moves))
        few = f"{least} of {LOOK_BACK} versions were made with this number of workers"
        return found or (few if least < LOOK_BACK else "")

    def note_decision(self, move: Move) -> None:
        """Take in a decision that was written; the pool is judged anew, even if its number does not change."""
        self._moves.append(move)
        self._count = -1

    def _begin(self, seen: Seen) -> None:
        self._count, self._changed_s, self._since = seen.count, seen.now_s, None
        self._samples.clear()

    def _find_busy_share(self, policy: str, steps: Sequence[Step]) -> float:
        """Return the mean over the newest steps; 1 if it is not known, so that no worker is removed."""
        first = steps[-LOOK_BACK:][0].version - 1
        found = [share for newest, share in self._samples if newest.get(policy, -1) >= first]
        return fmean(found) if found else 1.0
