"""Which topics of a run are in the ledger, and how a message of each becomes rows. No I/O."""

from __future__ import annotations

from typing import Any

from headrace.infra.kafka.clients import Message
from headrace.ledger.rows import Rows
from headrace.ledger.run_streams import RunStreams
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.records import (
    BatchTrained,
    DeadLetter,
    EvalResult,
    Outcome,
    RecipeRevision,
    ScalingDecision,
    WeightsPublished,
    WorkerStatus,
)
from headrace.schemas.topics import policy_of, policy_variant_of


class Readable:
    """Reads messages of one run; unreadable ones, those of other runs and of the wrong topic have no rows."""

    def __init__(self, run_id: str, streams: RunStreams) -> None:
        self._run_id, self._streams = run_id, streams
        topics, variants = streams.recipe.topics, streams.variants
        self.workers = topics.workers
        self._plain: dict[str, type[Outcome | BatchTrained]] = {topics.outcomes(one): Outcome for one in variants}
        """Topics of which the audit and the figures read the most records: these are read as Avro's dict."""
        self._plain |= {topics.batches(one): BatchTrained for one in variants}
        self._kinds: dict[str, type[Any]] = {topics.recipe: RecipeRevision, topics.workers: WorkerStatus}
        self._kinds |= {topics.weights(one): WeightsPublished for one in variants}
        self._kinds |= {topics.evals(policy): EvalResult for policy in streams.recipe.policies}
        self._kinds |= {topics.dead_letters: DeadLetter, topics.scaling: ScalingDecision}
        self.topics = (*self._plain, *self._kinds, topics.state)
        """Topics whose messages have rows; of the state, only the feeder's snapshot."""
        self.young_topics = (topics.scaling,)
        """Those of them that runs of older builds lack until they are resumed."""

    def is_end_of_worker(self, message: Message) -> bool:
        """Return whether a message removes the status of a worker."""
        return message.topic == self.workers and not message.value

    def add_rows(self, rows: Rows, message: Message, partition_id: int) -> WorkerStatus | None:
        """Add the rows of a message; return the record if it is a worker's status, which has rows of its own."""
        try:
            if (plain := self._plain.get(message.topic)) is not None:
                self._add_plain(rows, message, partition_id, plain)
                return None
            kind = self._kinds.get(message.topic)
            record = None if kind is None or not message.value else codec.decode(message.value, kind)
        except SchemaError:
            return None
        if record is None or record.run_id != self._run_id:
            return None
        if isinstance(record, WeightsPublished):
            if self._streams.variant_of_topic[message.topic] == policy_variant_of(record.policy, record.variant):
                rows.add_weights(message, partition_id, record)
        elif isinstance(record, DeadLetter):
            rows.add_dead_letter(message, partition_id, record, self._streams)
        elif isinstance(record, EvalResult):
            rows.add_evaluation(message, record)
        elif isinstance(record, RecipeRevision):
            rows.add_revision(message, record)
        elif isinstance(record, ScalingDecision):
            rows.add_scaling(message, record)
        return record if isinstance(record, WorkerStatus) else None

    def _add_plain(self, rows: Rows, message: Message, partition_id: int, kind: type[Outcome | BatchTrained]) -> None:
        one = codec.decode_plain(message.value, kind)
        variant = self._streams.variant_of_topic[message.topic]
        if one["run_id"] != self._run_id or one["policy"] != policy_of(variant):
            return
        if kind is Outcome:
            rows.add_outcome(message, partition_id, variant, one)
        elif variant == policy_variant_of(one["policy"], one["variant"]):
            rows.add_batch(message, partition_id, variant, one)
