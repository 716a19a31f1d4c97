"""A run as an audit read it, kept in memory, so that it can be audited again with something in it that is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.retired import Retired
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import ObjectCorrupt, ObjectMissing, ObjectStore
from headrace.ops.audit import commits
from headrace.ops.audit.audited_log import AuditedLog
from headrace.ops.audit.findings import AuditReport
from headrace.ops.audit.report import report
from headrace.ops.opened_run import open_run
from headrace.schemas import codec
from headrace.schemas.records import RecipeRevision

Answer = Mapping[commits.Group, commits.Committed]


@dataclass
class Recorded:
    """What an audit was given. Messages are those of its last look at a topic, by topic and partition."""

    run: Run
    rests: bool
    messages: dict[PartitionId, list[Message]] = field(default_factory=dict)
    first: list[Message] = field(default_factory=list)
    """Of a run that goes on: `state` before all else."""
    again: tuple[Message, ...] = ()
    """And once more after all else, if the audit asked for it."""
    begins: dict[PartitionId, int] = field(default_factory=dict)
    """First offsets."""
    ends: dict[PartitionId, int] = field(default_factory=dict)
    """What ends were asked for."""
    topics: set[str] = field(default_factory=set)
    asked: list[dict[commits.Group, commits.Committed]] = field(default_factory=list)
    """The answers to the two questions about groups, in order."""
    objects: dict[str, bytes] = field(default_factory=dict)

    def copy(self) -> Recorded:
        """A copy whose lists and tables may be changed; what they hold is frozen."""
        made = copy(self)
        made.messages = {partition_id: list(found) for partition_id, found in self.messages.items()}
        made.first, made.topics, made.objects = list(self.first), set(self.topics), dict(self.objects)
        made.begins, made.asked = dict(self.begins), [dict(one) for one in self.asked]
        return made

    def of(self, topic: str) -> Iterator[Message]:
        """The messages of a topic."""
        for (name, _), found in sorted(self.messages.items()):
            if name == topic:
                yield from found

    def audit(self, *, deep: bool = True) -> AuditReport:
        """Audit it."""
        texts = (codec.decode(message.value, RecipeRevision) for message in self.of(self.run.topics.recipe))
        recipes = {one.revision: Recipe.from_json(one.recipe) for one in texts if one.recipe}
        run = replace(self.run, revisions=tuple(recipe for _, recipe in sorted(recipes.items())))
        run.__dict__["store"] = RecordedStore(self.objects)
        return report(run, rests=self.rests, deep=deep, log=RecordedLog(run, self))


class Runs:
    """Records of one run at several moments, and what the audits said of the real thing."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.records: dict[str, Recorded] = {}
        self.said: dict[str, AuditReport] = {}

    def look(self, name: str) -> None:
        with open_run(None, self.data, store=True) as opened:
            self.records[name], self.said[name] = record(opened.run, rests=opened.rests)


