"""Builds the messages of a curator's records."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.consumers.algorithms.contract import Candidate, Replay
from headrace.consumers.curate.context import CuratorContext
from headrace.consumers.curate.curated_records import (
    build_curated,
    build_group_outcome,
    build_rejection_outcome,
    build_replay,
    build_replay_outcome,
)
from headrace.infra.kafka.clients import Message, Outgoing
from headrace.infra.kafka.dead_letters import NOT_ISSUED, build_dead_letter, build_shadow_loss
from headrace.infra.kafka.decoding import Refusal
from headrace.schemas import codec
from headrace.schemas.episode_errors import MALFORMED, MOST_KINDS_OF_TASK, build_malformed_error
from headrace.schemas.headers import Stamp, outcome_stamp
from headrace.schemas.records import CuratedGroup, Outcome, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class CuratorMessages:
    """Builds the messages for one partition of the topics of a policy or shadow."""

    context: CuratorContext
    partition: int

    def build_kept(self, candidate: Candidate, value: bytes, stamp: Stamp, max_staleness: int) -> list[Outgoing]:
        """Return the outcomes of a kept group and its rejected trajectories, and the curated record.

        Args:
            candidate: The group as the chain kept it.
            value: The group's bytes, as its worker wrote them.
            stamp: Key and headers of the curated record.
            max_staleness: The trainer's limit, in versions.
        """
        group = candidate.group
        outcome = build_group_outcome(self.context.policy, Candidate.of(group), value)
        return [
            self._build_outcome(replace(outcome, verdict="kept")),
            *(self._build_outcome(build_rejection_outcome(outcome, group, one)) for one in candidate.rejected),
            self._build_curated(build_curated(candidate, value, max_staleness), stamp),
        ]

    def build_dropped(self, group: TrajectoryGroup, value: bytes, reason: str, why: str = "") -> Outgoing:
        """Return the outcome of a group that the chain dropped; malformed trajectories count as failed episodes."""
        outcome = build_group_outcome(self.context.policy, Candidate.of(group), value)
        if reason == MALFORMED:
            malformed = build_malformed_error(why, len(group.trajectories))
            outcome = replace(outcome, errors=(malformed, *outcome.errors)[:MOST_KINDS_OF_TASK])
        return self._build_outcome(replace(outcome, verdict="dropped", reason=reason))

    def build_replay(self, replay: Replay, stamp: Stamp, first_back: int) -> list[Outgoing]:
        """Return outcome and curated record of a replay; stamp and `first_back` come from `ReplayableGroups.replay`."""
        curated = build_replay(replay, stamp, first_back)
        return [self._build_outcome(build_replay_outcome(stamp)), self._build_curated(curated, stamp)]

    def build_dead_letter(self, message: Message, refusal: Refusal) -> list[Outgoing]:
        """Return a message's dead letter; in a shadow an outcome, or nothing if the headers name no task of the run.

        A dead letter with reason NOT_ISSUED concludes no number, so a shadow writes it too.
        """
        context = self.context
        if not context.is_shadow or refusal.reason == NOT_ISSUED:
            component = f"curate.{context.policy_variant}"
            return [build_dead_letter(context.topics, context.run_id, component, message, refusal)]
        outcome = build_shadow_loss(context.run_id, context.policy_variant, message, refusal)
        return [self._build_outcome(replace(outcome, component="curate"))] if outcome is not None else []

    def _build_curated(self, curated: CuratedGroup, stamp: Stamp) -> Outgoing:
        topic = self.context.topics.curated(self.context.policy_variant)
        return Outgoing(topic, codec.encode(curated), stamp.key, stamp.to_headers(), self.partition)

    def _build_outcome(self, outcome: Outcome) -> Outgoing:
        stamp, topic = outcome_stamp(outcome), self.context.topics.outcomes(self.context.policy_variant)
        return Outgoing(topic, codec.encode(outcome), stamp.key, stamp.to_headers(), self.partition)
