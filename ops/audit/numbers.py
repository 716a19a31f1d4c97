"""What became of every number of a policy, two bytes each, whatever the order of the records. No I/O.

Bits are only ever set, so it does not matter in which order the partitions of the topics are read. Numbers stand in
pages, so one that is far away costs a page, not all that lies before it.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt

from headrace.ops.audit.problems import Problem, Problems

PAGE_BITS = 12
PAGE = 1 << PAGE_BITS
LOW = PAGE - 1

PRODUCED, CURATED, KEPT, TRAINED, DISCARDED, EVICTED, BY_TRAINER, TWICE, KEPT_TWICE = (1 << bit for bit in range(9))
CONCLUDED = TRAINED | DISCARDED
PASSED = PRODUCED
"""Of a replay, which no worker produces: its trainer has read past it."""
REASON_BITS = 9
"""The bits above these hold the number of a reason."""
FLAGS = (1 << REASON_BITS) - 1
MOST_REASONS = 127
"""Further reasons count as OTHER."""
OTHER = ("", "", "other")
MOST_DEATHS = 100

Said = tuple[str, str, str]
"""(component, verdict, reason) of a discard."""
PageKey = tuple[str, int, int]
"""(stream, use, number of the page)."""
Bits = npt.NDArray[np.uint16]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PolicyAudit:
    """Training numbers of one policy."""

    issued: int = 0
    produced: int = 0
    """Groups that workers delivered, each counted once; 0 where trajectories were not read."""
    duplicates: int = 0
    """Further deliveries of the same groups: workers are at-least-once."""
    kept: int = 0
    """Groups that the chain let through."""
    trained: int = 0
    """First uses."""
    discarded: dict[str, int] = field(default_factory=dict)
    """Whole groups by reason."""
    dead: int = 0
    in_flight: int = 0
    lost: int = 0
    """Numbers that can no longer conclude, and numbers that concluded without having been issued."""
    doubled: int = 0
    """Uses trained twice, trained and discarded, or discarded in two ways."""
    replays: int = 0
    """Uses after the first that the chain asked for; at the end of a run some are left that the trainer never read."""
    replayed: int = 0
    """Of these, trained."""
    replays_discarded: int = 0
    """Of these, evicted by the trainer, or dead."""
    trajectories_discarded: int = 0
    """Single trajectories of groups that were kept."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What may be expected of a run at this moment."""

    drained: bool = False
    """Nothing more can conclude: what is in flight is lost."""
    still: bool = False
    """Nobody writes now: all topics tell of the same moment."""
    whole: bool = False
    """Trajectories and curated groups were read too."""
    offline: bool = False
    """An offline experiment: the groups are those of another run, and only what was trained is here."""


@dataclass(frozen=True, slots=True)
class Page:
    """PAGE consecutive numbers of a stream, in one use."""

    stream: str
    use: int
    first: int
    bits: Bits
    deaths: npt.NDArray[np.int8]
    """Letters that concluded a number, less those that opened it again."""

    def has(self, bits: int) -> Mask:
        """Tell which numbers have at least one of these bits."""
        found: Mask = (self.bits & bits) != 0
        return found

    @property
    def dead(self) -> Mask:
        """Numbers that are dead and nothing else."""
        found: Mask = (self.deaths > 0) & ~self.has(CONCLUDED)
        return found

    @property
    def concluded(self) -> Mask:
        """Numbers that are open no more."""
        return self.has(CONCLUDED) | (self.deaths > 0)

    def below(self, number: int) -> Mask:
        """Tell which numbers are less than this one, and no negative ones."""
        found: Mask = np.arange(PAGE) < (number - self.first if self.first >= 0 else 0)
        return found


NO_BITS = np.zeros(PAGE, np.uint16)
NO_DEATHS = np.zeros(PAGE, np.int8)