class RecordedStore:
    """An object store in memory, as far as an audit uses one."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self._objects = objects

    def get(self, key: str, digest: str, size_bytes: int) -> bytes:
        data = self._objects.get(key)
        if data is None:
            raise ObjectMissing(f"{key} does not exist in the store")
        if len(data) != size_bytes or sha256(data).hexdigest() != digest:
            raise ObjectCorrupt(f"{key} has sha256 {sha256(data).hexdigest()} where {digest} is promised")
        return data

    def get_to_file(self, key: str, digest: str, size_bytes: int, path: Path) -> None:
        path.write_bytes(self.get(key, digest, size_bytes))

    def has_object(self, key: str) -> bool:
        return key in self._objects


class RecordingLog(AuditedLog):
    """Reads a real log, and keeps what it was given."""

    def __init__(self, run: Run, recorded: Recorded) -> None:
        super().__init__(run)
        self._kept = recorded

    def topics(self) -> set[str]:
        self._kept.topics = super().topics()
        return self._kept.topics

    def read(self, topics: Iterable[str], what: str) -> Iterator[Message]:
        yield from self._keeping(topics, lambda wanted: super(RecordingLog, self).read(wanted, what))

    def read_in_order(self, topics: Iterable[str], what: str) -> Iterator[Message]:
        yield from self._keeping(topics, lambda wanted: super(RecordingLog, self).read_in_order(wanted, what))

    def read_uncounted(self, topics: Iterable[str]) -> Iterator[Message]:
        wanted = list(topics)
        found = list(super().read_uncounted(wanted))
        if self._kept.first and wanted == [self._kept.run.topics.state]:
            self._kept.again = tuple(found)
        self._kept.first = self._kept.first or found
        yield from found

    def ends(self, topics: Iterable[str]) -> dict[PartitionId, int]:
        self._kept.ends = super().ends(topics)
        return self._kept.ends

    def fetch_committed(self, groups: Iterable[commits.Group]) -> Answer:
        answer = super().fetch_committed(groups)
        self._kept.asked.append(dict(answer))
        return answer

    def _keeping(self, topics: Iterable[str], read: Any) -> Iterator[Message]:
        wanted = list(topics)
        for partition_id in self.partitions(wanted):
            self._kept.messages[partition_id] = []
        for message in read(wanted):
            self._kept.messages[message.topic, message.partition].append(message)
            yield message


class RecordedLog(AuditedLog):
    """A log that is a record of one."""

    def __init__(self, run: Run, recorded: Recorded) -> None:
        super().__init__(run)
        self._kept, self._asked = recorded, iter(recorded.asked)
        self._looks = iter((recorded.first, recorded.again))
        """What it says of `state` outside the order of reading."""

    def topics(self) -> set[str]:
        return self._kept.topics

    def partitions(self, topics: Iterable[str]) -> dict[PartitionId, int]:
        wanted = set(topics)
        return {partition_id: 0 for partition_id in self._kept.messages if partition_id[0] in wanted}

    def read(self, topics: Iterable[str], what: str) -> Iterator[Message]:
        for topic in topics:
            yield from self._kept.of(topic)

    read_in_order = read

    def read_uncounted(self, topics: Iterable[str]) -> Iterator[Message]:
        wanted = list(topics)
        is_state = wanted == [self._kept.run.topics.state]
        yield from (next(self._looks) or self.read(wanted, "")) if is_state else self.read(wanted, "")

    def ends(self, topics: Iterable[str]) -> dict[PartitionId, int]:
        return {partition_id: self._kept.ends[partition_id] for partition_id in self.partitions(topics)}

    def find_shortened(self, topics: Iterable[str]) -> Iterator[str]:
        for (topic, partition), offset in self._kept.begins.items():
            if topic in set(topics) and offset:
                yield (
                    f"the records of {topic}[{partition}] before offset {offset} are gone, although the "
                    "topic must keep all records: check whether its retention settings were changed"
                )

    def fetch_committed(self, groups: Iterable[commits.Group]) -> Answer:
        known = next(self._asked)
        return {group: known[group] for group in groups}

    def revisions(self) -> list[tuple[str, RecipeRevision]]:
        return self.decode_revisions(self._kept.of(self._kept.run.topics.recipe))

    def read_retired(self) -> Retired:
        run = self._kept.run
        found = Retired(run.run_id, run.recipe.policy_variants)
        for message in self._kept.of(run.topics.state):
            found.fold_message(message)
        return found


def record(run: Run, *, rests: bool) -> tuple[Recorded, AuditReport]:
    """Audit a real run deeply, and return what the audit was given, and what it said."""
    kept = Recorded(run, rests)
    found = report(run, rests=rests, deep=True, log=RecordingLog(run, kept))
    for message in AuditedLog(run).read_uncounted([run.topics.recipe]):
        kept.messages.setdefault((message.topic, message.partition), []).append(message)
    kept.objects = objects_of(run.store)
    return kept, found


def objects_of(store: ObjectStore) -> dict[str, bytes]:
    """Return all objects of a run by key."""
    client, bucket, prefix = store._bucket.client, store.address.bucket, store.address.prefix
    found = {}
    for one in client.list_objects(bucket, prefix, recursive=True):
        answer = client.get_object(bucket, one.object_name)
        found[one.object_name] = answer.read()
        answer.close()
    return found
