"""Whether every episode of a policy fails, and since when. No I/O, no clock."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from headrace.ops.first_word import is_first_word_of_training
from headrace.schemas.episode_errors import RAISED, kind_of
from headrace.schemas.records import EpisodeError, Outcome

ENOUGH = 32
"""Episodes that must have failed in a row. If one in five episodes succeeds, this happens one time in a thousand."""
ENOUGH_TASKS = 8
"""Number of tasks that these episodes must come from. If half of all tasks fail, this happens one time in 256."""


@dataclass(frozen=True, slots=True)
class Failing:
    """The failures since the last episode that succeeded."""

    episodes: int
    first_ms: int
    """Wall time of the first report, in ms since the epoch."""
    last_ms: int
    error: EpisodeError
    """The most frequent error; its `episodes` says how frequent."""


class FailingFold:
    """Counts the failed episodes of each policy variant since its last success."""

    def __init__(self) -> None:
        self._succeeded_ms: defaultdict[str, int] = defaultdict(int)
        self._failed: defaultdict[str, defaultdict[int, Counter[tuple[str, ...]]]] = defaultdict(
            lambda: defaultdict(Counter)
        )
        """Second since the epoch to error to the number of its failed episodes, since the last success."""
        self._tasks: defaultdict[str, Counter[int]] = defaultdict(Counter)
        """Second since the epoch to the tasks of these episodes."""
        self._errors: defaultdict[str, dict[tuple[str, ...], EpisodeError]] = defaultdict(dict)

    @property
    def has_success(self) -> bool:
        """Whether an episode of any policy has ever succeeded."""
        return bool(self._succeeded_ms)

    def fold_outcome(self, variant: str, outcome: Outcome, at_ms: int) -> None:
        """Take in a curator's outcome of that time, in any order."""
        if not is_first_word_of_training(outcome):
            return
        if outcome.rewards:
            self._succeed(variant, at_ms)
        elif at_ms > self._succeeded_ms.get(variant, 0):
            raised = [error for error in outcome.errors if error.reason in RAISED]
            self._tasks[variant][at_ms // 1000] += bool(raised)
            for error in raised:
                self._failed[variant][at_ms // 1000][kind_of(error)] += error.episodes
                self._errors[variant].setdefault(kind_of(error), error)

    def _succeed(self, variant: str, at_ms: int) -> None:
        self._succeeded_ms[variant] = max(at_ms, self._succeeded_ms[variant])
        if not (failed := self._failed[variant]):
            return
        for second in [second for second in failed if second <= at_ms // 1000]:
            del failed[second]
            self._tasks[variant].pop(second, None)
        if not failed:
            self._errors[variant].clear()

    def find_failing(self, variant: str, since_ms: int) -> Failing | None:
        """Return the failures after that time, if they are enough and no episode has succeeded since."""
        seconds = [second for second in self._failed[variant] if second >= since_ms // 1000]
        failed = Counter[tuple[str, ...]]()
        for second in seconds:
            failed.update(self._failed[variant][second])
        episodes = failed.total()
        if episodes < ENOUGH or sum(self._tasks[variant][second] for second in seconds) < ENOUGH_TASKS:
            return None
        [(kind, _)] = failed.most_common(1)
        return Failing(episodes, min(seconds) * 1000, max(seconds) * 1000, self._errors[variant][kind])
