"""Finds the records that name a number with a problem, in the ledger."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from headrace.infra.kafka.topic_reader import name_partition
from headrace.ledger.ledger import Ledger
from headrace.ops.audit.problems import AuditProblem, Problems
from headrace.schemas.topics import policy_of

MOST_RECORDS = 8
"""Largest number of records that are named for one number."""
_OF_NUMBER = "wanted.stream = one.stream AND wanted.number = one.number"
_OF_VARIANT = f"{_OF_NUMBER} AND wanted.variant = one.variant"
_NUMBER = "wanted.variant, one.stream, one.number"
_MENTIONS = f"""
    WITH found AS (
        SELECT {_NUMBER}, 0 AS kind, partition_id, offset, ' version ' || one.version AS word
        FROM wanted JOIN trained AS one ON {_OF_VARIANT} JOIN batch ON batch.id = batch_id
        UNION ALL
        SELECT {_NUMBER}, 0, partition_id, offset, ' ' || one.verdict
        FROM wanted JOIN eviction AS one ON {_OF_VARIANT} JOIN batch ON batch.id = batch_id
        UNION ALL
        SELECT {_NUMBER}, 1, partition_id, offset, ' ' || verdict
        FROM wanted JOIN outcome AS one ON {_OF_VARIANT}
        UNION ALL
        SELECT {_NUMBER}, 2, partition_id, offset, ' ' || reason
        FROM dead_letter AS one JOIN wanted ON {_OF_NUMBER} AND one.policy IN ('', wanted.variant)
        UNION ALL
        SELECT {_NUMBER}, 3, partition_id, offset, ''
        FROM wanted JOIN curated AS one ON {_OF_VARIANT}
        UNION ALL
        SELECT {_NUMBER}, 4, partition_id, offset, ''
        FROM delivery AS one JOIN wanted ON {_OF_NUMBER} AND wanted.policy = one.policy
        UNION ALL
        SELECT {_NUMBER}, 5, partition_id, offset, ''
        FROM task AS one JOIN wanted ON {_OF_NUMBER}
    )
    SELECT variant, stream, number, topic, partition, offset, word
    FROM found JOIN partition ON partition.id = partition_id ORDER BY kind, topic, partition, offset
"""


def add_record_names(ledger: Ledger, problems: Problems) -> Problems:
    """Return the problems, each with the positions of the records that name its number."""
    wanted = {(one.policy, policy_of(one.policy), one.stream, one.number) for one in problems.listed if one.stream}
    if not wanted:
        return problems
    with ledger.writing() as db:
        db.execute("CREATE TEMP TABLE IF NOT EXISTS wanted (variant, policy, stream, number)")
        db.execute("DELETE FROM wanted")
        db.executemany("INSERT INTO wanted VALUES (?, ?, ?, ?)", wanted)
    found = defaultdict[tuple[str, str, int], list[str]](list)
    for *number, topic, partition, offset, word in ledger.query(_MENTIONS):
        found[number[0], number[1], number[2]].append(f"{name_partition((topic, partition))}@{offset}{word}")
    return Problems(
        [_add_records(one, found[one.policy, one.stream, one.number]) for one in problems.listed], problems.total
    )


def _add_records(problem: AuditProblem, found: list[str]) -> AuditProblem:
    more = (f"and {len(found) - MOST_RECORDS} more records",) if len(found) > MOST_RECORDS else ()
    return replace(problem, records=(*found[:MOST_RECORDS], *more)) if problem.stream else problem
