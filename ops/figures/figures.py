"""The figures of a run, from its topics alone: for `status`, the summary, and the live page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.dead_letters import REDRIVEN
from headrace.infra.kafka.group_offsets import fetch_committed_offsets
from headrace.infra.kafka.topic_offsets import fetch_end_offsets
from headrace.infra.kafka.topic_reader import PartitionId, TopicReader, find_start_positions, read_all
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import Run
from headrace.infra.weights.paths import is_version
from headrace.ops.audit.account import NO_SNAPSHOT
from headrace.ops.audit.fold import AuditFold
from headrace.ops.audit.numbers import PolicyAudit
from headrace.ops.feeder_snapshot import FEEDER_KEY, FeederSnapshot
from headrace.ops.figures.concluded import ConcludedFold
from headrace.ops.figures.late_versions import describe_longest_pause
from headrace.ops.figures.revision_figures import RevisionsFold
from headrace.ops.figures.reward_figures import RewardsFold
from headrace.ops.figures.run_figures import GroupCounts, RunFigures, RunState, Selection, ShadowFigures, read_selection
from headrace.ops.figures.standstill import (
    Seen,
    Standstill,
    Surroundings,
    describe_discards,
    standstill,
)
from headrace.ops.figures.trouble import Trouble
from headrace.ops.figures.version_figures import VersionsFold
from headrace.ops.figures.weights_figures import WeightsFold, is_alive, is_fresh
from headrace.ops.first_decision import is_first_decision
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.ids import now_ms
from headrace.schemas.records import (
    BatchTrained,
    DeadLetter,
    EvalResult,
    Outcome,
    RecipeRevision,
    Snapshot,
    WeightsPublished,
    WorkerStatus,
)
from headrace.schemas.topics import eval_stream, policy_of, policy_variant_of


class Figures:
    """Follows a run: give it every message of `topics`, in each partition's order; repeated messages are skipped.

    Args:
        run_id: Id of the run; records of other runs are skipped.
        recipe: The newest revision.
        revisions: All its revisions, by number; if empty, this recipe is the only one.
    """

    def __init__(self, run_id: str, recipe: Recipe, revisions: Sequence[Recipe] = ()) -> None:
        self.recipe = recipe
        self._audit = AuditFold(run_id, recipe, revisions)
        self._run_id = run_id
        self._kinds = _list_kinds(recipe)
        self._of_shadows = {recipe.topics.outcomes(variant) for variant in recipe.shadow_variants}
        self._read: dict[PartitionId, int] = {}
        self._versions = VersionsFold()
        self._weights = WeightsFold(recipe.policies)
        self._workers: dict[bytes, WorkerStatus] = {}
        self._tokens: dict[tuple[str, int], tuple[int, int]] = {}
        """(worker, start time) to (generated, wasted) tokens since that start."""
        self._rewards = RewardsFold(recipe.policies)
        self._groups = ConcludedFold()
        self._trouble = Trouble()
        self._positions: dict[str, dict[PartitionId, int]] = {}
        self._revisions = RevisionsFold()
        self._ended = ""
        self._began_ms = 0
        self._newest_ms = 0
        self._feeder = FeederSnapshot()
        self._selection: dict[str, Selection] = {}

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics whose messages it needs."""
        return tuple(self._kinds)

    @property
    def ended(self) -> str:
        """Why the run is over; empty while it is running."""
        return self._ended

    @property
    def trainer_positions(self) -> dict[PartitionId, int]:
        """Next offsets of the curated topics, as the trainers last reported."""
        return {
            partition_id: offset for positions in self._positions.values() for partition_id, offset in positions.items()
        }

    def fold_message(self, message: Message, arrived_ms: int = 0) -> None:
        """Take in a message; unreadable ones and those of other runs are skipped.

        Args:
            message: The message.
            arrived_ms: Time of arrival by this machine's clock, if the message is new. It is used to tell whether a
                worker is alive, because the worker's own clock may be wrong.
        """
        partition_id = (message.topic, message.partition)
        kind = self._kinds.get(message.topic)
        if kind is None or message.offset < self._read.get(partition_id, 0):
            return
        self._read[partition_id] = message.offset + 1
        self._newest_ms = max(self._newest_ms, message.timestamp_ms)
        if kind is Snapshot and not message.key.startswith(FEEDER_KEY):
            return
        if kind is WorkerStatus and not message.value:
            self._workers.pop(message.key, None)
            return
        try:
            record = codec.decode(message.value, kind)
        except SchemaError:
            return
        if isinstance(record, WorkerStatus) and arrived_ms:
            record = replace(record, updated_ms=arrived_ms)
        if record.run_id == self._run_id:
            self._fold_record(message, record)

    def _fold_record(self, message: Message, record: Any) -> None:
        if isinstance(record, WorkerStatus):
            self._workers[message.key] = record
            self._tokens[record.worker, record.started_ms] = (record.tokens, record.wasted_tokens)
            self._weights.fold_status(record)
        elif isinstance(record, EvalResult):
            self._rewards.fold_evaluation(record)
            self._trouble.errors.fold_evaluation(record)
        elif isinstance(record, RecipeRevision):
            self._revisions.fold_revision(record)
            self._ended = record.ended if record.recipe or record.ended else self._ended  # others hold only schemas
            self._began_ms = self._began_ms or record.created_ms
        elif isinstance(record, WeightsPublished):
            self._fold_event(record)
        elif isinstance(record, Snapshot):
            self._feeder.fold_message(message)
        else:
            self._audit.fold_record(record, (message.topic, message.partition, message.offset))
        if isinstance(record, Outcome):
            self._groups.fold_record(self._find_variant(message), record, message.timestamp_ms)
            if message.topic not in self._of_shadows:
                self._fold_reward(record)
                self._trouble.fold_outcome(record, message.timestamp_ms)
        elif isinstance(record, BatchTrained):
            self._groups.fold_record(self._find_variant(message), record, message.timestamp_ms)
            self._fold_batch(record)
        elif isinstance(record, DeadLetter):
            self._fold_dead_letter(record, message.timestamp_ms)

    def _fold_dead_letter(self, record: DeadLetter, at_ms: int) -> None:
        self._trouble.errors.fold_dead_letter(record)
        if record.policy and record.reason != REDRIVEN:
            self._groups.fold_record(record.policy, record, at_ms)

    def _find_variant(self, message: Message) -> str:
        """Return the policy or shadow whose topic holds a record."""
        return self._audit.account.variant_of_topic[message.topic]

    def _fold_event(self, event: WeightsPublished) -> None:
        if not is_version(event):
            return
        self._versions.fold_version(policy_variant_of(event.policy, event.variant), event.version)
        if event.variant:
            return
        self._weights.fold_event(event)
        if not event.version:
            self._versions.made_ms[event.policy][0] = event.created_ms

    def _fold_batch(self, batch: BatchTrained) -> None:
        variant = policy_variant_of(batch.policy, batch.variant)
        self._versions.fold_batch(variant, batch)
        topic = self.recipe.topics.curated(variant)
        self._positions[variant] = {(topic, p.partition): p.offset for p in batch.positions}

    def _fold_reward(self, outcome: Outcome) -> None:
        if outcome.component == "train":
            self._rewards.fold_untrained(outcome)
        if not is_first_decision(outcome):
            return
        self._revisions.fold_outcome(outcome)
        self._rewards.fold_outcome(outcome)

    def seconds_to_versions(self, policy: str) -> dict[int, float]:
        """Return version to the seconds of wall time from the run's beginning until it was made, with pauses."""
        made = sorted(self._versions.made_ms[policy].items())
        return {version: (at_ms - self._began_ms) / 1000 for version, at_ms in made}

    def compute_figures(self, lag: Mapping[str, int], now_ms: int) -> RunFigures:
        """Return the figures of all messages taken in so far.

        Args:
            lag: Topic to unread records, as the broker reports it.
            now_ms: Wall time in ms since the epoch, to tell which workers are alive.
        """
        self._fold_feeder()
        policies = {
            policy: replace(counts, produced=self._rewards.curated[policy] + counts.dead)
            for policy, counts in self._audit.account.policies(drained=False).items()
        }
        versions, curves = self._versions.newest, self._rewards.points()
        return RunFigures(
            run=self.recipe.name,
            state=self._find_state(now_ms),
            ended=self._ended,
            versions={policy: versions[policy] for policy in self.recipe.policies if policy in versions},
            groups=_sum_counts(policies.values()),
            policies=policies,
            lag=dict(lag),
            workers=tuple(sorted(self._workers.values(), key=lambda worker: worker.worker)),
            rewards=curves,
            reward_first=self._rewards.means_at_start(),
            reward_last=self._rewards.means_at_end(),
            evals=tuple(self._rewards.evals),
            tokens=sum(generated for generated, _ in self._tokens.values()),
            wasted_tokens=sum(wasted for _, wasted in self._tokens.values()) + self._rewards.late_tokens,
            delivered_tokens=self._rewards.tokens,
            unnumbered_letters=self._audit.account.unnumbered.count_by_reason(),
            weights={policy: self._weights.figures(policy, now_ms) for policy in self.recipe.policies},
            revisions=self._revisions.figures(self._audit.account.begins),
            selection=self._selection,
            shadows={name: self._find_shadow(name, counts) for name, counts in self._audit.account.shadows().items()},
            answers={name: means for name, means in self._versions.answers.items() if name in self.recipe.policies},
            errors=self._trouble.errors.errors(),
            advice=()
            if self._ended
            else self._trouble.advice.advice(self.recipe.rollout.max_tokens, curves, self._rewards.evals),
        )

    def _fold_feeder(self) -> None:
        """Take in the feeder's newest state. An unreadable one changes nothing; the audit reports it."""
        with suppress(*NO_SNAPSHOT):
            if (snapshot := self._feeder.decode()) is None:
                return
            sources = json.loads(snapshot.body).get("sources", {})
            selection = {stream: read_selection(source) for stream, source in sources.items()}
            self._audit.account.fold_issued(snapshot)
            self._selection = selection

    def standstill(
        self, found: RunFigures, around: Surroundings, now_ms: int, *, at_once: bool = False
    ) -> Standstill | None:
        """Return what keeps the run from its next version; None while versions come, and once it has ended.

        Args:
            found: The result of `compute_figures`.
            around: What is known of the run beside its topics.
            now_ms: Wall time in ms since the epoch.
            at_once: Whether to answer before a version is overdue, because the run is given up.
        """
        if found.ended:
            return None
        shadows = {name: shadow.groups for name, shadow in found.shadows.items()}
        seen = Seen(
            recipe=self.recipe,
            versions=self._versions.newest,
            made_ms=self._versions.made_ms,
            groups=self._groups,
            episodes=self._trouble.failing,
            workers=found.workers,
            lag=found.lag,
            in_flight={name: counts.in_flight for name, counts in {**found.policies, **shadows}.items()},
            many_failed={one.policy: one.sentence for one in found.advice if one.is_cause},
        )
        return standstill(seen, around, now_ms, at_once=at_once)

    def describe_standstills(self, found: RunFigures) -> tuple[str, ...]:
        """Return, for a finished run, sentences on policies with too long pauses, or with hardly any trained group.

        Args:
            found: The result of `compute_figures`.
        """
        counted = {**found.policies, **{name: shadow.groups for name, shadow in found.shadows.items()}}
        late = [describe_longest_pause(variant, self._versions.made_ms[variant]) for variant in counted]
        dry = [describe_discards(variant, counts.trained, counts.discarded) for variant, counts in counted.items()]
        return tuple(filter(None, (*late, *dry)))

    def _find_shadow(self, variant: str, counts: PolicyAudit) -> ShadowFigures:
        gaps, beside = self._versions.gaps(variant), self._versions.gaps(policy_of(variant))
        return ShadowFigures(
            version=self._versions.newest.get(variant, -1),
            groups=counts,
            off_policy_gap=gaps[-1][1] if gaps else None,
            off_policy_gap_beside=beside[-1][1] if beside else None,
            gaps=gaps,
        )

    def _find_state(self, now_ms: int) -> RunState:
        here = [worker for worker in self._workers.values() if is_alive(worker, now_ms)]
        starting = not self._workers and is_fresh(self._newest_ms, now_ms)
        if self._ended:
            account = self._audit.account
            counted = (*account.policies(drained=False).values(), *account.shadows().values())
            busy = any(counts.in_flight for counts in counted)
            return "running" if here and busy else "finished"
        return "running" if here or starting else "stopped"


