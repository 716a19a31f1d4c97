"""The figures that only a live view shows: rates, the newest step, published weights. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.dead_letters import REDRIVEN
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.infra.recipe.settings import Recipe
from headrace.infra.weights.paths import is_version
from headrace.ops.first_decision import is_first_decision
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.records import BatchTrained, DeadLetter, Outcome, WeightsPublished
from headrace.trainers.health import HEALTH_LOOK_BACK

WINDOW_MS = 10_000
"""Rates are means over this many of the newest seconds."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A group that a curator saw."""

    at_ms: int
    samples: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second."""

    samples: float = 0.0
    tokens: float = 0.0


@dataclass(slots=True)
class PolicyPulse:
    """The live figures of one policy."""

    recent: deque[Mapping[str, float]] = field(default_factory=lambda: deque(maxlen=HEALTH_LOOK_BACK))
    """Metrics of its newest steps."""
    published: int = 0
    """Number of published versions."""
    newest_published: int = -1

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of its newest step."""
        return self.recent[-1] if self.recent else {}


class Pulse:
    """Follows outcomes, batches, weights and dead letters; repeated messages are skipped."""

    def __init__(self, run_id: str, recipe: Recipe) -> None:
        topics = recipe.topics
        self._run_id = run_id
        self._kinds: dict[str, type] = {topics.dead_letters: DeadLetter}
        for policy in recipe.policies:
            self._kinds |= {
                topics.outcomes(policy): Outcome,
                topics.batches(policy): BatchTrained,
                topics.weights(policy): WeightsPublished,
            }
        self._read: dict[PartitionId, int] = {}
        self._recent: deque[Arrival] = deque()
        self._total = Arrival(0, 0, 0)
        self._first_ms: int | None = None
        self.dead_letters = 0
        self.policies = {policy: PolicyPulse() for policy in recipe.policies}

    def fold_message(self, message: Message) -> None:
        """Take in a message; unreadable ones and those of other runs are skipped."""
        partition_id = (message.topic, message.partition)
        kind = self._kinds.get(message.topic)
        if kind is None or message.offset < self._read.get(partition_id, 0):
            return
        self._read[partition_id] = message.offset + 1
        try:
            record: object = codec.decode(message.value, kind)
        except SchemaError:
            return
        if getattr(record, "run_id", "") == self._run_id and getattr(record, "policy", "") in {"", *self.policies}:
            self._fold_record(record, message.timestamp_ms)

    def _fold_record(self, record: object, at_ms: int) -> None:
        if isinstance(record, Outcome):
            if is_first_decision(record):
                self._count_arrival(Arrival(at_ms, len(record.rewards), sum(record.lengths)))
        elif isinstance(record, BatchTrained):
            if record.version >= 0 and record.policy:
                self.policies[record.policy].recent.append(record.metrics)
        elif isinstance(record, WeightsPublished) and record.policy and is_version(record):
            policy = self.policies[record.policy]
            policy.published += 1
            policy.newest_published = max(policy.newest_published, record.version)
        elif isinstance(record, DeadLetter) and record.reason != REDRIVEN:
            self.dead_letters += 1

    def _count_arrival(self, group: Arrival) -> None:
        self._recent.append(group)
        self._total = Arrival(0, self._total.samples + group.samples, self._total.tokens + group.tokens)
        self._first_ms = group.at_ms if self._first_ms is None else min(self._first_ms, group.at_ms)

    def rates(self, now_ms: int) -> Rates:
        """Return the rates of the newest seconds."""
        while self._recent and self._recent[0].at_ms < now_ms - WINDOW_MS:
            self._recent.popleft()
        first_ms = now_ms if self._first_ms is None else self._first_ms
        span_s = min(WINDOW_MS, max(1000, now_ms - first_ms)) / 1000
        return Rates(
            sum(group.samples for group in self._recent) / span_s,
            sum(group.tokens for group in self._recent) / span_s,
        )

    def mean_rates(self, wall_s: float) -> Rates:
        """Return the rates over the seconds that a run has taken; zeros if these are not known."""
        if wall_s <= 0:
            return Rates()
        return Rates(self._total.samples / wall_s, self._total.tokens / wall_s)
