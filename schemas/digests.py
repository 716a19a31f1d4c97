"""The two digests by which an audit finds records that were altered, lost or moved: of a group, of a trainer's log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from blake3 import blake3

DIGEST_BYTES = 16
_FACTS = ("version", "epoch", "revision", "base_hash", "weights_hash")


def compute_digest(value: bytes) -> str:
    """Return the digest of a record's value: the first 16 bytes of BLAKE3, as hex."""
    return blake3(value).hexdigest(DIGEST_BYTES)


def digest_batch(batch: Mapping[str, Any]) -> str:
    """Return the digest of what a BatchTrained record says: its version, weights, groups, evictions and positions.

    `batch` is the record as a dict, with the dicts of its groups, evictions and positions.
    """
    evicted = ((one["verdict"], one["group"] and _place_use(one["group"])) for one in batch["evictions"])
    positions = ((one["partition"], one["offset"]) for one in batch["positions"])
    facts = (*(batch[name] for name in _FACTS), *map(_name_use, batch["groups"]), *evicted, *positions)
    return compute_digest("\n".join(map(repr, facts)).encode())


def compute_log_hash(previous: str, batch: str, curated: Iterable[str]) -> str:
    """Return the `log_hash` of a BatchTrained record.

    It holds the hash of the record before it. So a record on `batches`, or a curated group that was trained, that is
    altered, lost or moved breaks an equality.

    Args:
        previous: `log_hash` of the record before it; empty for the first record, and after one of an older build.
        batch: Digest of the record.
        curated: Digests of the curated records of its groups, in its order.
    """
    return compute_digest("\n".join((previous, batch, *curated)).encode())


def _place_use(group: Mapping[str, Any]) -> tuple[object, ...]:
    """Return a use with the place of its record: a trainer that resumes leaves out what was evicted, by its place."""
    return *_name_use(group), group["partition"], group["offset"]


def _name_use(group: Mapping[str, Any]) -> tuple[str, int, int]:
    return group["stream"], group["number"], group["use"]
