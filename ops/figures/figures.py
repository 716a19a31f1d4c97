"""The figures of a run, as queries over its ledger: for `status`, the summary, and the live page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from headrace.infra.kafka.group_offsets import fetch_committed_offsets
from headrace.infra.kafka.topic_offsets import fetch_end_offsets
from headrace.infra.kafka.topic_reader import PartitionId, TopicReader, find_start_positions
from headrace.infra.run.run import Run
from headrace.ledger.ledger import Ledger
from headrace.ledger.liveness import is_alive, is_fresh
from headrace.ledger.tallies import recount
from headrace.ops.audit.numbers import PolicyAudit, count_unnumbered
from headrace.ops.episode_errors import list_errors
from headrace.ops.figures.advice import Advisor
from headrace.ops.figures.concluded import Concluded
from headrace.ops.figures.failing import Failures
from headrace.ops.figures.group_counts import Issued, count_policies, read_feeder
from headrace.ops.figures.late_versions import describe_longest_pause
from headrace.ops.figures.revision_figures import find_span, list_revisions
from headrace.ops.figures.reward_figures import Rewards
from headrace.ops.figures.run_figures import (
    NO_WORKER_OF_KIND,
    Advice,
    GroupCounts,
    RunFigures,
    RunState,
    ShadowFigures,
)
from headrace.ops.figures.standstill import Seen, Standstill, Surroundings, describe_discards, standstill
from headrace.ops.figures.version_figures import Versions
from headrace.ops.figures.weights_figures import find_weights_figures
from headrace.ops.figures.workers import list_missing_kinds, list_scaling, list_workers
from headrace.schemas.records import WorkerStatus
from headrace.schemas.topics import eval_stream, policy_of


class Figures:
    """The figures of a run, whenever they are asked for.

    Args:
        ledger: The run's ledger, which its owner keeps up to date.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.recipe = ledger, ledger.streams.recipe
        self._issued = Issued()

    @property
    def ended(self) -> str:
        """Why the run is over; empty while it is running."""
        return find_span(self.ledger).ended

    @property
    def trainer_positions(self) -> dict[PartitionId, int]:
        """Next offsets of the curated topics, as the trainers last reported."""
        found: dict[PartitionId, int] = {}
        for variant in self.recipe.policy_variants:
            newest = self.ledger.query(
                "SELECT positions FROM batch WHERE variant = ? ORDER BY id DESC LIMIT 1", variant
            )
            for (positions,) in newest:
                topic = self.recipe.topics.curated(variant)
                found |= {(topic, int(partition)): offset for partition, offset in json.loads(positions).items()}
        return found

    def seconds_to_versions(self, policy: str) -> dict[int, float]:
        """Return version to the seconds of wall time from the run's beginning until it was made, with pauses."""
        began_ms = find_span(self.ledger).began_ms
        made = sorted(Versions(self.ledger, self.recipe.policies).find_made_ms(policy).items())
        return {version: (at_ms - began_ms) / 1000 for version, at_ms in made}

    def _find_made_ms(self) -> dict[str, dict[int, int]]:
        versions = Versions(self.ledger, self.recipe.policies)
        return {variant: versions.find_made_ms(variant) for variant in self.recipe.policy_variants}

    def compute_figures(self, lag: Mapping[str, int], now_ms: int) -> RunFigures:
        """Return the figures of all messages taken in so far.

        Args:
            lag: Topic to unread records, as the broker reports it.
            now_ms: Wall time in ms since the epoch, to tell which workers are alive.
        """
        recount(self.ledger)
        with self.ledger.writing():
            return self._compute(lag, now_ms)

    def _compute(self, lag: Mapping[str, int], now_ms: int) -> RunFigures:
        ledger, names = self.ledger, tuple(self.recipe.policies)
        self._issued = read_feeder(ledger, self._issued)
        counts, rewards, versions = (
            count_policies(ledger, self._issued),
            Rewards(ledger, names),
            Versions(ledger, names),
        )
        policies = {
            policy: replace(counts[policy], produced=rewards.curated.get(policy, 0) + counts[policy].dead)
            for policy in names
        }
        workers, curves, ended = list_workers(ledger), rewards.points(), self.ended
        [(tokens, wasted)] = ledger.query("SELECT total(tokens), total(wasted_tokens) FROM worker_life")
        answers = {policy: versions.find_answers(policy) for policy in names}
        return RunFigures(
            run=self.recipe.name,
            state=self._find_state(ended, workers, any(one.in_flight for one in counts.values()), now_ms),
            ended=ended,
            versions={policy: versions.newest[policy] for policy in names if policy in versions.newest},
            groups=_sum_counts(policies.values()),
            policies=policies,
            lag=dict(lag),
            workers=workers,
            rewards=curves,
            reward_first=rewards.means_at_start(),
            reward_last=rewards.means_at_end(),
            evals=tuple(rewards.evals),
            tokens=int(tokens),
            wasted_tokens=int(wasted) + rewards.late_tokens,
            delivered_tokens=rewards.tokens,
            unnumbered_letters=count_unnumbered(ledger),
            weights={policy: find_weights_figures(ledger, policy, workers, now_ms) for policy in names},
            revisions=list_revisions(ledger, self._issued.begins),
            selection=dict(self._issued.selection),
            shadows={one: _find_shadow(versions, one, counts[one]) for one in self.recipe.shadow_variants},
            answers={policy: means for policy, means in answers.items() if means is not None},
            errors=list_errors(ledger),
            scaling=list_scaling(ledger),
            advice=()
            if ended
            else (
                *self._find_missing_kinds(workers, now_ms),
                *Advisor(ledger).advice(self.recipe.rollout.max_tokens, curves, rewards.evals),
            ),
        )

    def _find_missing_kinds(self, workers: Sequence[WorkerStatus], now_ms: int) -> list[Advice]:
        """Return what waits for a worker of a kind; nothing before the run's first worker."""
        found = list_missing_kinds(self.recipe, workers, now_ms) if workers else ()
        return [
            Advice(
                self.recipe.policies_of(stream.removeprefix(eval_stream("")))[0], NO_WORKER_OF_KIND, sentence, stream
            )
            for stream, sentence in found
        ]

    def _find_state(self, ended: str, workers: Sequence[WorkerStatus], has_open_groups: bool, now_ms: int) -> RunState:
        is_played = any(is_alive(worker, now_ms) for worker in workers)
        if ended:
            return "running" if is_played and has_open_groups else "finished"
        is_starting = not workers and is_fresh(self.ledger.newest_ms, now_ms)
        return "running" if is_played or is_starting else "stopped"

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
            versions=Versions(self.ledger, self.recipe.policies).newest,
            made_ms=self._find_made_ms(),
            groups=Concluded(self.ledger),
            episodes=Failures(self.ledger),
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
        made_ms = self._find_made_ms()
        late = [describe_longest_pause(variant, made_ms[variant]) for variant in counted]
        dry = [describe_discards(variant, counts.trained, counts.discarded) for variant, counts in counted.items()]
        return tuple(filter(None, (*late, *dry)))


def _find_shadow(versions: Versions, variant: str, counts: PolicyAudit) -> ShadowFigures:
    gaps, beside = versions.find_gaps(variant), versions.find_gaps(policy_of(variant))
    return ShadowFigures(
        version=versions.newest.get(variant, -1),
        groups=counts,
        off_policy_gap=gaps[-1][1] if gaps else None,
        off_policy_gap_beside=beside[-1][1] if beside else None,
        gaps=gaps,
    )


def _sum_counts(policies: Iterable[PolicyAudit]) -> GroupCounts:
    total: Counter[str] = Counter()
    discarded: Counter[str] = Counter()
    for policy in policies:
        total.update(issued=policy.issued, trained=policy.trained, dead=policy.dead, in_flight=policy.in_flight)
        discarded.update(policy.discarded)
    return GroupCounts(total["issued"], total["trained"], dict(discarded), total["dead"], total["in_flight"])


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