def _sum_counts(policies: Iterable[PolicyAudit]) -> GroupCounts:
    total: Counter[str] = Counter()
    discarded: Counter[str] = Counter()
    for policy in policies:
        total.update(issued=policy.issued, trained=policy.trained, dead=policy.dead, in_flight=policy.in_flight)
        discarded.update(policy.discarded)
    return GroupCounts(total["issued"], total["trained"], dict(discarded), total["dead"], total["in_flight"])


def _list_kinds(recipe: Recipe) -> dict[str, type[Any]]:
    topics = recipe.topics
    kinds: dict[str, type[Any]] = {topics.recipe: RecipeRevision, topics.workers: WorkerStatus}
    for policy in recipe.policies:
        kinds |= {topics.weights(policy): WeightsPublished, topics.evals(policy): EvalResult}
        kinds |= {topics.outcomes(policy): Outcome, topics.batches(policy): BatchTrained}
    for variant in recipe.shadow_variants:
        kinds |= {topics.weights(variant): WeightsPublished}
        kinds |= {topics.outcomes(variant): Outcome, topics.batches(variant): BatchTrained}
    return kinds | {topics.dead_letters: DeadLetter, topics.state: Snapshot}


def figures(run: Run) -> tuple[Figures, RunFigures]:
    """Read a run's topics from the beginning; return the fold and the figures. Raises KafkaAway or KafkaRefused."""
    fold = Figures(run.run_id, run.recipe, run.revisions)
    for message in read_all(run.connection, fold.topics):
        fold.fold_message(message)
    return fold, fold.compute_figures(measure_lags(run, fold.trainer_positions), now_ms())


