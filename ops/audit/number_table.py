"""The table of numbers of an audit: a row for each use of a number, with what all topics say of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.ledger.ledger import Ledger
from headrace.ledger.rows import SEPARATOR
from headrace.schemas.topics import policy_of


@dataclass(frozen=True, slots=True)
class Reached:
    """How far the trainer of a policy or shadow has come, to tell what must have happened to a curated group.

    Each mapping is from a partition of the curated topic to an offset: see `TrainerPositions`.
    """

    last: Mapping[int, int]
    settled: Mapping[int, int]
    aged: Mapping[int, int]
    newest: int
    """The newest version that was trained."""
    staleness: Sequence[int]
    """Staleness bound by recipe revision; -1 where there is none."""
    keeps_deadlines: bool
    """False for a shadow, which has another clock."""
    answered: Mapping[tuple[str, int], int] | None = None
    """For a shadow, the offsets of trajectories that its curators have read to."""


TABLES = """
    CREATE TEMP TABLE number (
        variant TEXT, stream TEXT, use INTEGER, number INTEGER, trained, kept, discarded, conclusion, by_trainer,
        no_reason, odd_verdict, evicted, died, task_died, reopened, produced, reached, due, waits, curated,
        curated_again, played, issued, concluded, late, early, overdue, in_window, passed, misplaced, altered,
        PRIMARY KEY (variant, stream, use, number)
    ) WITHOUT ROWID;
    CREATE TEMP TABLE mine (stream TEXT PRIMARY KEY, next INTEGER);
    CREATE TEMP TABLE staleness (revision INTEGER PRIMARY KEY, bound INTEGER);
    CREATE TEMP TABLE position (place INTEGER PRIMARY KEY, last INTEGER, settled INTEGER, aged INTEGER);
    CREATE TEMP TABLE answered (place INTEGER PRIMARY KEY, offset INTEGER)
"""
"""The numbers of all policies and shadows, and what their rows are made with."""
_FACTS = """
    SELECT stream, number, use, 1 AS trained, version, 0 AS kept, 0 AS discarded, NULL AS conclusion, 0 AS by_trainer,
        0 AS no_reason, NULL AS verdict, 0 AS evicted, NULL AS eviction, 0 AS deaths, 0 AS task_deaths, 0 AS reopened,
        0 AS produced, 0 AS reached, 0 AS due, 0 AS waits, 0 AS curated, 0 AS curated_again, NULL AS place,
        NULL AS offset, NULL AS revision, NULL AS min_version, NULL AS max_version
    FROM trained WHERE variant = :variant
    UNION ALL
    SELECT stream, number, use, 0, NULL, verdict = 'kept', verdict <> 'kept',
        CASE WHEN verdict <> 'kept' THEN component || :separator || verdict || :separator || reason END,
        verdict <> 'kept' AND component = 'train', verdict <> 'kept' AND reason = '',
        CASE WHEN verdict <> 'kept' AND component = 'train' THEN verdict END,
        0, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL
    FROM outcome WHERE variant = :variant AND level <> 'trajectory'
    UNION ALL
    SELECT stream, number, use, 0, NULL, 0, 0, NULL, 0, 0, NULL, 1, nullif(verdict, 'dead'), 0, 0, 0, 0, 0, 0, 0, 0, 0,
        NULL, NULL, NULL, NULL, NULL
    FROM eviction WHERE variant = :variant AND (verdict <> 'dead' OR (:is_shadow AND number >= 0))
    UNION ALL
    SELECT stream, number, use, 0, NULL, 0, 0, NULL, 0, 0, NULL, 0, NULL, (NOT of_task) * times, of_task * times,
        times < 0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL
    FROM death WHERE variant = :variant
    UNION ALL
    SELECT stream, number, 0, 0, NULL, 0, 0, NULL, 0, 0, NULL, 0, NULL, 0, 0, 0, 1, reached,
        CASE WHEN :is_shadow THEN reached AND delivery.offset < coalesce(answered.offset, 0) ELSE due END,
        0, 0, 0, NULL, NULL, NULL, NULL, NULL
    FROM delivery LEFT JOIN answered ON answered.place = delivery.partition_id WHERE policy = :policy
    UNION ALL
    SELECT task.stream, number, 0, 0, NULL, 0, 0, NULL, 0, 0, NULL, 0, NULL, 0, 0, 0, 0, 0, 0, 1, 0, 0, NULL, NULL,
        NULL, NULL, NULL
    FROM task JOIN mine ON mine.stream = task.stream WHERE waits
    UNION ALL
    SELECT stream, number, use, 0, NULL, 0, 0, NULL, 0, 0, NULL, 0, NULL, 0, 0, 0, 0, 0, 0, 0, count(*),
        sum(NOT sent_back) > 1, partition_id, max(offset), revision, min_version, max_version
    FROM curated WHERE variant = :variant GROUP BY stream, number, use
