"""The evaluator's progress from its newest snapshot: its positions, and the problems of which it has groups."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from headrace.infra.kafka.topic_reader import PartitionId
from headrace.infra.run.own_positions import positions_of, read_newest_snapshot
from headrace.infra.run.run import Run
from headrace.producers.feed.open_evaluations import Answer
from headrace.schemas.topics import EVALUATOR


@dataclass(frozen=True, slots=True)
class EvaluatorProgress:
    """The evaluator's progress; empty before its first snapshot."""

    positions: dict[PartitionId, int] = field(default_factory=dict)
    """Next offset by partition of the topics with evaluation groups."""
    answers: frozenset[Answer] = frozenset()
    """Answers that the evaluator has, or has concluded."""


def read_progress(run: Run) -> EvaluatorProgress:
    """Read the newest snapshot of a run's evaluator."""
    snapshot = read_newest_snapshot(run.connection, run.state_partition_id(EVALUATOR), EVALUATOR)
    if snapshot is None:
        return EvaluatorProgress()
    state = json.loads(snapshot.body)
    answers = {Answer(*row[:4]) for row in state["open"]} | {Answer(*row) for row in state["done"]}
    return EvaluatorProgress(positions_of(snapshot), frozenset(answers))
