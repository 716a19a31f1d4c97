"""A run's log as an audit reads it: topics up to their present ends, bounds, commits, revisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.decoding import read_record
from headrace.infra.kafka.topic_offsets import fetch_end_offsets
from headrace.infra.kafka.topic_reader import PartitionId, find_start_positions, name_offset, read_all
from headrace.infra.run.retired import Retired, read_retired
from headrace.infra.run.run import Run, read_revision
from headrace.ops.audit import commits
from headrace.ops.reading import Reading, find_shortened, list_topics
from headrace.schemas.records import RecipeRevision


class AuditedLog:
    """Every method raises KafkaAway or KafkaRefused."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._reading = Reading(run.connection)

    @property
    def records(self) -> int:
        """Number of records read."""
        return self._reading.records

    @property
    def seconds(self) -> float:
        """Wall seconds of reading and of processing the records."""
        return self._reading.seconds

    def topics(self) -> set[str]:
        """Return the topics of the cluster."""
        return list_topics(self._run.connection)

    def partitions(self, topics: Iterable[str]) -> dict[PartitionId, int]:
        """Return the partitions of some topics, each with offset 0."""
        return find_start_positions(self._run.connection, topics)

    def read(self, topics: Iterable[str], what: str) -> Iterator[Message]:
        """Yield every committed record of some topics."""
        return self._reading.read(topics, what)

    def read_in_order(self, topics: Iterable[str], what: str) -> Iterator[Message]:
        """Like `read`, but one partition after the other."""
        return self._reading.read_in_order(topics, what)

    def read_uncounted(self, topics: Iterable[str]) -> Iterator[Message]:
        """Like `read`, but without counting the records."""
        for topic in topics:
            yield from read_all(self._run.connection, [topic])

    def ends(self, topics: Iterable[str]) -> dict[PartitionId, int]:
        """Return the ends of some topics as they are now."""
        return fetch_end_offsets(self._run.connection, self.partitions(topics))

    def schemas(self) -> list[RecipeRevision]:
        """Return all present records of the recipe topic, including those that hold only schemas."""
        messages = self.read_uncounted([self._run.topics.recipe])
        found = (read_record(message, RecipeRevision) for message in messages)
        return [record for record in found if record is not None]

    def find_shortened(self, topics: Iterable[str]) -> Iterator[str]:
        """Yield the partitions that lost their first records, of topics that are kept for ever."""
        return find_shortened(self._run.connection, topics)

    def fetch_committed(self, groups: Iterable[commits.Group]) -> Mapping[commits.Group, commits.Committed]:
        """Return the committed offsets of consumer groups."""
        return commits.fetch_committed(self._run, groups)

    def revisions(self) -> list[tuple[str, RecipeRevision]]:
        """Return the run's records on the recipe topic, oldest first, with their positions."""
        return self.decode_revisions(read_all(self._run.connection, [self._run.topics.recipe]))

    def decode_revisions(self, messages: Iterable[Message]) -> list[tuple[str, RecipeRevision]]:
        """Return this run's revisions in messages of the recipe topic, with their positions."""
        found = [(name_offset(m), revision) for m in messages if (revision := read_revision(m)) is not None]
        return [(where, revision) for where, revision in found if revision.run_id == self._run.run_id]

    def read_retired(self) -> Retired:
        """Return the versions whose objects `headrace gc` has deleted."""
        return read_retired(self._run)