"""
_NUMBERS = f"""
    INSERT INTO number
    WITH fact AS ({_FACTS}), summed AS (
        SELECT stream, use, number, sum(trained) AS trained, max(version) AS version, sum(kept) AS kept,
            sum(discarded) AS discarded, min(conclusion) AS conclusion, max(by_trainer) AS by_trainer,
            max(no_reason) AS no_reason, max(verdict) AS verdict, sum(evicted) AS evicted, max(eviction) AS eviction,
            sum(deaths) > 0 AS died, sum(task_deaths) > 0 AS task_died, max(reopened) AS reopened,
            sum(produced) AS produced, max(reached) AS reached, max(due) AS due, max(waits) AS waits,
            max(curated) AS curated, max(curated_again) AS curated_again, max(place) AS place, max(offset) AS offset,
            max(revision) AS revision, max(min_version) AS min_version, max(max_version) AS max_version
        FROM fact GROUP BY stream, use, number
    ), judged AS (
        SELECT summed.*, produced + kept + curated + trained + discarded > 0 AS played,
            number >= 0 AND number < coalesce(mine.next, 0) AS issued, staleness.bound + min_version AS deadline,
            position.last, position.settled, position.aged
        FROM summed LEFT JOIN mine ON mine.stream = summed.stream
            LEFT JOIN staleness ON staleness.revision = summed.revision AND bound >= 0 AND min_version >= 0 AND use = 0
            LEFT JOIN position ON position.place = summed.place
    )
    SELECT :variant, stream, use, number, trained, kept, discarded, conclusion, by_trainer, no_reason,
        verdict <> eviction AS odd_verdict, evicted, died OR (task_died AND NOT played) AS died, task_died, reopened,
        produced, reached, due, waits, curated, curated_again, played, issued,
        died OR (task_died AND NOT played) OR trained + discarded > 0 AS concluded,
        coalesce(trained AND version - 1 > deadline, 0) AS late,
        coalesce(trained AND deadline IS NOT NULL AND max_version >= version, 0) AS early,
        coalesce(NOT trained AND offset < aged AND deadline < :newest - 1, 0) AS overdue,
        coalesce(use = 0 AND offset < settled, 0) AS in_window, coalesce(use > 0 AND offset < last, 0) AS passed,
        0 AS misplaced, 0 AS altered
    FROM judged
"""
_MISPLACED = """
    UPDATE number SET misplaced = 1 WHERE (variant, stream, use, number) IN (
        SELECT variant, stream, use, number FROM trained JOIN curated USING (variant, stream, use, number)
            JOIN partition ON partition.id = curated.partition_id
        WHERE variant = ? AND curated_offset >= 0 GROUP BY trained.id
        HAVING NOT max((partition.partition, curated.offset) = (curated_partition, curated_offset))
    )
"""
_ALTERED = """
    UPDATE number SET altered = 1 WHERE (variant, stream, use, number) IN (
        SELECT variant, stream, use, number FROM outcome JOIN delivery USING (stream, number)
        WHERE variant = :variant AND policy = :policy AND decides AND group_digest <> ''
        GROUP BY outcome.id HAVING NOT max(digest = group_digest)
    )
"""


def make_tables(ledger: Ledger) -> None:
    """Make the empty tables of an audit."""
    with ledger.writing() as db:
        for statement in TABLES.split(";"):
            db.execute(statement)


def fill_numbers(ledger: Ledger, variant: str, issued: Mapping[str, int], curated: str, reached: Reached) -> None:
    """Fill the table with the numbers of a policy or shadow, after all its records were taken in.

    Args:
        ledger: Holds the records.
        variant: Name of the policy or shadow.
        issued: Next number of every stream that trains the policy, from the feeder.
        curated: Name of the curated topic.
        reached: How far the trainer has come.
    """
    places = {one: ledger.find_partition(curated, one) for one in reached.last}
    positions = (
        (at, *(of.get(one) for of in (reached.last, reached.settled, reached.aged))) for one, at in places.items()
    )
    answered = ((ledger.find_partition(*one), offset) for one, offset in (reached.answered or {}).items())
    inputs: dict[str, Iterable[tuple[object, ...]]] = {
        "mine": issued.items(),
        "staleness": enumerate(reached.staleness if reached.keeps_deadlines else ()),
        "position": positions,
        "answered": answered,
    }
    about = {"variant": variant, "policy": policy_of(variant), "separator": SEPARATOR, "newest": reached.newest}
    with ledger.writing() as db:
        for table, values in inputs.items():
            rows = [*values]
            db.execute(f"DELETE FROM {table}")
            if rows:
                db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        db.execute("DELETE FROM number WHERE variant = ?", (variant,))
        db.execute(_NUMBERS, {**about, "is_shadow": variant != policy_of(variant)})
        db.execute(_MISPLACED, (variant,))
        db.execute("CREATE INDEX IF NOT EXISTS delivery_of_number ON delivery (policy, stream, number)")
        db.execute(_ALTERED, about)
