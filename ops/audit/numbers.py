"""Follows every task number of a policy to its conclusion; the records may come in any order. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from headrace.ops.audit.broken_numbers import Scope, describe_open, find_broken
from headrace.ops.audit.pages import (
    BY_TRAINER,
    CONCLUDED,
    CURATED,
    CURATED_TWICE,
    DISCARDED,
    EVICTED,
    EVICTED_TWICE,
    FLAGS,
    IN_WINDOW,
    KEPT,
    KEPT_TWICE,
    LATE,
    LOW,
    MISPLACED,
    NO_REASON,
    ODD_FACTS,
    ODD_VERDICT,
    OVERDUE,
    PAGE_NUMBERS,
    PLAYED,
    PRODUCED,
    REACHED,
    REASON_BITS,
    REOPENED,
    TASK_WAITS,
    TRAINED,
    TWICE,
    UNMATCHED,
    Mask,
    Page,
    Pages,
)
from headrace.ops.audit.problems import AuditProblem, Problems

MOST_REASONS_KEPT = 127
"""Largest number of different reasons; further reasons count as OTHER_CONCLUSION."""
OTHER_CONCLUSION = ("", "", "other")

VERDICTS = ("expired", "surplus", "run_end", "missing")
"""Verdicts of evictions."""
OF_POSITION = IN_WINDOW | OVERDUE
"""Bits that depend on the position of a curated record."""

Conclusion = tuple[str, str, str]
"""(component, verdict, reason) of a discard."""


@dataclass(frozen=True, slots=True)
class PolicyAudit:
    """Counts of the training numbers of one policy."""

    issued: int = 0
    """Number of issued tasks, without those that nobody had played when a later recipe dropped their workflow."""
    produced: int = 0
    """Groups that workers delivered, each counted once; 0 if trajectories were not read."""
    duplicates: int = 0
    """Repeated deliveries of the same groups, because workers deliver at least once."""
    kept: int = 0
    """Groups that the chain kept."""
    trained: int = 0
    """First uses that were trained."""
    discarded: dict[str, int] = field(default_factory=dict)
    """Discarded whole groups by reason."""
    dead: int = 0
    in_flight: int = 0
    lost: int = 0
    """Numbers that cannot conclude any more, and numbers that concluded but were never issued."""
    doubled: int = 0
    """Uses trained twice, trained and discarded, or discarded in two ways."""
    replays: int = 0
    """Replays that the chain asked for; at the end of a run the trainer may not have read all of them."""
    replayed: int = 0
    """Replays that were trained."""
    replays_discarded: int = 0
    """Replays that the trainer evicted, or that became dead letters."""
    trajectories_discarded: int = 0
    """Single trajectories that were left out of kept groups."""


class PolicyNumbers:
    """The facts about one policy's numbers, from the topics."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.pages = Pages()
        self.named_positions: dict[tuple[str, int, int], tuple[int, int]] = {}
        """Use to the position that its batch gives, until its curated record is read."""
        self.reopened = 0
        """Number of dead letters that were sent back. Each may open one task more than the feeder had open."""
        self.forgettable: dict[str, int] = {}
        """Stream to the number below which the feeder may have forgotten open tasks: see `TrainedStreams`."""
        self._reasons: list[Conclusion] = [("", "", "")]
        self._reason_numbers: dict[Conclusion, int] = {}
        self._duplicates = 0
        self._trajectories = 0

    # --------------------------------------------------------------------------------------------------------- records

    def note_produced(self, stream: str, number: int, bits: int = REACHED) -> bool:
        """Take in a delivery; return False if it is not the first of its number.

        Args:
            stream: Stream of the task.
            number: Number of the task.
            bits: REACHED if the curators may not have read it yet, ANSWER_DUE if they are known to have read it.
        """
        bits |= PRODUCED
        first = not self.pages.mark(stream, number, 0, bits) & PRODUCED
        self._duplicates += not first
        return first

    def mark_curated(self, stream: str, number: int, use: int, bits: int = 0, *, sent_back: bool = False) -> None:
        """Take in a curated record.

        Args:
            stream: Stream of the task.
            number: Number of the task.
            use: Use of the group, 0 for the first.
            bits: Further facts about it.
            sent_back: Whether `headrace redrive` wrote it: then the earlier record does not count any more.
        """
        before = self.pages.mark(stream, number, use, CURATED)
        if sent_back:
            self.pages.clear(stream, number, use, OF_POSITION)
        elif before & CURATED:
            bits |= CURATED_TWICE
        if bits:
            self.pages.mark(stream, number, use, bits)

    def expect_delivery(self, stream: str, number: int, digest: int) -> None:
        """Note the digest of the group in a curated record: one of its deliveries must have the same."""
        self.pages.set_digest(stream, number, digest)
        self.pages.mark(stream, number, 0, UNMATCHED)

    def match_delivery(self, stream: str, number: int, digest: int) -> None:
        """Take in the digest of a group that a worker delivered, to be compared with that of its curated record."""
        if self.pages.digest(stream, number) == digest:
            self.pages.clear(stream, number, 0, UNMATCHED)

    def match_position(self, stream: str, number: int, use: int, position: tuple[int, int]) -> None:
        """Take in the position (partition, offset) of a curated record. A second record of a use was sent back."""
        expected = self.named_positions.get((stream, number, use), position)
        if expected not in (position, (-1, -1)):
            self.pages.mark(stream, number, use, MISPLACED)
            return
        self.named_positions[stream, number, use] = (-1, -1)
        self.pages.clear(stream, number, use, MISPLACED)

    def expect_facts(self, stream: str, number: int, digest: int) -> None:
        """Note the digest of an outcome's facts about a group: one of its deliveries must have the same."""
        self.pages.set_facts(stream, number, digest)
        self.pages.mark(stream, number, 0, ODD_FACTS)

    def match_facts(self, stream: str, number: int, digest: int) -> None:
        """Take in the digest of a delivery's facts."""
        if self.pages.facts(stream, number) == digest:
            self.pages.clear(stream, number, 0, ODD_FACTS)

    def mark_if_late(self, stream: str, number: int, use: int, deadline: int) -> None:
        """Take in the deadline of a curated record: the last version that may be trained on it."""
        if self.pages.version(stream, number, use) - 1 > deadline:
            self.pages.mark(stream, number, use, LATE)

    def mark_kept(self, stream: str, number: int, use: int) -> None:
        """Record that a group was kept."""
        if self.pages.mark(stream, number, use, KEPT) & KEPT:
            self.pages.mark(stream, number, use, KEPT_TWICE)

    def mark_trained(self, stream: str, number: int, use: int, version: int) -> None:
        """Take in one mention of a group in the batch of a version."""
        self.pages.set_version(stream, number, use, version)
        if self.pages.mark(stream, number, use, TRAINED) & CONCLUDED:
            self.pages.mark(stream, number, use, TWICE)

    def mark_evicted(self, stream: str, number: int, use: int, verdict: str) -> None:
        """Record from a batch that a group left the window untrained."""
        if verdict != "dead":  # a dead letter reports it, or for a shadow an outcome with the reason
            self.pages.set_verdict(stream, number, use, code_of(verdict))
        if self.pages.mark(stream, number, use, EVICTED) & EVICTED:
            self.pages.mark(stream, number, use, EVICTED_TWICE)

    def mark_discarded(self, stream: str, number: int, use: int, conclusion: Conclusion) -> None:
        """Record that a group was not trained; of several reasons, the first in the alphabet is shown."""
        page, at = self.pages.bits_of(stream, number, use), number & LOW
        before = page[at]
        known, code = before >> REASON_BITS, self._encode_reason(conclusion)
        if known and self._reasons[known] <= self._reasons[code]:
            code = known
        flags = (before & FLAGS) | DISCARDED
        flags |= BY_TRAINER if conclusion[0] == "train" else 0
        flags |= TWICE if before & CONCLUDED else 0
        flags |= 0 if conclusion[2] else NO_REASON
        evicted = self.pages.verdict(stream, number, use)
        flags |= ODD_VERDICT if conclusion[0] == "train" and evicted not in (0, code_of(conclusion[1])) else 0
        page[at] = flags | code << REASON_BITS

    def _encode_reason(self, conclusion: Conclusion) -> int:
        code = self._reason_numbers.get(conclusion)
        if code is None:
            conclusion = conclusion if len(self._reasons) < MOST_REASONS_KEPT else OTHER_CONCLUSION
            code = self._reason_numbers.get(conclusion, len(self._reasons))
            if code == len(self._reasons):
                self._reason_numbers[conclusion] = code
                self._reasons.append(conclusion)
        return code

    def count_discarded_trajectory(self) -> None:
        """Record that one trajectory of a kept group is not trained on."""
        self._trajectories += 1

    def fold_dead_letter(
        self, stream: str, number: int, use: int = 0, dead_letters: int = 1, *, of_task: bool = False
    ) -> None:
        """Count a dead letter that concludes a number, or one use of it; -1 if it opens the number again.

        Args:
            stream: Stream of the task.
            number: Number of the task.
            use: Use of the group, 0 for the first.
            dead_letters: 1 or -1.
            of_task: Whether it is about the task itself, which no worker could read.
        """
        self.pages.count_death(stream, number, use, dead_letters, of_task=of_task)
        if dead_letters < 0:
            self.pages.mark(stream, number, use, REOPENED)
            self.reopened += not use

    # ---------------------------------------------------------------------------------------------------------- counts

    def audit(self, issued: Mapping[str, int], seen: Mapping[str, int], *, drained: bool) -> PolicyAudit:
        """Return the counts.

        Args:
            issued: Next number of every stream that trains this policy, from the feeder.
            seen: The same from the tasks topics; smaller if tasks were deleted.
            drained: Whether nothing more can conclude.
        """
        count: Counter[str] = Counter()
        reasons: Counter[int] = Counter()
        for page in self.pages.iterate():
            trained, discarded = page.mask(TRAINED), page.mask(DISCARDED)
            count["doubled"] += _sum(page.mask(TWICE)) + _sum(page.mask(KEPT_TWICE)) + _sum(page.mask(CURATED_TWICE))
            count["doubled"] += _sum(page.died & page.mask(CONCLUDED))
            if page.use:
                count["replays"] += _sum(page.mask(KEPT))
                count["replayed"] += _sum(trained)
                count["replays_discarded"] += _sum((discarded | page.dead) & ~trained)
                continue
            count["produced"] += _sum(page.mask(PRODUCED))
            count["kept"] += _sum(page.mask(KEPT))
            count["trained"] += _sum(trained)
            count["dead"] += _sum(page.dead)
            known = page.concluded & page.is_below(issued.get(page.stream, 0))
            count["known"] += _sum(known)
            count["unissued"] += _sum(page.concluded & ~known)
            codes, times = np.unique(page.bits[discarded & ~trained] >> REASON_BITS, return_counts=True)
            reasons.update(dict(zip(codes.tolist(), times.tolist(), strict=True)))
        total = sum(issued.values()) - self._count_forgotten(issued)
        in_flight = total - count["known"]
        unknown = sum(max(seen[s] - issued.get(s, 0), 0) for s in seen)
        words: Counter[str] = Counter()
        for code, times in reasons.items():
            words[_describe_conclusion(self._reasons[code])] += times
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

    def count_open_below(self, issued: Mapping[str, int]) -> int:
        """Count the open tasks below `issued`, over all streams, that the feeder may not have forgotten."""
        known = sum(
            _sum(p.concluded & p.is_below(issued.get(p.stream, 0)) & ~p.is_below(self.forgettable.get(p.stream, 0)))
            for p in self.pages.iterate()
            if not p.use
        )
        return sum(max(end - self.forgettable.get(stream, 0), 0) for stream, end in issued.items()) - known

    def _count_forgotten(self, issued: Mapping[str, int]) -> int:
        """Count the tasks that the feeder may have forgotten, and that nobody has played or concluded."""
        count = 0
        for stream, end in issued.items():
            for index in range(-(-min(end, self.forgettable.get(stream, 0)) // PAGE_NUMBERS)):
                page = self.pages.page(stream, 0, index)
                count += _sum(self._mask_forgotten(page) & page.is_below(end))
        return count

    def _mask_forgotten(self, page: Page) -> Mask:
        found: Mask = page.is_below(self.forgettable.get(page.stream, 0)) & ~page.concluded & ~page.mask(PLAYED)
        return found

    def count_waiting(self) -> int:
        """Count the first uses that the trainer had read by its newest record, but neither trained nor evicted."""
        return sum(
            _sum(page.mask(IN_WINDOW) & ~page.concluded & ~page.mask(EVICTED))
            for page in self.pages.iterate()
            if not page.use
        )

    def count_kept_and_open(self) -> int:
        """Count the first uses that were kept and are open."""
        return sum(_sum(page.mask(KEPT) & ~page.concluded) for page in self.pages.iterate() if not page.use)

    def count_played_though_dead(self) -> int:
        """Count the tasks that are a dead letter of one worker, but were played by another."""
        return sum(_sum((page.task_deaths > 0) & page.mask(PLAYED)) for page in self.pages.iterate() if not page.use)

    def find_vanished(self, issued: Mapping[str, int]) -> Problems:
        """Return the open numbers below `issued` that have neither a task that waits for a worker nor a group.

        `issued` and the workers' positions were read before the tasks, and the tasks before the groups.
        """
        found = Problems()
        for stream, end in issued.items():
            for index in range(-(-end // PAGE_NUMBERS)):
                page = self.pages.page(stream, 0, index)
                lost = page.is_below(end) & ~page.concluded & ~page.mask(PLAYED | TASK_WAITS)
                lost &= ~self._mask_forgotten(page)
                what = "is in flight, but its task does not wait for a worker, and no worker has produced its group"
                found.add(self._list_problems_at(page, lost, what), _sum(lost))
        return found

    def problems(self, issued: Mapping[str, int], seen: Mapping[str, int], scope: Scope) -> Problems:
        """Return every number with a problem."""
        found = Problems()
        for page in self.pages.iterate():
            before = self.pages.page(page.stream, page.use - 1, page.first // PAGE_NUMBERS) if page.use else None
            for what, mask in find_broken(page, before, issued.get(page.stream, 0), scope):
                if count := _sum(mask):
                    found.add(self._list_problems_at(page, mask, what), count)
        for stream, next_number in seen.items():
            first = issued.get(stream, 0)
            what = "has a record on the tasks topic, but the feeder's snapshot does not count it as issued"
            unknown = (AuditProblem(what, self.policy, stream, number) for number in range(first, next_number))
            found.add(unknown, max(next_number - first, 0))
        if scope.drained:
            left = self.audit(issued, {}, drained=True).in_flight
            found.add(self._find_open(issued), left)
        return found

    def _list_problems_at(self, page: Page, mask: Mask, what: str) -> Iterator[AuditProblem]:
        use = f"(use {page.use})" if page.use else ""
        for at in np.flatnonzero(mask):
            conclusion = self._reasons[int(page.bits[at]) >> REASON_BITS]
            words = what.format(reason=_describe_conclusion(conclusion))
            yield AuditProblem(f"{use} {words}".strip(), self.policy, page.stream, page.first + int(at))

    def _find_open(self, issued: Mapping[str, int]) -> Iterator[AuditProblem]:
        """Yield numbers that were issued and not concluded, although nothing more can conclude."""
        for stream, end in issued.items():
            for index in range(-(-end // PAGE_NUMBERS)):
                page = self.pages.page(stream, 0, index)
                for at in np.flatnonzero(~page.concluded & page.is_below(end) & ~self._mask_forgotten(page)):
                    yield AuditProblem(describe_open(int(page.bits[at])), self.policy, stream, page.first + int(at))


def code_of(verdict: str) -> int:
    """Return a number above 0 that encodes the verdict of an eviction."""
    return VERDICTS.index(verdict) + 1 if verdict in VERDICTS else len(VERDICTS) + 1


def _sum(mask: Mask) -> int:
    return int(np.count_nonzero(mask))


def _describe_conclusion(conclusion: Conclusion) -> str:
    _, verdict, reason = conclusion
    return reason or verdict
