"""Finds regions that are lost for good: they have open tasks, and no group of theirs has come for too long. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.producers.feed.open_tasks import OpenTask
from headrace.schemas.ids import GroupId
from headrace.schemas.topics import region_of


@dataclass(slots=True)
class _Silence:
    answers: int
    """Number of groups of the stream that had come when the silence began."""
    since_s: float


class LostRegions:
    """Watches the streams of regions. The caller gives the time; waits start anew after a restart.

    Args:
        after_s: Region to the seconds of silence after which it counts as lost.
    """

    def __init__(self, after_s: Mapping[str, float]) -> None:
        self._after_s = dict(after_s)
        self._silences: dict[str, _Silence] = {}

    def find_lost(
        self, tasks: Mapping[GroupId, OpenTask], answers: Mapping[str, int], now_s: float
    ) -> dict[str, list[GroupId]]:
        """Return region streams that are lost, each with the open numbers to issue again at home.

        Args:
            tasks: The open numbers.
            answers: Stream to the number of its groups that have come from its region.
            now_s: The time.
        """
        waiting: dict[str, list[GroupId]] = {}
        for group, task in tasks.items() if self._after_s else ():  # most runs have no regions, and many open tasks
            if region_of(group.stream) in self._after_s and task.unacknowledged and not task.is_home:
                waiting.setdefault(group.stream, []).append(group)
        before, self._silences = self._silences, {}
        found = {}
        for stream, groups in waiting.items():
            known = before.get(stream)
            if known is None or known.answers != answers.get(stream, 0):
                known = _Silence(answers.get(stream, 0), now_s)
            if now_s - known.since_s >= self._after_s[region_of(stream)]:
                found[stream] = groups
            else:
                self._silences[stream] = known
        return found
