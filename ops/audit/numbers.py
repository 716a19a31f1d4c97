"""What became of every task number of a policy, as a table over the ledger: one row for each use of a number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.infra.kafka.dead_letters import REDRIVEN
from headrace.ledger.ledger import Ledger
from headrace.ledger.rows import SEPARATOR, Row
from headrace.ops.audit.broken_numbers import CHECKS, Scope, describe_open
from headrace.ops.audit.problems import MOST_LISTED, AuditProblem, Problems

MOST_REASONS, REASON_LENGTH = 126, 40
"""Largest number of reasons that are counted one by one, and length of a dead letter's; others are OTHER_REASON."""
OTHER_REASON = "other"


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


_UNNUMBERED = f"""
    SELECT reason, count(*) FROM dead_letter AS one
    WHERE NOT concludes AND reason <> '{REDRIVEN}' AND NOT EXISTS (
        SELECT 1 FROM dead_letter AS sent
        WHERE sent.reason = '{REDRIVEN}' AND sent.redrives = one.offset AND sent.offset > one.offset
    ) GROUP BY reason
"""
_FIRST_USES = "number WHERE variant = ? AND use = 0"
_COUNT = """
    SELECT use > 0, sum(produced > 0), sum(max(produced - 1, 0)), sum(kept > 0), sum(trained > 0),
        sum(died AND NOT trained + discarded), sum(concluded AND issued), sum(concluded AND NOT issued),
        sum((trained + discarded > 1) + (kept > 1) + curated_again + (died AND trained + discarded > 0)),
        sum((died OR discarded > 0) AND NOT trained)
    FROM number WHERE variant = ? GROUP BY use > 0
"""


