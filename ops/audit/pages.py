"""The facts about every task number, as bits in pages of consecutive numbers. No I/O.

Bits are set and hardly ever cleared, so the order in which the partitions of a topic are read does not matter. A large
number costs one page, not memory for all numbers before it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PAGE_BITS = 12
PAGE_NUMBERS = 1 << PAGE_BITS
LOW = PAGE_NUMBERS - 1

(
    PRODUCED,
    CURATED,
    KEPT,
    TRAINED,
    DISCARDED,
    EVICTED,
    BY_TRAINER,
    TWICE,
    KEPT_TWICE,
    CURATED_TWICE,
    REACHED,
    IN_WINDOW,
    OVERDUE,
    LATE,
    EARLY,
    UNMATCHED,
    ANSWER_DUE,
    TASK_WAITS,
    REOPENED,
    EVICTED_TWICE,
    ODD_VERDICT,
    NO_REASON,
    ODD_FACTS,
    MISPLACED,
) = (1 << bit for bit in range(24))
CONCLUDED = TRAINED | DISCARDED
PASSED = PRODUCED
"""Bit that means for a replay that its trainer has read past it: no worker produces a replay."""
PLAYED = PRODUCED | KEPT | CURATED | CONCLUDED
"""Bits that prove that a worker could read the task."""
REASON_BITS = 24
"""The bits above these hold the number of a reason."""
FLAGS = (1 << REASON_BITS) - 1
MOST_DEATHS = 100

PageKey = tuple[str, int, int]
"""(stream, use, number of the page)."""
Bits = npt.NDArray[np.uint32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Page:
    """PAGE_NUMBERS consecutive numbers of a stream, in one use."""

    stream: str
    use: int
    first: int
    bits: Bits
    deaths: npt.NDArray[np.int8]
    """Number of dead letters about groups that concluded a number, minus redrives that opened it again."""
    task_deaths: npt.NDArray[np.int8]
    """The same for dead letters about tasks; they do not count if another worker played the task."""

    def mask(self, bits: int) -> Mask:
        """Return which numbers have at least one of these bits."""
        found: Mask = (self.bits & bits) != 0
        return found

    @property
    def died(self) -> Mask:
        """Numbers that a dead letter concludes.

        A dead letter about a task does not conclude it if the task was played: a worker of an older recipe may have
        written the dead letter, and been killed before its commit.
        """
        found: Mask = (self.deaths > 0) | ((self.task_deaths > 0) & ~self.mask(PLAYED))
        return found

    @property
    def dead(self) -> Mask:
        """Numbers that a dead letter concludes, and that were neither trained nor discarded."""
        return self.died & ~self.mask(CONCLUDED)

    @property
    def concluded(self) -> Mask:
        """Numbers that are not open any more."""
        return self.mask(CONCLUDED) | self.died

    def is_below(self, number: int) -> Mask:
        """Return which numbers are less than this one, and not negative."""
        found: Mask = np.arange(PAGE_NUMBERS) < (number - self.first if self.first >= 0 else 0)
        return found


NO_BITS = np.zeros(PAGE_NUMBERS, np.uint32)
NO_DEATHS = np.zeros(PAGE_NUMBERS, np.int8)
NEVER_TRAINED = -1


class Pages:
    """The pages of one policy: four bytes a number, four more for one that was trained; sixteen in a deep audit."""

    def __init__(self) -> None:
        self._bits: dict[PageKey, array[int]] = {}
        self._deaths: dict[PageKey, array[int]] = {}
        self._task_deaths: dict[PageKey, array[int]] = {}
        self._versions: dict[PageKey, array[int]] = {}
        self._digests: dict[PageKey, array[int]] = {}
        self._facts: dict[PageKey, array[int]] = {}
        self._verdicts: dict[PageKey, array[int]] = {}

    def mark(self, stream: str, number: int, use: int, bits: int) -> int:
        """Set bits, and return the bits that were set before."""
        page = self.bits_of(stream, number, use)
        before = page[number & LOW]
        page[number & LOW] = before | bits
        return before

    def clear(self, stream: str, number: int, use: int, bits: int) -> None:
        """Clear bits."""
        self.bits_of(stream, number, use)[number & LOW] &= ~bits

    def bits_of(self, stream: str, number: int, use: int) -> array[int]:
        """Return the bits of the page of a number, for writing."""
        key = (stream, use, number >> PAGE_BITS)
        page = self._bits.get(key)
        if page is None:
            page = self._bits[key] = array("I", bytes(4 * PAGE_NUMBERS))
        return page

    def count_death(self, stream: str, number: int, use: int, dead_letters: int, *, of_task: bool) -> None:
        """Count a dead letter; -1 for a redrive, which opens its number again."""
        self.bits_of(stream, number, use)
        pages = self._task_deaths if of_task else self._deaths
        page = pages.setdefault((stream, use, number >> PAGE_BITS), array("b", bytes(PAGE_NUMBERS)))
        page[number & LOW] = max(-MOST_DEATHS, min(MOST_DEATHS, page[number & LOW] + dead_letters))

    def set_version(self, stream: str, number: int, use: int, version: int) -> None:
        """Note the version that was trained on a use, or a code of the one that an evaluation's task asks for."""
        key = (stream, use, number >> PAGE_BITS)
        page = self._versions.get(key)
        if page is None:
            page = self._versions[key] = array("i", [NEVER_TRAINED]) * PAGE_NUMBERS
        page[number & LOW] = max(NEVER_TRAINED, min(version, 2**31 - 1))

    def version(self, stream: str, number: int, use: int) -> int:
        """Return what `set_version` noted; NEVER_TRAINED for nothing."""
        page = self._versions.get((stream, use, number >> PAGE_BITS))
        return NEVER_TRAINED if page is None else page[number & LOW]

    def set_digest(self, stream: str, number: int, digest: int) -> None:
        """Note the digest of a number's curated group."""
        page = self._digests.setdefault((stream, 0, number >> PAGE_BITS), array("Q", bytes(8 * PAGE_NUMBERS)))
        page[number & LOW] = digest

    def digest(self, stream: str, number: int) -> int:
        """Return the digest of a number's curated group; 0 for none."""
        page = self._digests.get((stream, 0, number >> PAGE_BITS))
        return 0 if page is None else page[number & LOW]

    def set_facts(self, stream: str, number: int, digest: int) -> None:
        """Note the digest of an outcome's facts about a number's group."""
        page = self._facts.setdefault((stream, 0, number >> PAGE_BITS), array("Q", bytes(8 * PAGE_NUMBERS)))
        page[number & LOW] = digest

    def facts(self, stream: str, number: int) -> int:
        """Return the digest of an outcome's facts about a number's group; 0 for none."""
        page = self._facts.get((stream, 0, number >> PAGE_BITS))
        return 0 if page is None else page[number & LOW]

    def set_verdict(self, stream: str, number: int, use: int, code: int) -> None:
        """Note why the trainer evicted a use, as a number above 0."""
        page = self._verdicts.setdefault((stream, use, number >> PAGE_BITS), array("b", bytes(PAGE_NUMBERS)))
        page[number & LOW] = code

    def verdict(self, stream: str, number: int, use: int) -> int:
        """Return why the trainer evicted a use; 0 for none."""
        page = self._verdicts.get((stream, use, number >> PAGE_BITS))
        return 0 if page is None else page[number & LOW]

    def iterate(self) -> Iterator[Page]:
        """Yield all pages."""
        return (self.page(*key) for key in self._bits)

    def indices(self, stream: str) -> list[int]:
        """Return the indices of the pages of a stream's first uses."""
        return [index for name, use, index in self._bits if name == stream and not use]

    def page(self, stream: str, use: int, index: int) -> Page:
        """Return a page; a page that was never written is empty."""
        key = (stream, use, index)
        bits, deaths, of_tasks = self._bits.get(key), self._deaths.get(key), self._task_deaths.get(key)
        return Page(
            stream,
            use,
            index << PAGE_BITS,
            NO_BITS if bits is None else np.frombuffer(bits, np.uint32),
            NO_DEATHS if deaths is None else np.frombuffer(deaths, np.int8),
            NO_DEATHS if of_tasks is None else np.frombuffer(of_tasks, np.int8),
        )
