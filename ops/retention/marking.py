"""Finds the objects of a store that some record names. No I/O.

The name of an object is the hash of its content, 64 hex digits. A record that names it holds these characters
unchanged, because Avro writes a string as its bytes. So records are searched for names, not decoded. This finds the
names in every kind of record, even if a record is nested in another (in a curated group or a dead letter). If other
bytes look like a name, an object is kept without need. Only records whose objects are kept by version are decoded.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.decoding import read_record
from headrace.infra.kafka.topic_reader import name_offset
from headrace.infra.run.retired import CHECKPOINTS, WEIGHTS, Retired
from headrace.infra.store.object_store import ListedObject
from headrace.infra.weights.paths import is_version, list_claims
from headrace.ops.retention.keeping import WrittenVersion
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.records import CheckpointPointer, ClaimCheck, EvalResult, ObjectsRetired, WeightsPublished
from headrace.schemas.topics import Topics, checkpoint_prefix, policy_variant_of, prefix_of_retired

OBJECT_NAME = re.compile(rb"/([0-9a-f]{64})")
"""The end of a key, without its suffix."""
OBJECT_KEY = re.compile(r"(?P<kind>[A-Za-z0-9_-]+)/(?P<name>[0-9a-f]{64})(\.[A-Za-z0-9]+)?")
"""Form of a key after the run's prefix; Headrace writes no other keys."""

VersionRef = tuple[str, str, int]
"""(policy or shadow, weights | checkpoints, version)."""


class Unreadable(HeadraceError):
    """A record may name objects in a way that this build does not know, so nothing may be deleted."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Objects of one policy that are kept by version."""

    weights: dict[int, WrittenVersion] = field(default_factory=dict)
    checkpoints: dict[int, WrittenVersion] = field(default_factory=dict)
    evaluations: list[tuple[int, EvalResult]] = field(default_factory=list)
    """Results of evaluations, each with the time when it was written, in ms since the epoch."""