def measure_lags(run: Run, trainer_positions: Mapping[PartitionId, int]) -> dict[str, int]:
    """Return topic to unread records, for the topics whose readers can hold up the run.

    Unread tasks are counted one by one. The other values are differences of offsets; for curated topics, they also
    count the markers of transactions.
    """
    recipe = run.recipe
    found: dict[str, int] = {}
    positions: dict[PartitionId, int] = {}
    for workflow in recipe.workflows:
        topics = [run.topics.tasks(workflow), run.topics.tasks(eval_stream(workflow))]
        found |= dict.fromkeys(topics, 0)
        committed = fetch_committed_offsets(run.connection, run.topics.rollout_group(workflow), topics)
        positions |= find_start_positions(run.connection, topics, committed)
    with TopicReader(run.connection, positions, "lag") as reader:
        for message in reader.catch_up():
            found[message.topic] += 1
    for policy in recipe.policies:
        trajectories, curated = run.topics.trajectories(policy), run.topics.curated(policy)
        done = fetch_committed_offsets(run.connection, run.topics.curate_group(policy), [trajectories])
        done |= {
            partition_id: offset for partition_id, offset in trainer_positions.items() if partition_id[0] == curated
        }
        ends = fetch_end_offsets(run.connection, find_start_positions(run.connection, [trajectories, curated]))
        for topic in (trajectories, curated):
            found[topic] = sum(max(end - done.get(p, 0), 0) for p, end in ends.items() if p[0] == topic)
    for policy_variant in recipe.shadow_variants:
        curated = run.topics.curated(policy_variant)
        ends = fetch_end_offsets(run.connection, find_start_positions(run.connection, [curated]))
        found[curated] = sum(max(end - trainer_positions.get(p, 0), 0) for p, end in ends.items())
    return found
