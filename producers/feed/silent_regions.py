"""Finds regions from which no group comes though they have open tasks: silent ones, and those that are lost. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.producers.feed.open_tasks import OpenTask
from headrace.schemas.ids import GroupId
from headrace.schemas.topics import region_of

SILENT_SHARE = 0.1
"""Of `lost_after_s`: after so long a region counts as silent."""
LOST_AFTER_END_S = 10.0
"""Longest wait for a region once the run has ended: `headrace up` waits for its groups, and no trainer does."""


@dataclass(slots=True)
class _Silence:
    answers: int
    """Number of groups of the stream that had come when the silence began."""
    since_s: float
    is_silent: bool = False
    """Once it is, it stays so until a group comes."""


@dataclass(frozen=True, slots=True)
class Silent:
    """The silent streams of regions."""

    held: Mapping[str, Counter[str]] = field(default_factory=dict)
    """Stream to the open numbers that its region holds, by policy."""
    lost: Mapping[str, list[GroupId]] = field(default_factory=dict)
    """Stream that is lost to its open numbers, which are to be issued again at home."""

    def count_held(self, policy: str) -> int:
        """Return how many open numbers of a policy silent regions hold."""
        return sum(of_region[policy] for of_region in self.held.values())


class SilentRegions:
    """Watches the streams of regions. The caller gives the time; waits start anew after a restart.

    Args:
        after_s: Region to the seconds of silence after which it counts as lost.
    """

    def __init__(self, after_s: Mapping[str, float]) -> None:
        self._after_s = dict(after_s)
        self._silences: dict[str, _Silence] = {}

    def look(
        self, tasks: Mapping[GroupId, OpenTask], answers: Mapping[str, int], now_s: float, *, ended: bool = False
    ) -> Silent:
        """Return the streams that are silent, and those that are lost.

        Args:
            tasks: The open numbers.
            answers: Stream to the number of its groups that have come from its region.
            now_s: The time.
            ended: Whether the run has ended.
        """
        waiting: dict[str, list[GroupId]] = {}
        for group, task in tasks.items() if self._after_s else ():  # most runs have no regions, and many open tasks
            if region_of(group.stream) in self._after_s and task.unacknowledged and not task.is_home:
                waiting.setdefault(group.stream, []).append(group)
        before, self._silences = self._silences, {}
        held, lost = {}, {}
        for stream in dict.fromkeys((*waiting, *before)):
            known, groups = before.get(stream), waiting.get(stream, [])
            if known is None or known.answers != answers.get(stream, 0):
                known = _Silence(answers.get(stream, 0), now_s)
            if not groups and not known.is_silent:
                continue
            self._silences[stream] = known
            after_s = self._after_s[region_of(stream)]
            waited_s = now_s - known.since_s
            known.is_silent = known.is_silent or waited_s >= after_s * SILENT_SHARE
            if groups and waited_s >= (min(after_s, LOST_AFTER_END_S) if ended else after_s):
                lost[stream], known.since_s, groups = groups, now_s, []
            if known.is_silent:
                held[stream] = Counter(policy for group in groups for policy in tasks[group].open)
        return Silent(held, lost)
