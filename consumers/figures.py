"""The figures of a run, from its topics alone: for `status`, the summary, and anything that shows a run live."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from consumers.audit.fold import FEEDER_KEY, AuditFold
from consumers.audit.numbers import PolicyAudit
from infra.group_offsets import committed_offsets
from infra.kafka import Message, end_offsets
from infra.run import Run
from infra.settings import Recipe
from infra.topic_reader import Place, TopicReader, read_all, whole_topics
from schemas import codec
from schemas.avro import SchemaError
from schemas.records import (
    BatchTrained,
    DeadLetter,
    EvalResult,
    Outcome,
    RecipeRevision,
    Snapshot,
    WeightsPublished,
    WorkerStatus,
)
from schemas.topics import eval_stream

FRESH_MS = 15_000
"""A worker that has said nothing for so long is gone."""
EDGE = 5
"""Versions at either end of a run whose rewards are averaged."""


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """Training groups of all policies together."""

    issued: int = 0
    trained: int = 0
    discarded: dict[str, int] = field(default_factory=dict)
    dead: int = 0
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class RewardPoint:
    """Mean reward of all groups that workers finished while one version was the newest they knew."""

    version: int
    reward: float
    groups: int


@dataclass(frozen=True, slots=True)
class RunFigures:
    """A run at one moment."""

    run: str
    state: str
    """running | finished | stopped."""
    ended: str
    """Why the run is over; empty while it goes on."""
    versions: dict[str, int]
    """Policy to its newest version."""
    groups: GroupCounts
    policies: dict[str, PolicyAudit]
    lag: dict[str, int]
    """Topic to records that its reader has yet to read."""
    workers: tuple[WorkerStatus, ...]
    rewards: dict[str, tuple[RewardPoint, ...]]
    """Policy to its reward curve, over every group that a curator saw, before any filter."""
    reward_first: dict[str, float]
    """Policy to the mean over the first five versions of its curve, every trajectory counting alike."""
    reward_last: dict[str, float]
    """The same over the last five."""
    evals: tuple[EvalResult, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)


class Figures:
    """Follows a run: give it every message of `topics`, in each partition's order; a repeated one is passed over."""

    def __init__(self, run_id: str, recipe: Recipe) -> None:
        self.recipe = recipe
        self._audit = AuditFold(run_id, recipe)
        self._run_id = run_id
        self._kinds = _kinds_of(recipe)
        self._read: dict[Place, int] = {}
        self._versions: dict[str, int] = {}
        self._workers: dict[bytes, WorkerStatus] = {}
        self._evals: list[EvalResult] = []
        self._rewards: dict[str, defaultdict[int, _Mean]] = {p: defaultdict(_Mean) for p in recipe.policies}
        self._positions: dict[str, dict[Place, int]] = {}
        self._ended = ""
        self._newest_ms = 0

    @property
    def topics(self) -> tuple[str, ...]:
        """What it is to be given."""
        return tuple(self._kinds)

    @property
    def trainer_positions(self) -> dict[Place, int]:
        """Next offsets of the curated topics, as the trainers last told."""
        return {place: offset for positions in self._positions.values() for place, offset in positions.items()}

    def take(self, message: Message) -> None:
        """Take in a message; unreadable ones and those of other runs are passed over."""
        place = (message.topic, message.partition)
        kind = self._kinds.get(message.topic)
        if kind is None or message.offset < self._read.get(place, 0):
            return
        self._read[place] = message.offset + 1
        self._newest_ms = max(self._newest_ms, message.timestamp_ms)
        if kind is Snapshot and message.key != FEEDER_KEY:
            return
        if kind is WorkerStatus and not message.value:
            self._workers.pop(message.key, None)
            return
        try:
            record = codec.decode(message.value, kind)
        except SchemaError:
            return
        if record.run_id == self._run_id:
            self._take(message, record)

    def _take(self, message: Message, record: Any) -> None:
        if isinstance(record, WorkerStatus):
            self._workers[message.key] = record
        elif isinstance(record, EvalResult):
            self._evals.append(record)
        elif isinstance(record, RecipeRevision):
            self._ended = record.ended if record.recipe or record.ended else self._ended  # others only tell schemas
        elif isinstance(record, WeightsPublished):
            self._version(record.policy, record.version)
        else:
            self._audit.take_record(record, (message.topic, message.partition, message.offset))
        if isinstance(record, Outcome):
            self._reward(record)
        elif isinstance(record, BatchTrained):
            self._version(record.policy, record.version)
            topic = self.recipe.topics.curated(record.policy)
            self._positions[record.policy] = {(topic, p.partition): p.offset for p in record.positions}

    def _version(self, policy: str, version: int) -> None:
        self._versions[policy] = max(version, self._versions.get(policy, -1))

    def _reward(self, outcome: Outcome) -> None:
        seen = outcome.level == "group" and outcome.component == "curate" and not outcome.use
        if seen and outcome.rewards and outcome.policy in self._rewards:
            self._rewards[outcome.policy][outcome.head_version].add(outcome.rewards)

    def figures(self, lag: Mapping[str, int], now_ms: int) -> RunFigures:
        """Return the figures of what was taken in so far.

        Args:
            lag: Topic to unread records; it is asked of the broker.
            now_ms: Wall time in ms since the epoch, for which workers are still there.
        """
        policies = self._audit.policies(drained=False)
        curves = {policy: dict(sorted(curve.items())) for policy, curve in self._rewards.items()}
        return RunFigures(
            run=self.recipe.name,
            state=self._state(now_ms),
            ended=self._ended,
            versions={policy: self._versions[policy] for policy in self.recipe.policies if policy in self._versions},
            groups=_sum(policies.values()),
            policies=policies,
            lag=dict(lag),
            workers=tuple(sorted(self._workers.values(), key=lambda worker: worker.worker)),
            rewards={
                policy: tuple(RewardPoint(version, mean.value, mean.groups) for version, mean in curve.items())
                for policy, curve in curves.items()
            },
            reward_first={p: _pooled(list(curve.values())[:EDGE]) for p, curve in curves.items() if curve},
            reward_last={p: _pooled(list(curve.values())[-EDGE:]) for p, curve in curves.items() if curve},
            evals=tuple(self._evals),
        )

    def _state(self, now_ms: int) -> str:
        here = [w for w in self._workers.values() if w.state != "stopped" and now_ms - w.updated_ms < FRESH_MS]
        starting = not self._workers and now_ms - self._newest_ms < FRESH_MS
        if self._ended:
            busy = any(policy.in_flight for policy in self._audit.policies(drained=False).values())
            return "running" if here and busy else "finished"
        return "running" if here or starting else "stopped"


