"""Checks that every record of a task carries the recipe revision under which the task was issued. No I/O.

The feeder's snapshot gives the first number of each revision. Only the lowest and the highest number of each topic,
stream and revision are kept: they show whether a record has a wrong revision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.ledger.trained_streams import Begins


class RevisionSpans:
    """Numbers by topic, stream and revision."""

    def __init__(self) -> None:
        self._spans: dict[tuple[str, str, int], list[int]] = {}

    def note_number(self, topic: str, stream: str, number: int, revision: int) -> None:
        """Take in a record of a training number."""
        span = self._spans.get((topic, stream, revision))
        if span is None:
            self._spans[topic, stream, revision] = [number, number]
        elif number < span[0]:
            span[0] = number
        elif number > span[1]:
            span[1] = number

    def problems(self, begins: Begins) -> Iterator[str]:
        """Yield what is wrong; numbers before the first that the feeder names are not checked."""
        for (topic, stream, revision), (low, high) in sorted(self._spans.items()):
            known = begins.get(stream, ())
            if not known:
                continue
            begin, end = _find_span(revision, known)
            first = known[0][1]
            for number in dict.fromkeys((max(low, first), high)):
                if number >= first and not begin <= number < end:
                    yield (
                        f"{topic}: a record of {stream}:{number} has recipe revision {revision}, but the task was "
                        f"issued under revision {_find_revision(number, known)}"
                    )


def _find_span(revision: int, begins: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Return the first number of a revision and the number after its last; an empty span if it has none."""
    for at, (known, first) in enumerate(begins):
        if known == revision:
            return first, begins[at + 1][1] if at + 1 < len(begins) else float("inf")
    return float("inf"), float("inf")


def _find_revision(number: int, begins: Sequence[Sequence[int]]) -> int:
    return next(revision for revision, first in reversed(begins) if number >= first)