class PolicyNumbers:
    """The numbers of one policy or shadow.

    Args:
        ledger: Holds their rows.
        variant: Name of the policy or shadow.
        policy: Name of the policy.
    """

    def __init__(self, ledger: Ledger, variant: str, policy: str) -> None:
        self._ledger, self.variant, self.policy = ledger, variant, policy
        self.forgettable: dict[str, int] = {}
        """Stream to the number below which the feeder may have forgotten open tasks: see `TrainedStreams`."""
        self.issued: dict[str, int] = {}
        """Next number of every stream that trains this policy, from the feeder."""

    # ---------------------------------------------------------------------------------------------------------- counts

    def audit(self, seen: Mapping[str, int], *, drained: bool) -> PolicyAudit:
        """Return the counts.

        Args:
            seen: Next number of every stream from the tasks topics; smaller than the feeder's if tasks were deleted.
            drained: Whether nothing more can conclude.
        """
        counts = {bool(is_replay): sums for is_replay, *sums in self._ledger.query(_COUNT, self.variant)}
        nothing = [0] * 9
        produced, duplicates, kept, trained, dead, known, unissued, doubled, _ = counts.get(False, nothing)
        _, _, replays, replayed, *_, doubled_replays, replays_discarded = counts.get(True, nothing)
        total = sum(self.issued.values()) - self._count_forgotten()
        unknown = sum(max(seen[s] - self.issued.get(s, 0), 0) for s in seen)
        [(trajectories,)] = self._ledger.query(
            "SELECT count(*) FROM outcome WHERE variant = ? AND level = 'trajectory'", self.variant
        )
        return PolicyAudit(
            issued=total,
            produced=produced,
            duplicates=duplicates,
            kept=kept,
            trained=trained,
            discarded=self._count_discarded(),
            dead=dead,
            in_flight=total - known,
            lost=unissued + unknown + (total - known if drained else 0),
            doubled=doubled + doubled_replays,
            replays=replays,
            replayed=replayed,
            replays_discarded=replays_discarded,
            trajectories_discarded=trajectories,
        )

    def _count_discarded(self) -> dict[str, int]:
        words = Counter[str]()
        for conclusion, groups in self._ledger.query(
            "SELECT conclusion, count(*) FROM number"
            " WHERE variant = ? AND use = 0 AND discarded AND NOT trained GROUP BY conclusion",
            self.variant,
        ):
            words[_describe_conclusion(conclusion)] += groups
        return list_reasons(words)

    def _count(self, where: str, *values: object) -> int:
        return int(self._ledger.query(f"SELECT count(*) FROM {_FIRST_USES} AND {where}", self.variant, *values)[0][0])

    def _count_forgotten(self) -> int:
        """Count the tasks that the feeder may have forgotten, and that nobody has played or concluded."""
        count = 0
        for stream, end in self.issued.items():
            last = min(end, self.forgettable.get(stream, 0))
            known = "stream = ? AND number >= 0 AND number < ? AND (concluded OR played)"
            count += last - self._count(known, stream, last) if last > 0 else 0
        return count

    def count_open_below(self, issued: Mapping[str, int]) -> int:
        """Count the open tasks below `issued`, over all streams, that the feeder may not have forgotten."""
        count = 0
        for stream, end in issued.items():
            begin = self.forgettable.get(stream, 0)
            known = self._count("stream = ? AND number >= ? AND number < ? AND concluded", stream, begin, end)
            count += max(end - begin, 0) - known
        return count

    def count_waiting(self) -> int:
        """Count the first uses that the trainer had read by its newest record, but neither trained nor evicted."""
        return self._count("in_window AND NOT concluded AND NOT evicted")

    def count_kept_and_open(self) -> int:
        """Count the first uses that were kept and are open."""
        return self._count("kept AND NOT concluded")

    def count_played_though_dead(self) -> int:
        """Count the tasks that are a dead letter of one worker, but were played by another."""
        return self._count("task_died AND played")

    def find_ends(self) -> dict[int, int]:
        """Return partition of the curated topic to the offset after its last first use."""
        return dict(
            self._ledger.query(
                "SELECT partition.partition, max(curated.offset) + 1 FROM curated"
                " JOIN partition ON partition.id = partition_id WHERE variant = ? AND use = 0 GROUP BY 1",
                self.variant,
            )
        )

    def find_curated_end(self) -> list[Row]:
        """Return (topic, partition, offset after its last first delivery that has an outcome) of trajectories."""
        return self._ledger.query(
            "SELECT topic, partition, max(first) + 1 FROM ("
            " SELECT partition_id, stream, number, min(offset) AS first FROM delivery WHERE policy = ? GROUP BY 2, 3"
            ") AS one JOIN partition ON partition.id = partition_id"
            " JOIN number ON (number.variant, number.stream, number.use, number.number)"
            " = (?, one.stream, 0, one.number) WHERE kept OR discarded GROUP BY 1, 2",
            self.policy,
            self.variant,
        )

    def count_reopened(self) -> int:
        """Count the dead letters that were sent back. Each may open one task more than the feeder had open."""
        where = "variant = ? AND times < 0 AND use = 0"
        return int(self._ledger.query(f"SELECT count(*) FROM death WHERE {where}", self.variant)[0][0])

    # -------------------------------------------------------------------------------------------------------- problems

    def find_vanished(self, issued: Mapping[str, int]) -> Problems:
        """Return the open numbers below `issued` that have neither a task that waits for a worker nor a group.

        `issued` and the workers' positions were read before the tasks, and the tasks before the groups.
        """
        found = Problems()
        what = "is in flight, but its task does not wait for a worker, and no worker has produced its group"
        for stream, end in issued.items():
            begin = self.forgettable.get(stream, 0)
            self._add_missing(found, stream, begin, end, "concluded OR played OR waits", lambda _: what)
        return found

    def _add_missing(
        self, found: Problems, stream: str, begin: int, end: int, there: str, describe: Callable[[int], str]
    ) -> None:
        """Add the numbers of a range for which a condition does not hold, also those without a row."""
        span = f"stream = ? AND number >= ? AND number < ? AND ({there})"
        count = max(end - begin, 0) - self._count(span, stream, begin, end)
        if count > 0:
            numbers = (
                n
                for (n,) in self._ledger.iterate(
                    f"SELECT number FROM {_FIRST_USES} AND {span} ORDER BY number", self.variant, stream, begin, end
                )
            )
            found.add(
                (
                    AuditProblem(describe(number), self.variant, stream, number)
                    for number in _find_gaps(numbers, begin, end)
                ),
                count,
            )

    def problems(self, seen: Mapping[str, int], scope: Scope) -> Problems:
        """Return every number with a problem."""
        found = Problems()
        checks = [check for check in CHECKS if check.is_made_in(scope)]
        sums = ", ".join(f"total({check.where})" for check in checks)
        [counts] = self._ledger.query(f"SELECT {sums} FROM number WHERE variant = ?", self.variant)
        for check, count in zip(checks, counts, strict=True):
            if count:
                found.add(self._list_problems(check.what, check.where), int(count))
        for stream, next_number in seen.items():
            first = self.issued.get(stream, 0)
            what = "has a record on the tasks topic, but the feeder's snapshot does not count it as issued"
            unknown = (AuditProblem(what, self.variant, stream, number) for number in range(first, next_number))
            found.add(unknown, max(next_number - first, 0))
        if scope.drained:
            for stream, end in self.issued.items():
                begin = min(end, self.forgettable.get(stream, 0))
                self._add_open(found, stream, begin, end)
        return found

    def _add_open(self, found: Problems, stream: str, begin: int, end: int) -> None:
        """Add the numbers that were issued and not concluded, although nothing more can conclude."""
        played = "stream = ? AND number >= 0 AND number < ? AND played AND NOT concluded"
        facts = f"SELECT number, kept, produced FROM {_FIRST_USES} AND"
        rows = self._ledger.query(f"{facts} {played} ORDER BY number LIMIT {MOST_LISTED}", self.variant, stream, begin)
        count = self._count(played, stream, begin)
        found.add((AuditProblem(describe_open(k, p), self.variant, stream, n) for n, k, p in rows), count)

        def describe(number: int) -> str:
            found = self._ledger.query(f"{facts} stream = ? AND number = ?", self.variant, stream, number)
            return describe_open(*found[0][1:]) if found else describe_open(0, 0)

        self._add_missing(found, stream, begin, end, "concluded", describe)

    def _list_problems(self, what: str, where: str) -> Iterator[AuditProblem]:
        rows: list[Row] = self._ledger.query(
            f"SELECT stream, use, number, conclusion FROM number WHERE variant = ? AND {where}"
            f" ORDER BY stream, use, number LIMIT {MOST_LISTED}",
            self.variant,
        )
        for stream, use, number, conclusion in rows:
            words = what.format(reason=_describe_conclusion(conclusion or ""))
            yield AuditProblem(f"(use {use}) {words}" if use else words, self.variant, stream, number)


