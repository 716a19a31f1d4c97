"""Counts of a policy's numbers by block, counted anew for the blocks in which something has changed.

A number is concluded once it is trained, discarded or dead. A dead letter about a task does not conclude it if the task
was played: a worker of an older recipe may have written the dead letter, and been killed before its commit.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.ledger.ledger import Ledger
from headrace.ledger.rows import BLOCK_BITS, SEPARATOR

BLOCKS_AT_ONCE = 64
"""Blocks that are counted in one transaction."""
NUMBERS = f"""
    WITH fact AS (
        SELECT number, use, 1 AS trained, 0 AS kept, 0 AS discarded, NULL AS conclusion, 0 AS deaths, 0 AS task_deaths
        FROM trained WHERE variant = :variant AND stream = :stream AND number BETWEEN :first AND :last
        UNION ALL
        SELECT number, use, 0, verdict = 'kept', verdict <> 'kept',
            CASE WHEN verdict <> 'kept' THEN component || '{SEPARATOR}' || verdict || '{SEPARATOR}' || reason END, 0, 0
        FROM outcome
        WHERE variant = :variant AND stream = :stream AND number BETWEEN :first AND :last AND level <> 'trajectory'
        UNION ALL
        SELECT number, use, 0, 0, 0, NULL, (NOT of_task) * times, of_task * times
        FROM death WHERE variant = :variant AND stream = :stream AND number BETWEEN :first AND :last
    ), summed AS (
        SELECT number, use, sum(trained) AS trained, sum(kept) AS kept, sum(discarded) AS discarded,
            min(conclusion) AS conclusion, sum(deaths) > 0 AS died, sum(task_deaths) > 0 AS task_died
        FROM fact GROUP BY number, use
    ), one AS (
        SELECT number, use, trained, kept, discarded, conclusion,
            died OR (task_died AND NOT trained + kept + discarded) AS died
        FROM summed
    )
"""
"""The facts about every use of the numbers from :first to :last, as the table `one`."""
_RECOUNT = f"""
    {NUMBERS}
    INSERT INTO tally
    SELECT :variant, :stream, :block, use > 0, sum(kept > 0), sum(trained > 0),
        sum(died AND NOT trained + discarded), sum(died OR trained + discarded > 0),
        sum((died OR discarded > 0) AND NOT trained),
        sum((trained + discarded > 1) + (kept > 1) + (died AND trained + discarded > 0))
    FROM one GROUP BY use > 0
"""
_RECOUNT_REASONS = f"""
    {NUMBERS}
    INSERT INTO tally_of_reason
    SELECT :variant, :stream, :block, conclusion, count(*)
    FROM one WHERE use = 0 AND discarded AND NOT trained GROUP BY conclusion
"""


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts over all numbers of a policy or shadow in one stream, of first uses or of replays."""

    stream: str
    is_replay: bool
    kept: int
    trained: int
    dead: int
    concluded: int
    untrained: int
    """Uses that were discarded or are dead, and were not trained."""
    doubled: int


def count_numbers(ledger: Ledger, variant: str) -> list[Tally]:
    """Return the counts of a policy or shadow, by stream, after `recount`."""
    rows = ledger.query(
        "SELECT stream, is_replay, sum(kept), sum(trained), sum(dead), sum(concluded), sum(untrained), sum(doubled)"
        " FROM tally WHERE variant = ? GROUP BY 1, 2",
        variant,
    )
    return [Tally(stream, bool(is_replay), *counts) for stream, is_replay, *counts in rows]


def count_reasons(ledger: Ledger, variant: str) -> dict[tuple[str, str, str], int]:
    """Return (component, verdict, reason) to the first uses that were discarded so; of several the first by name.

    Give `recount` before.
    """
    rows = ledger.query("SELECT conclusion, sum(groups) FROM tally_of_reason WHERE variant = ? GROUP BY 1", variant)
    found = {}
    for conclusion, groups in rows:
        component, verdict, reason = conclusion.split(SEPARATOR, 2)
        found[component, verdict, reason] = groups
    return found


def count_concluded(ledger: Ledger, variant: str, stream: str, first: int, last: int, *, or_kept: bool = False) -> int:
    """Return how many first uses with numbers from `first` to `last` are concluded, or kept."""
    where = "use = 0 AND (died OR trained + discarded > 0 OR (:or_kept AND kept))"
    span: dict[str, object] = {"variant": variant, "stream": stream, "first": first, "last": last, "or_kept": or_kept}
    return int(ledger.query(f"{NUMBERS} SELECT count(*) FROM one WHERE {where}", **span)[0][0])


def recount(ledger: Ledger) -> None:
    """Count the blocks anew in which something has changed. Raises LedgerRemade."""
    while ledger.query("SELECT 1 FROM dirty LIMIT 1"):
        _recount_some(ledger)


def _recount_some(ledger: Ledger) -> None:
    with ledger.writing() as db:
        some = f"SELECT variant, stream, block FROM dirty LIMIT {BLOCKS_AT_ONCE}"
        for variant, stream, block in db.execute(some).fetchall():
            span = {"variant": variant, "stream": stream, "block": block, "first": block << BLOCK_BITS}
            span["last"] = span["first"] + (1 << BLOCK_BITS) - 1
            for table, recount in (("tally", _RECOUNT), ("tally_of_reason", _RECOUNT_REASONS)):
                db.execute(f"DELETE FROM {table} WHERE (variant, stream, block) = (:variant, :stream, :block)", span)
                db.execute(recount, span)
            db.execute("DELETE FROM dirty WHERE (variant, stream, block) = (:variant, :stream, :block)", span)
