"""Follows the `log_hash` of a trainer's records: whether one was altered, lost or moved, or a group that it names."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from headrace.infra.kafka.topic_reader import name_partition
from headrace.ledger.ledger import Ledger
from headrace.schemas.digests import compute_log_hash

_RECORDS = """
    SELECT batch.id, topic, partition, batch.offset, batch.version, batch.digest, log_hash, curated.digest
    FROM batch JOIN partition ON partition.id = batch.partition_id
        LEFT JOIN trained ON trained.batch_id = batch.id
        LEFT JOIN curated ON (curated.variant, curated.stream, curated.number, curated.use, curated.offset)
            = (batch.variant, trained.stream, trained.number, trained.use, curated_offset)
    WHERE batch.variant = ? ORDER BY batch.id, trained.id
"""


def find_broken_log_hashes(ledger: Ledger, variant: str) -> Iterator[str]:
    """Yield the records whose `log_hash` does not follow from the record before and the curated groups they name.

    Records of an older build have none, and are not checked, if none before them has one. All batches and curated
    groups are in the ledger.
    """
    previous = ""
    for (_, topic, partition, offset, version, digest, log_hash), rows in groupby(
        ledger.iterate(_RECORDS, variant), key=lambda row: row[:-1]
    ):
        curated = [found for *_, found in rows if found is not None]
        if (log_hash or previous) and compute_log_hash(previous, digest, curated) != log_hash:
            name = f"the record of version {version}" if version >= 0 else "a record of evictions"
            yield (
                f"{name} of {variant}, {name_partition((topic, partition))}@{offset}, has a log_hash that does not "
                "follow from the record before it and the curated groups that it names: one of them was altered, lost "
                "or moved"
            )
        previous = log_hash


def count_without_digest(ledger: Ledger) -> int:
    """Return the number of records that an older build wrote without a digest: they are audited without it."""
    [(count,)] = ledger.query(
        "SELECT (SELECT count(*) FROM batch WHERE log_hash = '')"
        " + (SELECT count(*) FROM outcome WHERE decides AND samples > 0 AND group_digest = '')"
    )
    return int(count)
