"""Finds results of evaluations that the evaluator's newest snapshot does not know. No I/O.

The evaluator writes a result and a snapshot that counts it in one transaction. It starts again from that snapshot: if
the snapshot is missing or older, it may publish the result a second time.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.topic_reader import name_offset
from headrace.infra.run.own_positions import is_cut
from headrace.ledger.feeder_snapshot import NO_SNAPSHOT, describe_unusable
from headrace.schemas import codec
from headrace.schemas.records import Snapshot

EvaluationKey = tuple[str, str, int]
"""(workflow, policy, version)."""


def find_unsaved_results(results: Collection[EvaluationKey], evaluator: Message | None) -> Iterator[str]:
    """Yield what is wrong.

    Args:
        results: The results of the run. In a running run they must be read before the snapshot.
        evaluator: The evaluator's newest snapshot; None if there is none.
    """
    if evaluator is None:
        if results:
            yield (
                f"the run has results of evaluations ({len(results)}), but `state` has no snapshot of the evaluator, "
                "which may therefore publish them again when it starts"
            )
        return
    try:
        snapshot = codec.decode(evaluator.value, Snapshot)
        if is_cut(snapshot):  # its pieces are not kept: only a run of many thousand evaluations has such a snapshot
            return
        done = {(workflow, policy, version) for workflow, policy, version in json.loads(snapshot.body)["done"]}
    except NO_SNAPSHOT as error:
        yield f"the evaluator's snapshot {name_offset(evaluator)} cannot be read: {describe_unusable(error)}"
        return
    for key in sorted(set(results) - done):
        yield (
            f"{name_evaluation(key)} has a result, but the evaluator's snapshot {name_offset(evaluator)} does not "
            "count it, so the evaluator may publish it again when it starts"
        )


def name_evaluation(key: EvaluationKey) -> str:
    """Return the name of an evaluation for a sentence."""
    workflow, policy, version = key
    return f"the evaluation of version {version} of {policy} on {workflow}"
