"""Whether every record of a number carries the recipe revision that the number was issued under. No I/O.

The feeder says from which number on a stream's numbers are of a revision. Of the records only the lowest and the
highest number of each kind, stream and revision are kept: a record of any other revision lies outside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

Begins = Mapping[str, Sequence[Sequence[int]]]
"""Stream to [revision, the first number issued under it], in order."""


class RevisionSpans:
    """Numbers by topic, stream and revision."""

    def __init__(self) -> None:
        self._spans: dict[tuple[str, str, int], list[int]] = {}

    def see(self, topic: str, stream: str, number: int, revision: int) -> None:
        """Take in a record of a training number."""
        span = self._spans.get((topic, stream, revision))
        if span is None:
            self._spans[topic, stream, revision] = [number, number]
        elif number < span[0]:
            span[0] = number
        elif number > span[1]:
            span[1] = number

    def problems(self, begins: Begins) -> Iterator[str]:
        """Yield what is wrong; numbers from before the first that the feeder names are not judged."""
        for (topic, stream, revision), (low, high) in sorted(self._spans.items()):
            known = begins.get(stream, ())
            if not known:
                continue
            begin, end = _span_of(revision, known)
            first = known[0][1]
            for number in dict.fromkeys((max(low, first), high)):
                if number >= first and not begin <= number < end:
                    yield (
                        f"{topic}: number {number} of {stream} is of recipe revision {revision}, and was issued under "
                        f"{_revision_of(number, known)}"
                    )


def _span_of(revision: int, begins: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Return the first number of a revision and the one after its last; an empty span where it has none."""
    for at, (known, first) in enumerate(begins):
        if known == revision:
            return first, begins[at + 1][1] if at + 1 < len(begins) else float("inf")
    return float("inf"), float("inf")


def _revision_of(number: int, begins: Sequence[Sequence[int]]) -> int:
    return next(revision for revision, first in reversed(begins) if number >= first)