def count_unnumbered(ledger: Ledger) -> dict[str, int]:
    """Return the dead letters by reason that conclude no number and were not sent back."""
    found = Counter[str]()
    for reason, letters in ledger.query(_UNNUMBERED):
        found[reason if 0 < len(reason) <= REASON_LENGTH else OTHER_REASON] += letters
    return list_reasons(found)


def list_reasons(groups: Counter[str]) -> dict[str, int]:
    """Return reason to its groups, in the order of the names; the reasons of the fewest groups count as one."""
    found = dict(groups.most_common(MOST_REASONS))
    if left := groups.total() - sum(found.values()):
        found[OTHER_REASON] = found.get(OTHER_REASON, 0) + left
    return dict(sorted(found.items()))


def count_concluded_by_all(ledger: Ledger, stream: str, policies: Sequence[str]) -> int:
    """Count the issued tasks of a stream that are concluded for all of these policies."""
    if not policies:
        return 0
    marks = ", ".join("?" * len(policies))
    rows = ledger.query(
        "SELECT count(*) FROM (SELECT number FROM number WHERE stream = ? AND use = 0 AND concluded AND issued"
        f" AND variant IN ({marks}) GROUP BY number HAVING count(*) = ?)",
        stream,
        *policies,
        len(policies),
    )
    return int(rows[0][0])


def _find_gaps(numbers: Iterator[int], begin: int, end: int) -> Iterator[int]:
    """Yield the numbers from `begin` up to, not including, `end` that are not among rising numbers."""
    for number in numbers:
        yield from range(begin, number)
        begin = number + 1
    yield from range(begin, end)


def _describe_conclusion(conclusion: str) -> str:
    """Return the reason of a discard, or its verdict."""
    _, verdict, reason = conclusion.split(SEPARATOR, 2) if conclusion else ("", "", "")
    return reason or verdict
