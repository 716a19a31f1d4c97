"""Compares the bytes and facts of groups between topics, for a deep audit: eight bytes for each number. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from headrace.ops.audit.pages import KEPT, LOW, ODD_FACTS, UNMATCHED, Pages
from headrace.ops.audit.problems import AuditProblem, Problems

_WHAT = (
    (
        ODD_FACTS,
        "has an outcome that does not match any group that workers produced: rewards, lengths, counts or task differ",
    ),
    (UNMATCHED, "has a curated record with a group that no worker produced"),
)


class MatchedValues:
    """The first uses of one policy or shadow. Outcomes and curated records come before deliveries."""

    def __init__(self, policy_variant: str) -> None:
        self._policy_variant, self._pages = policy_variant, Pages()
        self._late: list[tuple[str, int, int]] = []

    def note_kept(self, stream: str, number: int) -> None:
        """Note that an outcome says that a group was kept."""
        self._pages.mark(stream, number, 0, KEPT)

    def is_kept(self, stream: str, number: int) -> bool:
        """Return whether an outcome says that a group was kept."""
        return bool(self._pages.bits_of(stream, number, 0)[number & LOW] & KEPT)

    def note_late(self, stream: str, number: int, use: int) -> None:
        """Note that a use was trained after the deadline in its record."""
        self._late.append((stream, number, use))

    def expect_delivery(self, stream: str, number: int, digest: int) -> None:
        """Note the digest of the group in a curated record: one of its deliveries must have the same."""
        self._pages.set_digest(stream, number, digest)
        self._pages.mark(stream, number, 0, UNMATCHED)

    def match_delivery(self, stream: str, number: int, digest: int) -> None:
        """Take in the digest of a group that a worker delivered, to be compared with that of its curated record."""
        if self._pages.digest(stream, number) == digest:
            self._pages.clear(stream, number, 0, UNMATCHED)

    def expect_facts(self, stream: str, number: int, digest: int) -> None:
        """Note the digest of an outcome's facts about a group: one of its deliveries must have the same."""
        self._pages.set_facts(stream, number, digest)
        self._pages.mark(stream, number, 0, ODD_FACTS)

    def match_facts(self, stream: str, number: int, digest: int) -> None:
        """Take in the digest of a delivery's facts."""
        if self._pages.facts(stream, number) == digest:
            self.clear_facts(stream, number)

    def clear_facts(self, stream: str, number: int) -> None:
        """Note that the facts of a group cannot be compared."""
        self._pages.clear(stream, number, 0, ODD_FACTS)

    def problems(self) -> Problems:
        """Return the numbers whose values do not match."""
        found = Problems()
        for stream, number, use in self._late:
            what = f"(use {use}) was trained after its deadline" if use else "was trained after its deadline"
            found.add([AuditProblem(what, self._policy_variant, stream, number)], 1)
        for page in self._pages.iterate():
            for bit, what in _WHAT:
                numbers = np.flatnonzero(page.mask(bit))
                found.add(self._list(what, page.stream, page.first, numbers), len(numbers))
        return found

    def _list(self, what: str, stream: str, first: int, numbers: Iterable[int]) -> Iterator[AuditProblem]:
        return (AuditProblem(what, self._policy_variant, stream, first + int(at)) for at in numbers)
