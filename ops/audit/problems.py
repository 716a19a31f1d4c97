"""The problems that an audit found: at most a hundred sentences, and the count of the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

MOST_LISTED = 100


@dataclass(frozen=True, slots=True)
class AuditProblem:
    """A problem that an audit found."""

    what: str
    """The sentence; for a number, the part after its name."""
    policy: str = ""
    stream: str = ""
    number: int = -1
    records: tuple[str, ...] = ()
    """Records that name the number."""

    def __str__(self) -> str:
        """Return the sentence, with the name of the number and the records that name it."""
        name = f"{self.stream}:{self.number} of {self.policy} " if self.stream else ""
        records = f" ({', '.join(self.records)})" if self.records else ""
        return f"{name}{self.what}{records}"


@dataclass(slots=True)
class Problems:
    """Problems as they are found; beyond the first hundred they are only counted."""

    listed: list[AuditProblem] = field(default_factory=list)
    total: int = 0

    def __bool__(self) -> bool:
        """Return whether there are problems."""
        return self.total > 0

    def add_sentence(self, what: str) -> None:
        """Add a sentence."""
        self.add([AuditProblem(what)], 1)

    def add(self, found: Iterable[AuditProblem], count: int) -> None:
        """Add `count` problems, and list the first of them from `found`; no more are drawn than can be listed."""
        room = min(count, MOST_LISTED - len(self.listed))
        draw: Iterator[AuditProblem] = iter(found)
        for _ in range(room):
            self.listed.append(next(draw))
        self.total += count

    def extend(self, other: Problems) -> None:
        """Add all problems of another list."""
        before = len(self.listed)
        self.listed += other.listed[: MOST_LISTED - before]
        self.total += other.total

    @property
    def more(self) -> int:
        """Number of problems that were counted but not listed."""
        return self.total - len(self.listed)
