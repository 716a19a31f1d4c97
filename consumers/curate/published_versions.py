"""Which versions of a policy are published: a curator's clock goes by no other.

A version is published before any worker plays with it. So a group that names a version which is not on `weights`, read
to its end after the group came, was made by somebody who is wrong; taken for the clock it would make every group after
it look old. What is decided stands on the log: such a group is a dead letter, and a snapshot follows at once, so that a
restore never decides anew. What is taken needs no record: what was published once stays so. Trajectories of a replay
carry what the run decided of them, as their topic may stand there alone.
"""

from __future__ import annotations

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.dead_letters import TIME_TRAVEL, verdict_of
from headrace.infra.kafka.decoding import read_own
from headrace.infra.kafka.topic_reader import PartitionId, TopicReader, find_whole_topics, read_all
from headrace.infra.run.run import Run
from headrace.infra.weights.paths import is_version
from headrace.schemas.records import TrajectoryGroup, WeightsPublished


class PublishedVersions:
    """The newest published version of a policy. The topic is read only when a newer one is asked for.

    Args:
        run: The run.
        policy: Whose versions; a shadow's groups name those of its policy.
    """

    def __init__(self, run: Run, policy: str) -> None:
        self._run, self._topic = run, run.topics.weights(policy)
        self._newest = -1
        self._reader: TopicReader | None = None
        self._read_to: dict[PartitionId, int] = {}
        """Ends of the topic when it was last read anew."""

    def has_version(self, version: int) -> bool:
        """Return whether a version, or a newer one, is published. Raises KafkaAway or KafkaRefused."""
        if version > self._newest:
            ends = self._follow()
            if version > self._newest and ends != self._read_to:
                self._read_anew()
                self._read_to = ends
        return version <= self._newest

    def can_move_clock(self, message: Message, group: TrajectoryGroup) -> bool:
        """Return whether the newest version that a message's group names may move the clock. Raises as `has`."""
        verdict = verdict_of(message)
        return self.has_version(group.head_version) if verdict is None else verdict != TIME_TRAVEL

    def _follow(self) -> dict[PartitionId, int]:
        """Read on to where the topic says that it ends; return that."""
        if self._reader is None:
            partition_ids = find_whole_topics(self._run.connection, [self._topic])
            self._reader = TopicReader(self._run.connection, partition_ids, f"published.{self._topic}")
        ends = self._reader.ends()
        for message in self._reader.read_until(ends):
            self._fold_event(message)
        return ends

    def _read_anew(self) -> None:
        """Read the whole topic until its end is reached: the end that a starting broker reports may be too low."""
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
