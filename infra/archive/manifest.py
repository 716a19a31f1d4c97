"""The manifest of an archive: `manifest.json`, replaced as a whole, lists all that belongs to the archive.

A file that it does not list was left unfinished by a killed process. The manifest has its own sha256, so any change of
it is noticed.
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
ADVICE = (
    "the manifest was damaged, or changed by another program. Put it back from a copy, or archive the run into another "
    "folder"
)


class ArchiveCorrupt(HeadraceError):
    """A file of an archive is missing or differs from the manifest."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ArchivedFile(_Table):
    """One container file."""

    name: str
    """Name relative to the archive's folder."""
    schema_name: str
    """Name of its values' record; empty for bytes."""
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
    """Offset up to which the partition is archived; it may be beyond the last record."""
    files: list[ArchivedFile] = Field(default_factory=list)


class ArchivedTopic(_Table):
    """One topic, by its whole name."""

    topic_id: str
    """Kafka's id of the topic: the offsets belong to this topic, not to another one with its name."""
    config: dict[str, str]
    """Settings at its creation."""
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
    """One object, at `objects/<key>`; or one that records name but the store lacks."""

    sha256: str
    size_bytes: int
    why: str = ""
    """Why the object is missing."""


class Manifest(_Table):
    """The complete content of an archive."""

    format: str = ARCHIVE_FORMAT
    run: str
    run_id: str
    with_weights: bool = False
    """Whether objects of weights and checkpoints are copied too."""
    topics: dict[str, ArchivedTopic] = Field(default_factory=dict)
    objects: dict[str, ArchivedObject] = Field(default_factory=dict)
    """Archived objects by key."""
    missing: dict[str, ArchivedObject] = Field(default_factory=dict)

    def series(self, partition_id: PartitionId) -> Series:
        """Return the archived files of a partition."""
        return self.topics[partition_id[0]].partitions[partition_id[1]]

    def find_contradiction(self) -> str:
        """Describe a contradiction in the manifest; empty if there is none."""
        for name, topic in self.topics.items():
            for number, series in enumerate(topic.partitions):
                behind = -1
                for file in series.files:
                    if not behind < file.first_offset <= file.last_offset < series.next_offset:
                        return f"the offsets of {name}[{number}] are not in order at file {file.name}"
                    behind = file.last_offset
        return ""

    def to_bytes(self) -> bytes:
        """Return the bytes to write."""
        fields = self.model_dump(mode="json")
        return json.dumps({**fields, "sha256": _digest(fields)}, indent=1).encode()


def _digest(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def read_manifest(location: Location) -> Manifest:
    """Return the manifest of an archive. Raises UsageError if there is none, ArchiveCorrupt if it is damaged."""
    path, text = f"{location}/{MANIFEST}", location.read_manifest()
    if text is None:
        raise UsageError(f"{location} is not an archive: it has no {MANIFEST}; `headrace archive --out` makes one")
    try:
        fields = json.loads(text)
        promised = fields.pop("sha256")
        form = fields.get("format", ARCHIVE_FORMAT)
        if form != ARCHIVE_FORMAT:  # before the rest, which may have other keys
            raise UsageError(
                f"{path} has format {form!r}, and this build of Headrace reads {ARCHIVE_FORMAT!r}: read it with "
                "the build that wrote it, or archive the run again"
            )
        found = Manifest.model_validate(fields)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, ValidationError) as error:
        raise ArchiveCorrupt(f"{path} cannot be read ({type(error).__name__}): {ADVICE}") from error
    if promised != _digest(fields):
        raise ArchiveCorrupt(
            f"the content of {path} has sha256 {_digest(fields)}, but the file says {promised}: {ADVICE}"
        )
    if why := found.find_contradiction():
        raise ArchiveCorrupt(f"{path}: {why}: {ADVICE}")
    return found