class PolicyNumbers:
    """What the topics say of one policy's numbers."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self._pages: dict[PageKey, array[int]] = {}
        self._deaths: dict[PageKey, array[int]] = {}
        self._reasons: list[Said] = [("", "", "")]
        self._reason_numbers: dict[Said, int] = {}
        self._duplicates = 0
        self._trajectories = 0

    # --------------------------------------------------------------------------------------------------------- records

    def _mark(self, stream: str, number: int, use: int, bits: int) -> int:
        """Set bits and return those that stood before."""
        page = self._page(stream, number, use)
        before = page[number & LOW]
        page[number & LOW] = before | bits
        return before

    def _page(self, stream: str, number: int, use: int) -> array[int]:
        key = (stream, use, number >> PAGE_BITS)
        page = self._pages.get(key)
        if page is None:
            page = self._pages[key] = array("H", bytes(2 * PAGE))
        return page

    def produce(self, stream: str, number: int) -> bool:
        """Take in a delivery; False when it is not the first of its number."""
        first = not self._mark(stream, number, 0, PRODUCED) & PRODUCED
        self._duplicates += not first
        return first

    def curate(self, stream: str, number: int, use: int) -> None:
        """Take in a curated record."""
        self._mark(stream, number, use, CURATED)

    def keep(self, stream: str, number: int, use: int) -> None:
        """Take in the word that a group was kept."""
        if self._mark(stream, number, use, KEPT) & KEPT:
            self._mark(stream, number, use, KEPT_TWICE)

    def train(self, stream: str, number: int, use: int) -> None:
        """Take in one mention of a group in a batch."""
        if self._mark(stream, number, use, TRAINED) & CONCLUDED:
            self._mark(stream, number, use, TWICE)

    def evict(self, stream: str, number: int, use: int) -> None:
        """Take in a batch's word that a group left the window untrained."""
        self._mark(stream, number, use, EVICTED)

    def discard(self, stream: str, number: int, use: int, said: Said) -> None:
        """Take in the word that a group was not trained; of several, the first in the alphabet is shown."""
        page, at = self._page(stream, number, use), number & LOW
        before = page[at]
        known, code = before >> REASON_BITS, self._reason(said)
        if known and self._reasons[known] <= self._reasons[code]:
            code = known
        flags = (before & FLAGS) | DISCARDED
        flags |= BY_TRAINER if said[0] == "train" else 0
        flags |= TWICE if before & CONCLUDED else 0
        page[at] = flags | code << REASON_BITS

    def _reason(self, said: Said) -> int:
        code = self._reason_numbers.get(said)
        if code is None:
            said = said if len(self._reasons) < MOST_REASONS else OTHER
            code = self._reason_numbers.get(said, len(self._reasons))
            if code == len(self._reasons):
                self._reason_numbers[said] = code
                self._reasons.append(said)
        return code

    def discard_trajectory(self) -> None:
        """Take in the word that one trajectory of a kept group is not trained on."""
        self._trajectories += 1

    def pass_replay(self, stream: str, number: int, use: int) -> None:
        """Take in that the trainer has read past a replay: at the end of the run it is trained, evicted or dead."""
        self._mark(stream, number, use, PASSED)

    def bury(self, stream: str, number: int, use: int = 0, letters: int = 1) -> None:
        """Take in a letter that concludes a number, or one use of it, or, with -1 letters, one that opens it again."""
        key = (stream, use, number >> PAGE_BITS)
        self._page(stream, number, use)
        page = self._deaths.get(key)
        if page is None:
            page = self._deaths[key] = array("b", bytes(PAGE))
        page[number & LOW] = max(-MOST_DEATHS, min(MOST_DEATHS, page[number & LOW] + letters))

    # ---------------------------------------------------------------------------------------------------------- counts

    def pages(self) -> Iterator[Page]:
        """Yield all pages."""
        return (self.page(*key) for key in self._pages)

    def indices(self, stream: str) -> list[int]:
        """Return the pages of first uses of a stream."""
        return [index for name, use, index in self._pages if name == stream and not use]

    def page(self, stream: str, use: int, index: int) -> Page:
        """Return a page; one that was never written is empty."""
        bits, deaths = self._pages.get((stream, use, index)), self._deaths.get((stream, use, index))
        return Page(
            stream,
            use,
            index << PAGE_BITS,
            NO_BITS if bits is None else np.frombuffer(bits, np.uint16),
            NO_DEATHS if deaths is None else np.frombuffer(deaths, np.int8),
        )

    def audit(self, issued: Mapping[str, int], seen: Mapping[str, int], *, drained: bool) -> PolicyAudit:
        """Count.

        Args:
            issued: Next number of every stream that trains this policy, as the feeder keeps it.
            seen: The same as the tasks topics show it; smaller where tasks were deleted.
            drained: Whether nothing more can conclude.
        """
        count: Counter[str] = Counter()
        reasons: Counter[int] = Counter()
        for page in self.pages():
            trained, discarded = page.has(TRAINED), page.has(DISCARDED)
            count["doubled"] += _sum(page.has(TWICE)) + _sum(page.has(KEPT_TWICE))
            count["doubled"] += _sum((page.deaths > 0) & page.has(CONCLUDED))
            if page.use:
                count["replays"] += _sum(page.has(KEPT))
                count["replayed"] += _sum(trained)
                count["replays_discarded"] += _sum((discarded | page.dead) & ~trained)
                continue
            count["produced"] += _sum(page.has(PRODUCED))
            count["kept"] += _sum(page.has(KEPT))
            count["trained"] += _sum(trained)
            count["dead"] += _sum(page.dead)
            known = page.concluded & page.below(issued.get(page.stream, 0))
            count["known"] += _sum(known)
            count["unissued"] += _sum(page.concluded & ~known)
            codes, times = np.unique(page.bits[discarded & ~trained] >> REASON_BITS, return_counts=True)
            reasons.update(dict(zip(codes.tolist(), times.tolist(), strict=True)))
        total = sum(issued.values())
        in_flight = total - count["known"]
        unknown = sum(max(seen[s] - issued.get(s, 0), 0) for s in seen)
        words: Counter[str] = Counter()
        for code, times in reasons.items():
            words[_word(self._reasons[code])] += times
        return PolicyAudit(
            issued=total,
            produced=count["produced"],
            duplicates=self._duplicates,
            kept=count["kept"],
            trained=count["trained"],
            discarded=dict(sorted(words.items())),
            dead=count["dead"],
            in_flight=in_flight,
            lost=count["unissued"] + unknown + (in_flight if drained else 0),
            doubled=count["doubled"],
            replays=count["replays"],
            replayed=count["replayed"],
            replays_discarded=count["replays_discarded"],
            trajectories_discarded=self._trajectories,
        )

    # -------------------------------------------------------------------------------------------------------- problems

    def problems(self, issued: Mapping[str, int], seen: Mapping[str, int], scope: Scope) -> Problems:
        """Return every number that is not as it should be."""
        found = Problems()
        for page in self.pages():
            broken = _broken(page, issued.get(page.stream, 0), scope)
            if page.use:
                before = self.page(page.stream, page.use - 1, page.first >> PAGE_BITS)
                broken = chain(broken, _broken_replays(page, before, scope))
            for what, mask in broken:
                if count := _sum(mask):
                    found.add(self._named(page, mask, what), count)
        for stream, next_number in seen.items():
            first = issued.get(stream, 0)
            what = "is a task, and the feeder does not know that it was issued"
            unknown = (Problem(what, self.policy, stream, number) for number in range(first, next_number))
            found.add(unknown, max(next_number - first, 0))
        if scope.drained:
            left = self.audit(issued, {}, drained=True).in_flight
            found.add(self._open(issued), left)
        return found

    def _named(self, page: Page, mask: Mask, what: str) -> Iterator[Problem]:
        use = f", use {page.use}," if page.use else ""
        for at in np.flatnonzero(mask):
            said = self._reasons[int(page.bits[at]) >> REASON_BITS]
            words = what.format(reason=_word(said))
            yield Problem(f"{use} {words}".strip(), self.policy, page.stream, page.first + int(at))

    def _open(self, issued: Mapping[str, int]) -> Iterator[Problem]:
        """Yield numbers that were issued and are not concluded, though nothing moves any more."""
        for stream, end in issued.items():
            for index in range(-(-end // PAGE)):
                page = self.page(stream, 0, index)
                for at in np.flatnonzero(~page.concluded & page.below(end)):
                    yield Problem(_left(int(page.bits[at])), self.policy, stream, page.first + int(at))


def _left(bits: int) -> str:
    if bits & KEPT:
        return "was kept, and then neither trained nor evicted"
    if bits & PRODUCED:
        return "was produced, and nothing says what became of it"
    return "was issued, and never concluded"


def _broken(page: Page, issued: int, scope: Scope) -> Iterator[tuple[str, Mask]]:
    """Yield what may be wrong with a number, and of which numbers of the page it is true."""
    trained, discarded, kept = page.has(TRAINED), page.has(DISCARDED), page.has(KEPT)
    twice, foreign = page.has(TWICE), ~page.below(issued)
    curated, produced, evicted = page.has(CURATED), page.has(PRODUCED), page.has(EVICTED)
    yield "was trained more than once", twice & trained & ~discarded
    if scope.offline:
        return
    yield "was trained, and discarded too ({reason})", trained & discarded
    yield "was discarded more than once ({reason})", twice & discarded & ~trained
    yield "was kept more than once", page.has(KEPT_TWICE)
    yield "is dead, and was trained or discarded too", (page.deaths > 0) & (trained | discarded)
    yield "was concluded, and never issued", page.concluded & foreign
    yield "was trained, and no outcome says that it was kept", trained & ~kept
    yield "was evicted by the trainer, and no outcome says so", evicted & ~discarded & ~(page.deaths > 0)
    if scope.still:
        by_trainer = page.has(BY_TRAINER)
        yield "was discarded by the trainer ({reason}), and no batch record says so", by_trainer & ~evicted
    if not scope.whole:
        return
    yield "was produced, and never issued", produced & foreign & ~page.concluded
    yield "was kept, and there is no curated record of it", kept & ~curated
    if not page.use:
        yield "was curated, and no worker produced it", (kept | discarded) & ~produced
    if scope.still:
        yield "has a curated record, and no outcome says that it was kept", curated & ~kept


def _broken_replays(page: Page, before: Page, scope: Scope) -> Iterator[tuple[str, Mask]]:
    """Yield what else may be wrong with later uses; `before` holds the use before of the same numbers."""
    if scope.offline:
        return
    asked = page.has(KEPT)
    yield "was asked for, and the use before it never was kept", asked & ~before.has(KEPT)
    if scope.drained:
        vanished = asked & page.has(PASSED) & ~page.concluded
        yield "was read by the trainer, and then neither trained nor evicted", vanished


def _sum(mask: Mask) -> int:
    return int(np.count_nonzero(mask))


def _word(said: Said) -> str:
    _, verdict, reason = said
    return reason or verdict