class Marker:
    """The objects of a listing, and which of them the records name that were read after it.

    Args:
        run_id: Id of the run whose versions are listed apart; all objects that records of other runs name are kept.
        topics: Topics of that run.
        policy_variants: Policies and shadows of that run.
        prefix: Prefix of its objects.
        objects: The listing. It is made before any record is read, so that it lacks objects that are put later.
    """

    def __init__(
        self, run_id: str, topics: Topics, policy_variants: Iterable[str], prefix: str, objects: Iterable[ListedObject]
    ) -> None:
        self.policies = {variant: Kept() for variant in policy_variants}
        self.retired = Retired(run_id, self.policies)
        """Versions that were retired before."""
        self.records = 0
        self.none_of_ours = 0
        """Number of messages that are not records of any build; objects that they name are kept too."""
        self.foreign: list[ListedObject] = []
        """Objects whose keys Headrace does not write: they are kept."""
        self._run_id, self._state = run_id, topics.state
        self._weights = {topics.weights(policy): policy for policy in self.policies}
        self._evals = {topics.evals(policy): policy for policy in self.policies}
        self._pointers = {checkpoint_prefix(policy): policy for policy in self.policies}
        self._said = tuple(prefix_of_retired(policy) for policy in self.policies)
        self._objects: defaultdict[bytes, list[ListedObject]] = defaultdict(list)
        self._named: set[bytes] = set()
        """Listed keys that a record names whose objects are kept for ever."""
        self._versions: defaultdict[bytes, set[VersionRef]] = defaultdict(set)
        """Other listed keys, each with the versions that name it."""
        self._schemas: set[bytes] = set()
        for one in objects:
            match = OBJECT_KEY.fullmatch(one.key.removeprefix(prefix)) if one.key.startswith(prefix) else None
            if match is None:
                self.foreign.append(one)
            else:
                self._objects[match["name"].encode()].append(one)

    def fold_message(self, message: Message) -> None:
        """Take in a record of any topic of any run. Raises Unreadable, with its offset."""
        self.records += 1
        if not message.value:
            return
        if not _is_record(message.value):  # no reader could decode it, so it is only searched for names
            self.none_of_ours += 1
            self._mark_named_objects(message.value)
            return
        try:
            if not self._fold_version(message):
                self._fold_evaluation(message)
                self._check_schema(message.value)
                self._mark_named_objects(message.value)
        except SchemaError as error:
            where = name_offset(message)
            raise Unreadable(
                f"{where} cannot be read: {error}. That record may name objects, so nothing is deleted: use the "
                "newest release of Headrace that writes to this run"
            ) from error

    def _fold_version(self, message: Message) -> bool:
        """Take in a record whose object is kept by version, or that retires versions; return whether it is either."""
        if message.topic in self._weights:
            return self._fold_event(message, self._weights[message.topic])
        if message.topic != self._state:
            return False
        if message.key.startswith(self._said):
            codec.decode(message.value, ObjectsRetired)  # raises, where `Retired` would pass it over
            return self.retired.fold_message(message)
        found = [policy for prefix, policy in self._pointers.items() if message.key.startswith(prefix)]
        return bool(found) and self._fold_pointer(message, found[0])

    def _fold_evaluation(self, message: Message) -> None:
        """Take in a result of an evaluation; an unreadable result is skipped, as it names no object."""
        result = read_record(message, EvalResult) if message.topic in self._evals else None
        if result is not None and result.run_id == self._run_id:
            self.policies[self._evals[message.topic]].evaluations.append((message.timestamp_ms, result))

    def _fold_event(self, message: Message, policy: str) -> bool:
        event = codec.decode(message.value, WeightsPublished)
        if (event.run_id, policy_variant_of(event.policy, event.variant)) != (self._run_id, policy):
            return False
        if is_version(event):  # other events are further ways to a version, and are kept as long as it
            self.policies[policy].weights[event.version] = WrittenVersion(event.epoch, message.timestamp_ms, event.kind)
        self._mark_by_version(list_claims(event), (policy, WEIGHTS, event.version), message.value)
        return True

    def _fold_pointer(self, message: Message, policy: str) -> bool:
        pointer = codec.decode(message.value, CheckpointPointer)
        if (pointer.run_id, policy_variant_of(pointer.policy, pointer.variant)) != (self._run_id, policy):
            return False
        self.policies[policy].checkpoints[pointer.version] = WrittenVersion(pointer.epoch, message.timestamp_ms)
        self._mark_by_version(list_claims(pointer), (policy, CHECKPOINTS, pointer.version), message.value)
        return True

    def _mark_by_version(self, claims: Iterable[ClaimCheck], ref: VersionRef, value: bytes) -> None:
        """Take in a record that names objects of its version, and other objects (files of an anchor) for ever."""
        by_version = {name for claim in claims for name in OBJECT_NAME.findall(claim.key.encode())}
        for name in by_version & self._objects.keys():
            self._versions[name].add(ref)
        self._named.update((set(OBJECT_NAME.findall(value)) - by_version) & self._objects.keys())

    def _mark_named_objects(self, value: bytes) -> None:
        for name in OBJECT_NAME.findall(value):
            if name in self._objects:
                self._named.add(name)

    def _check_schema(self, value: bytes) -> None:
        """Raise UnknownSchema for a record whose schema is neither known here nor recorded on the recipe topic."""
        name = value[: codec.AVRO_HEADER_BYTES]
        if name not in self._schemas:
            codec.name_of(value)
            self._schemas.add(name)

    # ---------------------------------------------------------------------------------------------------------- result

    def find_unnamed(self) -> Iterator[ListedObject]:
        """Yield the objects that no record names."""
        for name, objects in self._objects.items():
            if name not in self._named and name not in self._versions:
                yield from objects

    def find_named_by_versions(self) -> Iterator[tuple[ListedObject, set[VersionRef]]]:
        """Yield the objects that only versions name, each with its versions."""
        for name, refs in self._versions.items():
            if name not in self._named:
                for one in self._objects[name]:
                    yield one, refs

    def list_own(self) -> Iterator[ListedObject]:
        """Yield all objects whose keys Headrace writes."""
        for objects in self._objects.values():
            yield from objects


def _is_record(value: bytes) -> bool:
    return value[: len(codec.AVRO_MAGIC)] == codec.AVRO_MAGIC and len(value) >= codec.AVRO_HEADER_BYTES
