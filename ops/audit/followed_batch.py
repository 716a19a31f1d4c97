"""Follows a trainer's batch: the version that it makes, its facts, and how far the trainer has read. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.topic_reader import name_offset
from headrace.ops.audit.batch_records import BatchFacts, BatchRecords
from headrace.ops.audit.weights_chain import ChainLink, WeightsChain


def follow_batch(chain: WeightsChain, batches: BatchRecords, batch: Mapping[str, Any], message: Message) -> None:
    """Take in a batch, as Avro's dict.

    Args:
        chain: Versions of its policy or shadow.
        batches: Facts of its batches.
        batch: The batch.
        message: Its message.
    """
    where, version, groups, evictions = name_offset(message), batch["version"], batch["groups"], batch["evictions"]
    if version >= 0:
        link = ChainLink(batch["epoch"], batch["base_hash"], batch["weights_hash"], where)
        chain.fold_batch(version, link, is_last=batches.is_last(version, batch["revision"]))
        facts = (version, batch["epoch"], batch["revision"], len(groups), batch["fingerprint"], where)
        batches.fold_batch(BatchFacts(*facts))
    verdicts = {eviction["verdict"] for eviction in evictions}
    reported = {place["partition"]: place["offset"] for place in batch["positions"]}
    for group in groups:
        hint = group["partition"], group["offset"]
        chain.positions.check_hint(f"version {version} of {chain.policy}", hint, reported, where)
    is_last = version >= chain.steps or (version < 0 and "run_end" in verdicts)
    settles = version >= 0 or bool(verdicts - {"dead"})
    chain.positions.fold_record(reported, where, version=version, settles=settles)
    if is_last:
        chain.positions.mark_all_groups_reported()
