"""Turns the small records of a run into rows of the ledger's tables: one function per kind of record. No I/O."""

from __future__ import annotations

import json
import math
import re
from array import array
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.dead_letters import REDRIVEN
from headrace.infra.weights.paths import is_version, size_of
from headrace.ledger.plain_headers import GroupStamp
from headrace.ledger.run_streams import RunStreams
from headrace.schemas.digests import compute_digest, digest_batch
from headrace.schemas.episode_errors import MALFORMED, error_key_of
from headrace.schemas.headers import HeaderError, Stamp
from headrace.schemas.records import (
    DeadLetter,
    EpisodeError,
    EvalResult,
    RecipeRevision,
    ScalingDecision,
    WeightsPublished,
)
from headrace.schemas.topics import is_eval, policy_variant_of
from headrace.schemas.version_records import OFF_POLICY_GAP

BLOCK_BITS = 10
"""A block is 1 << BLOCK_BITS consecutive numbers of a stream, whose counts are kept."""
LARGEST = 2**40
"""Largest count that is kept of one record: sums of larger ones would not fit into SQLite's integers."""
SEPARATOR = "\x1f"
"""Between the parts of a key that is made of several texts."""
Row: TypeAlias = tuple[Any, ...]


@dataclass(slots=True)
class Rows:
    """Rows that wait to be written, by table, and the blocks whose counts they change."""

    next_ids: dict[str, int]
    """Table to its next id."""
    of: defaultdict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    dirty: set[tuple[str, str, int]] = field(default_factory=set)
    """(variant, stream, block)."""

    def add(self, table: str, *values: object) -> int:
        """Add a row, and return its id."""
        row_id = self.next_ids[table]
        self.next_ids[table] = row_id + 1
        self.of[table].append((row_id, *values))
        return row_id

    def mark(self, variant: str, stream: str, number: int) -> None:
        """Note that a number's block is to be counted anew."""
        self.dirty.add((variant, stream, number >> BLOCK_BITS))

    # --------------------------------------------------------------------------------------------------------- records

    def add_outcome(self, message: Message, partition_id: int, variant: str, one: Mapping[str, Any]) -> None:
        """Add an outcome of training; those of evaluations have no row."""
        stream, number, level, component = one["stream"], one["number"], one["level"], one["component"]
        if is_eval(stream):
            return
        rewards, lengths, reason = one["rewards"], one["lengths"], one["reason"]
        finite = [reward for reward in rewards if math.isfinite(reward)]
        decides = level == "group" and component == "curate" and not one["use"]
        outcome_id = self.add(
            "outcome", partition_id, message.offset, message.timestamp_ms, variant, stream, number, one["use"], level,
            one["verdict"], reason, component, decides, decides and bool(rewards) and reason != MALFORMED,
            one["revision"], one["min_version"], one["head_version"], _clamp(one["n_asked"]),
            _clamp(sum(lengths)), len(rewards), sum(finite), len(finite), min(finite, default=None),
            max(finite, default=None), array("d", rewards).tobytes(), array("q", lengths).tobytes(),
            one["group_digest"],
        )  # fmt: skip
        if decides:
            for error in one["errors"]:
                kept = EpisodeError(**error)
                self.add(
                    "episode_error", outcome_id, variant, stream, number, one["task_id"], message.timestamp_ms,
                    SEPARATOR.join(error_key_of(kept)), kept.reason, kept.detail, kept.at, kept.role, kept.turn,
                    _clamp(kept.episodes), kept.has_traceback,
                )  # fmt: skip
        self.mark(variant, stream, number)

    def add_batch(self, message: Message, partition_id: int, variant: str, one: Mapping[str, Any]) -> None:
        """Add a trainer's record, and the groups that it trained."""
        metrics, version, log_hash = one["metrics"], one["version"], one["log_hash"]
        positions = {place["partition"]: place["offset"] for place in one["positions"]}
        batch_id = self.add(
            "batch", partition_id, message.offset, message.timestamp_ms, variant, version, one["created_ms"],
            len(one["groups"]), metrics.get(OFF_POLICY_GAP), json.dumps(metrics), json.dumps(positions),
            digest_batch(one) if log_hash else "", log_hash,
        )  # fmt: skip
        for group in one["groups"]:
            stream, number = group["stream"], group["number"]
            place = group["partition"], group["offset"]
            self.add("trained", batch_id, variant, stream, number, group["use"], version, *place)
            self.mark(variant, stream, number)
        for eviction in one["evictions"]:
            if (group := eviction["group"]) is not None:
                use = group["stream"], group["number"], group["use"]
                self.add("eviction", batch_id, variant, eviction["verdict"], *use)

    def add_task(self, message: Message, partition_id: int, stream: str, number: int, *, waits: bool) -> None:
        """Add a task; `waits`: whether no worker has read it yet."""
        self.add("task", partition_id, message.offset, stream, number, waits)

    def add_delivery(
        self, message: Message, partition_id: int, policy: str, group: GroupStamp, *, reached: bool, due: bool
    ) -> None:
        """Add a delivered group.

        `reached`: whether a curator may have read it; `due`: whether one is known to have read it.
        """
        digest = compute_digest(message.value)
        self.add("delivery", partition_id, message.offset, policy, group.stream, group.number, reached, due, digest)

    def add_curated(
        self, message: Message, partition_id: int, variant: str, group: GroupStamp, *, sent_back: bool
    ) -> None:
        """Add a curated group."""
        self.add(
            "curated", partition_id, message.offset, variant, group.stream, group.number, group.use, group.revision,
            group.min_version, group.max_version, sent_back, compute_digest(message.value),
        )  # fmt: skip

    def add_weights(self, message: Message, partition_id: int, event: WeightsPublished) -> None:
        """Add an event of a weights topic."""
        names = ("full_bytes", "density", "encode_s", "upload_s")
        self.add(
            "weights", partition_id, message.offset, policy_variant_of(event.policy, event.variant), event.version,
            event.kind, is_version(event), _clamp(size_of(event)), *(event.metrics.get(name) for name in names),
            event.created_ms, message.value,
        )  # fmt: skip

    def add_evaluation(self, message: Message, result: EvalResult) -> None:
        """Add the result of an evaluation."""
        self.add("evaluation", result.policy, message.value)

    def add_revision(self, message: Message, record: RecipeRevision) -> None:
        """Add a record of the recipe topic."""
        self.add("revision", record.revision, record.created_ms, message.value)

    def add_scaling(self, message: Message, decision: ScalingDecision) -> None:
        """Add a decision of the autoscaler."""
        self.add("scaling", decision.pool, message.value)

    def add_dead_letter(self, message: Message, partition_id: int, one: DeadLetter, streams: RunStreams) -> None:
        """Add a dead letter or a redrive, and the numbers that it concludes or opens again."""
        concluded = streams.find_concluded(one)
        self.add(
            "dead_letter", partition_id, message.offset, message.timestamp_ms, one.component, one.topic, one.reason,
            one.detail, SEPARATOR.join((one.component, one.reason, re.sub("[0-9]+", "", one.detail))), one.policy,
            one.stream, one.number, one.redrives, bool(concluded), one.created_ms, one.partition, one.offset, one.use,
            _read_min_version(one), len(one.value), one.cut_bytes,
        )  # fmt: skip
        times, of_task = -1 if one.reason == REDRIVEN else 1, streams.is_task(one.topic)
        for variant in concluded:
            self.add("death", variant, one.stream, one.number, one.use, times, of_task)
            self.mark(variant, one.stream, one.number)


def read_floats(data: bytes) -> tuple[float, ...]:
    """Return the numbers of a column with float64 values."""
    return tuple(array("d", data))


def read_ints(data: bytes) -> tuple[int, ...]:
    """Return the numbers of a column with int64 values."""
    return tuple(array("q", data))


def _read_min_version(one: DeadLetter) -> int:
    try:
        stamp = Stamp.from_headers(list(one.headers.items()))
    except HeaderError:
        return -1
    return stamp.min_version if stamp.run_id == one.run_id else -1


def _clamp(count: int) -> int:
    return max(-LARGEST, min(count, LARGEST))
