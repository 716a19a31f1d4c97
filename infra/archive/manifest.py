"""What an archive holds: `manifest.json`, replaced as a whole, which alone lists what belongs to it.

A file that it does not list is not part of the archive: a killed process left it unfinished. It carries
its own sha256, so no digit of an offset can change unseen.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headrace.infra.archive.locations import MANIFEST, Location
from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.kafka.topic_reader import PartitionId

ARCHIVE_FORMAT = "headrace-archive-1"


class ArchiveCorrupt(HeadraceError):
    """A file of an archive is missing, or is not what the manifest promises."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ArchivedFile(_Table):
    """One container file."""

    name: str
    """Below the archive's folder."""
    schema_name: str
    """Record that its values are; empty for bytes."""
    fingerprint: str
    """Fingerprint of that record's schema, in hex as in a message."""
    first_offset: int
    last_offset: int
    records: int
    bytes: int
    sha256: str


class Series(_Table):
    """One partition: its files in order."""

    next_offset: int = 0
    """Offset up to which the partition is archived; past the last record, as there may be none before it."""
    files: list[ArchivedFile] = Field(default_factory=list)


class ArchivedTopic(_Table):
    """One topic, by its whole name."""

    topic_id: str
    """Id that Kafka gave the topic when it was made: the offsets belong to this topic, not to another of its name."""
    config: dict[str, str]
    """Settings that it was created with."""
    partitions: list[Series]

    @property
    def records(self) -> int:
        """Number of records in all its partitions."""
        return sum(file.records for series in self.partitions for file in series.files)

    @property
    def bytes(self) -> int:
        """Bytes of all its files."""
        return sum(file.bytes for series in self.partitions for file in series.files)


class ArchivedObject(_Table):
    """One object, at `objects/<key>`; or one that records name and the store did not have."""

    sha256: str
    size_bytes: int
    why: str = ""
    """Why the object is missing."""


class Manifest(_Table):
    """Everything that an archive holds."""

    format: str = ARCHIVE_FORMAT
    run: str
    run_id: str
    with_weights: bool = False
    """Objects of weights and checkpoints are copied too."""
    topics: dict[str, ArchivedTopic] = Field(default_factory=dict)
    objects: dict[str, ArchivedObject] = Field(default_factory=dict)
    """Archived objects by key."""
    missing: dict[str, ArchivedObject] = Field(default_factory=dict)

    def series(self, partition_id: PartitionId) -> Series:
        """Return what there is of a partition."""
        return self.topics[partition_id[0]].partitions[partition_id[1]]

    def check(self) -> str:
        """Return what contradicts itself in it; empty when nothing does."""
        for name, topic in self.topics.items():
            for number, series in enumerate(topic.partitions):
                behind = -1
                for file in series.files:
                    if not behind < file.first_offset <= file.last_offset < series.next_offset:
                        return f"the offsets of {name}[{number}] are not in order at file {file.name}"
                    behind = file.last_offset
        return ""

    def to_bytes(self) -> bytes:
        """Return it as it is written."""
        fields = self.model_dump(mode="json")
        return json.dumps({**fields, "sha256": _digest(fields)}, indent=1).encode()


def _digest(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def read_manifest(location: Location) -> Manifest:
    """Return the manifest of an archive. Raises UsageError when there is none, ArchiveCorrupt when it is damaged."""
    path, text = f"{location}/{MANIFEST}", location.read_manifest()
    if text is None:
        raise UsageError(f"{location} is not an archive: it has no {MANIFEST}; `headrace archive --out` makes one")
    try:
        fields = json.loads(text)
        promised = fields.pop("sha256")
        found = Manifest.model_validate(fields)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, ValidationError) as error:
        raise ArchiveCorrupt(f"{path} cannot be read: {_advice(error)}") from error
    if found.format != ARCHIVE_FORMAT:
        raise UsageError(
            f"{path} has format {found.format!r}, and this build of Headrace reads {ARCHIVE_FORMAT!r}: read it with "
            "the build that wrote it, or archive the run again"
        )
    if promised != _digest(fields):
        raise ArchiveCorrupt(
            f"the content of {path} has sha256 {_digest(fields)}, but the file says {promised}: {_advice()}"
        )
    if why := found.check():
        raise ArchiveCorrupt(f"{path}: {why}: {_advice()}")
    return found


def _advice(error: Exception | None = None) -> str:
    """Return what to do about a manifest that is damaged."""
    cause = f"{type(error).__name__}, " if error is not None else ""
    return f"{cause}it was damaged or changed since; put it back from a copy, or archive into another folder"
