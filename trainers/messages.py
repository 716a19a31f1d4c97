"""The records that a trainer writes, as messages for their topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from headrace.infra.kafka.clients import Message, Outgoing
from headrace.infra.kafka.dead_letters import build_dead_letter, build_shadow_loss
from headrace.infra.kafka.decoding import Refusal
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.infra.run.run import Run
from headrace.schemas import codec, records
from headrace.schemas.digests import compute_log_hash, digest_batch
from headrace.schemas.group_lengths import count_generated
from headrace.schemas.headers import outcome_stamp
from headrace.schemas.ids import UseId, now_ms
from headrace.schemas.records import BatchTrained, GroupUse, Outcome, Position
from headrace.schemas.topics import policy_of, variant_of
from headrace.trainers.batches.groups import PreparedGroup
from headrace.trainers.batches.window import Waiting, WindowEviction
from headrace.trainers.versions.batch_offsets import BatchOffsets
from headrace.trainers.versions.pipeline import MadeVersion
from headrace.trainers.versions.publisher import WindowMark, build_pointer

UNKNOWN_USE = UseId("", -1, 0)
"""Use id of an unreadable record."""


@dataclass(slots=True)
class TrainerMessages:
    """Builds the messages of one policy variant, under one epoch."""

    run: Run
    policy_variant: str
    epoch: int
    fingerprint: dict[str, str]
    """Fingerprint of the learner's numerics."""
    weights_hash: str
    """Hash of the newest written version."""
    positions: Mapping[PartitionId, int]
    """Next offsets of the input topics; always current."""
    offsets: BatchOffsets
    """Offsets of the records on `batches`."""
    log_hash: str = ""
    """That of the newest record on `batches`."""

    def build_dead_letter(self, message: Message, refusal: Refusal, key: UseId = UNKNOWN_USE) -> list[Outgoing]:
        """Return a record's dead letter, and a BatchTrained with the positions and the record's offset as dead.

        So no successor writes the dead letter again, or takes in the record even if it can read it: a copy that is sent
        back has another offset. A shadow writes an outcome instead of a dead letter.
        """
        if variant_of(self.policy_variant):
            outcome = build_shadow_loss(self.run.run_id, self.policy_variant, message, refusal)
            reported = [] if outcome is None else [self._build_outcome_message(outcome, message.partition)]
            key = UNKNOWN_USE if outcome is None else UseId.of(outcome)
        else:
            component = f"train.{self.policy_variant}"
            reported = [build_dead_letter(self.run.topics, self.run.run_id, component, message, refusal)]
        use = GroupUse(*key, message.partition, message.offset)
        dead = replace(self._build_record(), evictions=(records.Eviction(use, "dead"),))
        return [*reported, self._build_batch_message(dead)]

    def build_eviction_report(self, evictions: Sequence[WindowEviction[PreparedGroup]]) -> list[Outgoing]:
        """Return a BatchTrained with evictions and without a version, and the evictions' outcomes."""
        record = replace(self._build_record(), evictions=tuple(_build_eviction(e) for e in evictions))
        return [self._build_batch_message(record), *(self._build_outcome(e) for e in evictions)]

    def build_version(
        self,
        made: MadeVersion,
        metrics: dict[str, float],
        evictions: Sequence[WindowEviction[PreparedGroup]],
        window: Mapping[int, int],
    ) -> list[Outgoing]:
        """Return the records of a version's transaction, without its weights event.

        Args:
            made: The version.
            metrics: Metrics of the version.
            evictions: Evictions since the last record.
            window: By partition, the first offset that a successor must read to rebuild the window.
        """
        request, uploaded = made.request, made.uploaded
        record = replace(
            self._build_record(),
            version=request.version,
            revision=self.run.revision,
            groups=tuple(_build_use(entry) for entry in request.batch),
            evictions=tuple(_build_eviction(e) for e in evictions),
            base_hash=self.weights_hash,
            weights_hash=uploaded.weights_hash,
            fingerprint=self.fingerprint,
            metrics=metrics,
        )
        curated = [entry.digest for entry in request.batch]
        outgoing = [self._build_batch_message(record, curated), *(self._build_outcome(e) for e in evictions)]
        if uploaded.checkpoint is not None:
            begin = self.offsets.find_first_needed(window)
            mark = WindowMark(request.version, self.epoch, uploaded.weights_hash, _to_positions(window), begin)
            outgoing.append(build_pointer(self.run, self.policy_variant, self.fingerprint, mark, uploaded.checkpoint))
        self.weights_hash = uploaded.weights_hash
        return outgoing

    def _build_record(self) -> BatchTrained:
        return BatchTrained(
            run_id=self.run.run_id,
            policy=policy_of(self.policy_variant),
            variant=variant_of(self.policy_variant),
            epoch=self.epoch,
            positions=_to_positions(self.curated_positions()),
            created_ms=now_ms(),
        )

    def curated_positions(self) -> dict[int, int]:
        """Return, by partition, the next offset of the curated topic."""
        curated = self.run.topics.curated(self.policy_variant)
        return {partition: offset for (topic, partition), offset in self.positions.items() if topic == curated}

    def note_version_offset(self, offset: int) -> None:
        """Take in the offset of the newest version's record."""
        self.offsets.note_version_offset(offset)

    def _build_batch_message(self, record: BatchTrained, curated: Sequence[str] = ()) -> Outgoing:
        """Return a record as the next one on `batches`; `curated` are the digests of its groups."""
        self.offsets.note_concluded(record)
        self.log_hash = compute_log_hash(self.log_hash, digest_batch(asdict(record)), curated)
        record = replace(record, log_hash=self.log_hash)
        key = f"{record.version}".encode()
        return Outgoing(self.run.topics.batches(self.policy_variant), codec.encode(record), key, partition=0)

    def _build_outcome(self, eviction: WindowEviction[PreparedGroup]) -> Outgoing:
        decoded = eviction.entry.payload.decoded
        curated, group = decoded.curated, decoded.trajectory_group
        outcome = Outcome(
            run_id=self.run.run_id,
            stream=curated.stream,
            number=curated.number,
            use=curated.use,
            policy=policy_of(self.policy_variant),
            verdict=eviction.verdict,
            reason=eviction.verdict,
            revision=curated.revision,
            task_id=group.task_id,
            tier=group.tier,
            rewards=tuple(t.reward for t in group.trajectories),
            lengths=count_generated(group),
            n_asked=group.n_asked,
            failures=len(group.failures),
            min_version=curated.min_version,
            head_version=group.head_version,
        )
        return self._build_outcome_message(outcome, eviction.entry.partition)

    def _build_outcome_message(self, outcome: Outcome, partition: int) -> Outgoing:
        outcome = replace(outcome, component="train")
        topic, stamp = self.run.topics.outcomes(self.policy_variant), outcome_stamp(outcome)
        return Outgoing(topic, codec.encode(outcome), stamp.key, stamp.to_headers(), partition)


def _build_use(entry: Waiting[PreparedGroup]) -> GroupUse:
    return GroupUse(*entry.use_id, entry.partition, entry.offset)


def _build_eviction(eviction: WindowEviction[PreparedGroup]) -> records.Eviction:
    return records.Eviction(_build_use(eviction.entry), eviction.verdict)


def _to_positions(offsets: Mapping[int, int]) -> tuple[Position, ...]:
    return tuple(Position(partition, offset) for partition, offset in offsets.items())