@dataclass(slots=True)
class _Mean:
    """Mean over all trajectories of the groups added."""

    total: float = 0.0
    count: int = 0
    groups: int = 0

    def add(self, rewards: tuple[float, ...]) -> None:
        finite = [reward for reward in rewards if math.isfinite(reward)]
        self.total += sum(finite)
        self.count += len(finite)
        self.groups += 1

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else 0.0


def _pooled(means: list[_Mean]) -> float:
    return sum(mean.total for mean in means) / max(1, sum(mean.count for mean in means))


def _sum(policies: Iterable[PolicyAudit]) -> GroupCounts:
    total: Counter[str] = Counter()
    discarded: Counter[str] = Counter()
    for policy in policies:
        total.update(issued=policy.issued, trained=policy.trained, dead=policy.dead, in_flight=policy.in_flight)
        discarded.update(policy.discarded)
    return GroupCounts(total["issued"], total["trained"], dict(discarded), total["dead"], total["in_flight"])


def _kinds_of(recipe: Recipe) -> dict[str, type[Any]]:
    topics = recipe.topics
    kinds: dict[str, type[Any]] = {topics.recipe: RecipeRevision, topics.workers: WorkerStatus}
    for policy in recipe.policies:
        kinds |= {topics.weights(policy): WeightsPublished, topics.evals(policy): EvalResult}
        kinds |= {topics.outcomes(policy): Outcome, topics.batches(policy): BatchTrained}
    return kinds | {topics.dead_letters: DeadLetter, topics.state: Snapshot}


def figures(run: Run) -> RunFigures:
    """Read a run's topics from the beginning and return its figures. Raises KafkaAway or KafkaRefused."""
    found = Figures(run.run_id, run.recipe)
    for message in read_all(run.connection, found.topics):
        found.take(message)
    return found.figures(lags(run, found.trainer_positions), time.time_ns() // 1_000_000)


def lags(run: Run, trainer_positions: Mapping[Place, int]) -> dict[str, int]:
    """Return topic to unread records, of the topics that the flow waits on.

    Unread tasks are counted. The rest are differences of offsets; those of the curated topics, which are written in
    transactions, count the transactions' markers too.
    """
    recipe = run.recipe
    found: dict[str, int] = {}
    positions: dict[Place, int] = {}
    for workflow in recipe.workflows:
        topics = [run.topics.tasks(workflow), run.topics.tasks(eval_stream(workflow))]
        found |= dict.fromkeys(topics, 0)
        committed = committed_offsets(run.connection, run.topics.rollout_group(workflow), topics)
        positions |= whole_topics(run.connection, topics, committed)
    with TopicReader(run.connection, positions, "lag") as reader:
        for message in reader.catch_up():
            found[message.topic] += 1
    for policy in recipe.policies:
        trajectories, curated = run.topics.trajectories(policy), run.topics.curated(policy)
        done = committed_offsets(run.connection, run.topics.curate_group(policy), [trajectories])
        done |= {place: offset for place, offset in trainer_positions.items() if place[0] == curated}
        ends = end_offsets(run.connection, whole_topics(run.connection, [trajectories, curated]))
        for topic in (trajectories, curated):
            found[topic] = sum(max(end - done.get(p, 0), 0) for p, end in ends.items() if p[0] == topic)
    return found
