"""Knows which versions of a policy are published: only these may move a curator's clock.

A version is published before any worker plays with it. So a group is wrong if its version is not on `weights`, read to
its end after the group came; used for the clock, it would make all later groups look old. A refusal is on the log: the
group becomes a dead letter, and a snapshot follows at once, so that a restore never repeats the decision. An acceptance
needs no record, because a published version stays published. Replayed trajectories use the run's recorded decisions, as
their topic may have been copied without `weights`.
"""

from __future__ import annotations

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.dead_letters import TIME_TRAVEL, verdict_of
from headrace.infra.kafka.decoding import read_own
from headrace.infra.kafka.topic_reader import PartitionId, TopicReader, find_start_positions, read_all
from headrace.infra.run.run import Run
from headrace.infra.weights.paths import is_version
from headrace.schemas.records import TrajectoryGroup, WeightsPublished


class PublishedVersions:
    """The newest published version of a policy. The topic is read only if a newer version is checked.

    Args:
        run: The run.
        policy: The policy; a shadow's groups name versions of its policy.
    """

    def __init__(self, run: Run, policy: str) -> None:
        self._run, self._topic = run, run.topics.weights(policy)
        self._newest = -1
        self._reader: TopicReader | None = None
        self._read_to: dict[PartitionId, int] = {}
        """Ends of the topic when it was last read again."""

    def has_version(self, version: int) -> bool:
        """Return whether a version, or a newer one, is published. Raises KafkaAway or KafkaRefused."""
        if version > self._newest:
            ends = self._read_new_events()
            if version > self._newest and ends != self._read_to:
                self._read_anew()
                self._read_to = ends
        return version <= self._newest

    def can_move_clock(self, message: Message, group: TrajectoryGroup) -> bool:
        """Return whether the newest version of a message's group may move the clock. Raises as `has_version`."""
        verdict = verdict_of(message)
        return self.has_version(group.head_version) if verdict is None else verdict != TIME_TRAVEL

    def _read_new_events(self) -> dict[PartitionId, int]:
        """Read to the reported end of the topic; return that end."""
        if self._reader is None:
            partition_ids = find_start_positions(self._run.connection, [self._topic])
            self._reader = TopicReader(self._run.connection, partition_ids, f"published.{self._topic}")
        ends = self._reader.ends()
        for message in self._reader.read_until(ends):
            self._fold_event(message)
        return ends

    def _read_anew(self) -> None:
        """Read the whole topic until reading reaches its end, because a starting broker may report a too low end."""
        for message in read_all(self._run.connection, [self._topic]):
            self._fold_event(message)

    def _fold_event(self, message: Message) -> None:
        event = read_own(message, WeightsPublished, self._run.run_id)
        if event is not None and is_version(event):
            self._newest = max(self._newest, event.version)

    def close(self) -> None:
        """Stop reading."""
        if self._reader is not None:
            self._reader.close()
