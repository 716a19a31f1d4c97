"""The production audit, all of it but the store, over a log of the model: what `headrace audit` would say of a state.

A state is one moment. It is audited as a run that goes on: what is asked for first is no older than what is read last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.group_offsets import Commit
from headrace.infra.kafka.topic_reader import PartitionId, name_offset
from headrace.infra.run.retired import Retired
from headrace.infra.run.run import read_revision
from headrace.ops.audit import commits
from headrace.ops.audit.audited_log import AuditedLog
from headrace.ops.audit.whole_audit import AuditRequest, WholeAudit
from headrace.schemas.records import RecipeRevision
from protocol.broker import Broker
from protocol.run import RUN_ID, TOPICS, run_of

REQUEST = AuditRequest(use_store=False)


class ModelLog:
    """Stands in for `AuditedLog`: topics, commits and revisions of a broker as they are now."""

    records, seconds = 0, 0.0

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def topics(self) -> set[str]:
        return set(self._broker.partitions)

    def partitions(self, topics: Iterable[str]) -> dict[PartitionId, int]:
        return {(topic, partition): 0 for topic in topics for partition in range(self._broker.partitions[topic])}

    def read(self, topics: Iterable[str], _what: str = "") -> Iterator[Message]:
        for topic in topics:
            yield from self._broker.committed_messages(topic)

    read_uncounted = read_in_order = read

    def ends(self, topics: Iterable[str]) -> dict[PartitionId, int]:
        return {partition_id: self._broker.end(partition_id) for partition_id in self.partitions(topics)}

    def revisions(self) -> list[tuple[str, RecipeRevision]]:
        found = [(name_offset(message), read_revision(message)) for message in self.read([TOPICS.recipe])]
        return [(where, revision) for where, revision in found if revision is not None]

    def schemas(self) -> list[RecipeRevision]:
        return [revision for _, revision in self.revisions()]

    def find_shortened(self, topics: Iterable[str]) -> Iterator[str]:
        return (str(partition_id) for partition_id in self.partitions(topics) if self._broker.begins[partition_id])

    def fetch_committed(self, groups: Iterable[commits.Group]) -> Mapping[commits.Group, commits.Committed]:
        return {group: self._committed(group) for group in groups}

    def _committed(self, group: commits.Group) -> commits.Committed:
        partition_ids, known = self.partitions([group.topic]), self._broker.groups
        found = known[group.name].commits if group.name in known else {}
        mine = {
            partition_id: Commit(*commit) for partition_id, commit in found.items() if partition_id in partition_ids
        }
        return commits.Committed(partition_ids, mine, self.ends([group.topic]))

    def read_retired(self) -> Retired:
        return Retired(RUN_ID, ())


def complaints(broker: Broker) -> tuple[str, ...]:
    """Return what the audit says is wrong with a log that is on the stage; nothing where it closes."""
    log: Any = ModelLog(broker)
    run = run_of(log.schemas())
    return WholeAudit.of(run, REQUEST, Path(), cast(AuditedLog, log)).perform().problems
