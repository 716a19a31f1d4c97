"""Whether every episode of a policy fails, and since when. No I/O, no clock."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TypeAlias

from headrace.ops.first_word import is_first_word_of_training
from headrace.schemas.episode_errors import RAISED, kind_of
from headrace.schemas.records import EpisodeError, Outcome

ENOUGH = 32
"""Episodes that must have failed in a row: of an environment in which one of five succeeds, one time in a thousand."""
ENOUGH_TASKS = 8
"""Tasks that they must be of: where half of the tasks fail, all of so many do one time in 256."""


_Key: TypeAlias = tuple[str, str]
"""Policy variant and stream."""


@dataclass(frozen=True, slots=True)
class Failing:
    """Every episode failed since the last that succeeded."""

    episodes: int
    first_ms: int
    """Wall time of the first report, in ms since the epoch."""
    last_ms: int
    error: EpisodeError
    """The most frequent one; `episodes` says how frequent."""
    streams: tuple[str, ...]
    """Those that they are of: one, or all where the policy never had an episode that succeeded."""


class FailingFold:
    """Counts the failed episodes of each policy variant, by stream, since one of that stream succeeded last."""

    def __init__(self) -> None:
        self._succeeded_ms: defaultdict[_Key, int] = defaultdict(int)
        self._failed: defaultdict[_Key, defaultdict[int, Counter[tuple[str, ...]]]] = defaultdict(
            lambda: defaultdict(Counter)
        )
        """Second since the epoch to errors, to episodes that failed by them in it; of those after the last success."""
        self._tasks: defaultdict[_Key, Counter[int]] = defaultdict(Counter)
        """The same to tasks that they were of."""
        self._errors: defaultdict[_Key, dict[tuple[str, ...], EpisodeError]] = defaultdict(dict)

    @property
    def has_success(self) -> bool:
        """Whether an episode has ever succeeded, of any policy and stream."""
        return bool(self._succeeded_ms)

    def fold_outcome(self, variant: str, outcome: Outcome, at_ms: int) -> None:
        """Take in what a curator wrote of a group at that time, in whatever order."""
        if not is_first_word_of_training(outcome):
            return
        key = variant, outcome.stream
        if outcome.rewards:
            self._succeed(key, at_ms)
        elif at_ms > self._succeeded_ms.get(key, 0):
            raised = [error for error in outcome.errors if error.reason in RAISED]
            self._tasks[key][at_ms // 1000] += bool(raised)
            for error in raised:
                self._failed[key][at_ms // 1000][kind_of(error)] += error.episodes
                self._errors[key].setdefault(kind_of(error), error)

    def _succeed(self, key: _Key, at_ms: int) -> None:
        self._succeeded_ms[key] = max(at_ms, self._succeeded_ms[key])
        if not (failed := self._failed[key]):
            return
        for second in [second for second in failed if second <= at_ms // 1000]:
            del failed[second]
            self._tasks[key].pop(second, None)
        if not failed:
            self._errors[key].clear()

    def find_failing(self, variant: str, since_ms: int) -> list[Failing]:
        """Return how many episodes failed after that time, if there are enough and none has succeeded since.

        Of a policy that never had one that succeeded all streams count together, else each for itself.
        """
        keys = sorted(key for key in self._failed if key[0] == variant)
        has_success = any(key[0] == variant for key in self._succeeded_ms)
        found = (self._count(some, since_ms) for some in ([[key] for key in keys] if has_success else [keys]))
        return [one for one in found if one is not None]

    def _count(self, keys: list[_Key], since_ms: int) -> Failing | None:
        seen = [(key, second) for key in keys for second in self._failed[key] if second >= since_ms // 1000]
        failed = Counter[tuple[str, ...]]()
        for key, second in seen:
            failed.update(self._failed[key][second])
        episodes = failed.total()
        if episodes < ENOUGH or sum(self._tasks[key][second] for key, second in seen) < ENOUGH_TASKS:
            return None
        [(kind, _)] = failed.most_common(1)
        error = next(self._errors[key][kind] for key in keys if kind in self._errors[key])
        seconds = [second for _, second in seen]
        streams = tuple(dict.fromkeys(key[1] for key, _ in seen))
        return Failing(episodes, min(seconds) * 1000, max(seconds) * 1000, error, streams)
