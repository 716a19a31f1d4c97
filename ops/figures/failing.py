"""Whether every episode of a policy fails, and since when. No I/O, no clock."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TypeAlias

from headrace.ops.first_decision import is_first_training_decision
from headrace.schemas.episode_errors import MALFORMED, RAISED, error_key_of
from headrace.schemas.records import EpisodeError, Outcome

ENOUGH = 32
"""Episodes that must have failed in a row. If one in five episodes succeeds, this happens one time in a thousand."""
ENOUGH_TASKS = 8
"""Number of tasks that these episodes must come from. If half of all tasks fail, this happens one time in 256."""


_Key: TypeAlias = tuple[str, str]
"""Policy variant and stream."""


@dataclass(frozen=True, slots=True)
class Failing:
    """The failures since the last episode that succeeded."""

    episodes: int
    first_ms: int
    """Wall time of the first report, in ms since the epoch."""
    last_ms: int
    error: EpisodeError
    """The most frequent error; its `episodes` says how frequent."""
    streams: tuple[str, ...]
    """Streams of these episodes: one, or all streams if no episode of the policy ever succeeded."""
    in_part: bool
    """Whether an episode of another stream of the policy has succeeded since the first failure."""


class FailingFold:
    """Counts the failed episodes of each policy variant and stream since the last success of that stream."""

    def __init__(self) -> None:
        self._succeeded_ms: defaultdict[_Key, int] = defaultdict(int)
        self._failed: defaultdict[_Key, defaultdict[int, Counter[tuple[str, ...]]]] = defaultdict(
            lambda: defaultdict(Counter)
        )
        """Second since the epoch to error to the number of its failed episodes, since the last success."""
        self._tasks: defaultdict[_Key, Counter[int]] = defaultdict(Counter)
        """Second since the epoch to the tasks of these episodes."""
        self._errors: defaultdict[_Key, dict[tuple[str, ...], EpisodeError]] = defaultdict(dict)

    @property
    def has_success(self) -> bool:
        """Whether an episode of any policy has ever succeeded."""
        return bool(self._succeeded_ms)

    def fold_outcome(self, variant: str, outcome: Outcome, at_ms: int) -> None:
        """Take in a curator's outcome of that time, in any order."""
        if not is_first_training_decision(outcome):
            return
        key = variant, outcome.stream
        if outcome.rewards and outcome.reason != MALFORMED:
            self._record_success(key, at_ms)
        elif at_ms > self._succeeded_ms.get(key, 0):
            raised = [error for error in outcome.errors if error.reason in RAISED]
            self._tasks[key][at_ms // 1000] += bool(raised)
            for error in raised:
                self._failed[key][at_ms // 1000][error_key_of(error)] += error.episodes
                self._errors[key].setdefault(error_key_of(error), error)

    def _record_success(self, key: _Key, at_ms: int) -> None:
        self._succeeded_ms[key] = max(at_ms, self._succeeded_ms[key])
        if not (failed := self._failed[key]):
            return
        for second in [second for second in failed if second <= at_ms // 1000]:
            del failed[second]
            self._tasks[key].pop(second, None)
        if not failed:
            self._errors[key].clear()

    def find_failing(self, variant: str, since_ms: int) -> list[Failing]:
        """Return the failures after that time, if they are enough and no episode of their stream has succeeded since.

        As long as no episode of the policy has ever succeeded, its streams are counted together.
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
        first_ms, variant = min(seconds) * 1000, keys[0][0]
        in_part = any(key[0] == variant and at_ms >= first_ms for key, at_ms in self._succeeded_ms.items())
        return Failing(episodes, first_ms, max(seconds) * 1000, error, streams, in_part)
