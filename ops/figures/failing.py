"""Whether every episode of a policy fails, and since when, from the ledger."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from headrace.ledger.ledger import Ledger
from headrace.schemas.episode_errors import RAISED
from headrace.schemas.records import EpisodeError

ENOUGH = 32
"""Episodes that must have failed in a row. If one in five episodes succeeds, this happens one time in a thousand."""
ENOUGH_TASKS = 8
"""Number of tasks that these episodes must come from. If half of all tasks fail, this happens one time in 256."""
_FAILED = f"""
    SELECT count(DISTINCT outcome_id), sum(episodes), min(at_ms) / 1000, max(at_ms) / 1000, min(id), kind
    FROM episode_error
    WHERE variant = ? AND stream = ? AND at_ms >= ? AND reason IN ({", ".join(f"'{one}'" for one in RAISED)})
    GROUP BY kind ORDER BY min(id)
"""


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


class Failures:
    """The failed episodes of each policy and stream since the last success of that stream."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @property
    def has_success(self) -> bool:
        """Whether an episode of any policy has ever succeeded."""
        return bool(self._ledger.query("SELECT 1 FROM decided WHERE succeeded_ms IS NOT NULL LIMIT 1"))

    def find_failing(self, variant: str, since_ms: int) -> list[Failing]:
        """Return the failures after that time, if they are enough and no episode of their stream has succeeded since.

        As long as no episode of the policy has ever succeeded, its streams are counted together.
        """
        rows = self._ledger.query(
            "SELECT stream, max(succeeded_ms) FROM decided WHERE variant = ? GROUP BY stream ORDER BY stream", variant
        )
        succeeded_ms: dict[str, int] = {stream: at_ms for stream, at_ms in rows if at_ms is not None}
        streams = [stream for stream, _ in rows]
        together = [[stream] for stream in streams] if succeeded_ms else [streams]
        found = (self._count(variant, some, since_ms, succeeded_ms) for some in together)
        return [one for one in found if one is not None]

    def _count(self, variant: str, streams: list[str], since_ms: int, succeeded_ms: dict[str, int]) -> Failing | None:
        counts, first = Counter[str](), dict[str, int]()
        seconds, groups, seen = set[int](), 0, list[str]()
        for stream in streams:
            begin_s = max(since_ms // 1000, succeeded_ms.get(stream, -1000) // 1000 + 1)
            rows = self._ledger.query(_FAILED, variant, stream, begin_s * 1000)
            # A group with several errors counts for each: that matters only for the first few groups.
            for of_kind, episodes, begin, end, first_id, kind in rows:
                first.setdefault(kind, first_id)
                counts[kind] += episodes
                seconds |= {begin, end}
                groups += of_kind
                seen.append(stream)
        if counts.total() < ENOUGH or groups < ENOUGH_TASKS:
            return None
        [(kind, _)] = counts.most_common(1)
        first_ms = min(seconds) * 1000
        in_part = any(at_ms >= first_ms for at_ms in succeeded_ms.values())
        of = tuple(dict.fromkeys(seen))
        [error] = self._ledger.query(
            "SELECT reason, detail, at, role, turn, episodes, has_traceback FROM episode_error WHERE id = ?",
            first[kind],
        )
        return Failing(counts.total(), first_ms, max(seconds) * 1000, EpisodeError(*error), of, in_part)
