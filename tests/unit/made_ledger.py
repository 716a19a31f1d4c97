"""A ledger in memory, filled with made-up records."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from made_recipes import sums_recipe

from headrace.infra.kafka.clients import Message
from headrace.infra.recipe.settings import Recipe
from headrace.ledger.ledger import Ledger
from headrace.ledger.run_streams import RunStreams
from headrace.ops.figures.figures import Figures
from headrace.schemas import codec
from headrace.schemas.records import (
    BatchTrained,
    DeadLetter,
    EvalResult,
    Outcome,
    ScalingDecision,
    WeightsPublished,
    WorkerStatus,
)

RUN_ID = "r"


class MadeLedger(Ledger):
    """Takes records of the run RUN_ID, each with the next offset of its topic."""

    def __init__(self, recipe: Recipe | None = None) -> None:
        super().__init__(None, RUN_ID, RunStreams(recipe or sums_recipe()))
        self._ends = Counter[str]()

    def say(self, record: Any, at_ms: int = 0, policy: str = "solver") -> None:
        """Take in a record as its topic gives it; `policy` stands for an empty one."""
        topics = self.streams.recipe.topics
        if hasattr(record, "policy") and not record.policy and not isinstance(record, DeadLetter):
            record = replace(record, policy=policy)
        name = getattr(record, "policy", "")
        topic = {
            ScalingDecision: lambda _: topics.scaling,
            Outcome: topics.outcomes,
            BatchTrained: topics.batches,
            WeightsPublished: topics.weights,
            EvalResult: topics.evals,
        }.get(type(record), lambda _: topics.workers if isinstance(record, WorkerStatus) else topics.dead_letters)(name)
        key = record.worker.encode() if isinstance(record, WorkerStatus) else b""
        data = codec.encode(replace(record, run_id=RUN_ID))
        self.add([Message(topic, 0, self._ends[topic], key, data, timestamp_ms=at_ms)])
        self._ends[topic] += 1


def make_figures(run_id: str, recipe: Recipe) -> Figures:
    """Return the figures over an empty ledger in memory."""
    return Figures(Ledger(None, run_id, RunStreams(recipe)))
