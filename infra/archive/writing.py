"""Writes an archive: a file belongs to the archive when the manifest lists it.

The order of the steps keeps the archive exact. First the objects that a message names are copied; then a file is
closed, synced and renamed; then the manifest, which also has the archived offset of each partition, is replaced. A
writer killed in between leaves the old manifest: the next writer removes unlisted files and continues at the old
offsets.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.infra.archive.container import ContainerWriter
from headrace.infra.archive.locations import OBJECTS, PART, TOPICS, Location, location_of
from headrace.infra.archive.manifest import (
    ArchiveCorrupt,
    ArchivedFile,
    ArchivedObject,
    ArchivedTopic,
    Manifest,
    Series,
    read_manifest,
)
from headrace.infra.errors import UsageError
from headrace.infra.failpoints import reach
from headrace.infra.inflection import inflect
from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.infra.run.run import STORE_NAME
from headrace.infra.store.object_store import ObjectCorrupt, ObjectMissing, is_key
from headrace.schemas import codec
from headrace.schemas.avro import RECORD_NAMESPACE, Plain, SchemaError
from headrace.schemas.records import ClaimCheck

FILE_BYTES = 64 << 20
"""Bytes after which a new file begins."""
MANIFEST_EVERY_S = 60.0
"""Seconds after which all files are closed and the manifest is written: a killed process loses at most this work."""

NO_FILE_NAME = {errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}
"""Errors of a file name made from an object's key."""

Fetch = Callable[[ClaimCheck, Path], None]
"""Writes an object's verified bytes to a path. Raises ObjectMissing, ObjectCorrupt, or an error that stops the
archiving."""
Claims = Callable[[str, Plain], list[ClaimCheck]]
"""Returns the objects to archive with a record, from the record's name and fields."""


@dataclass(slots=True)
class Added:
    """Counts of this writer's additions."""

    records: int = 0
    bytes: int = 0


class ArchiveWriter:
    """Adds to an archive or begins one. A context manager; only one may be open on a folder.

    Args:
        root: Folder or location of the archive.
        run: Name of the run.
        run_id: Id of the run; an archive holds only one run.
        fetch: Fetches an object.
        claims: Returns the objects that belong to a record.

    Raises:
        UsageError: The folder holds the archive of another run, or cannot be used.
        ArchiveBusy: Another process is writing the archive.
        ArchiveCorrupt: Files differ from the manifest.
    """

    def __init__(self, root: Path | Location, run: str, run_id: str, fetch: Fetch, claims: Claims) -> None:
        self.location = location_of(root) if isinstance(root, Path) else root
        self._fetch, self._claims = fetch, claims
        self.location.begin()
        try:
            self.manifest = self._load_manifest(run, run_id)
        except BaseException:
            self.location.release()
            raise
        self._open: dict[PartitionId, ContainerWriter] = {}
        self._saved_at = time.monotonic()
        self.new: dict[str, Added] = {}
        """Counts of additions by topic."""
        self.new_objects = 0
        self.raw = 0
        """Number of messages whose values are stored as bytes."""

    def _load_manifest(self, run: str, run_id: str) -> Manifest:
        if self.location.read_manifest() is None:
            if others := self.location.list_others():
                raise UsageError(
                    f"{self.location} is not an archive and is not empty ({', '.join(others[:3])}): give a new "
                    "folder or prefix"
                )
            manifest = Manifest(run=run, run_id=run_id)
        else:
            manifest = read_manifest(self.location)
        if (manifest.run, manifest.run_id) != (run, run_id):
            raise UsageError(
                f"{self.location} is the archive of run {manifest.run} with id {manifest.run_id}, but this is run "
                f"{run} with id {run_id}: give another --out"
            )
        files = [file for topic in manifest.topics.values() for series in topic.partitions for file in series.files]
        names = {key: f"{OBJECTS}/{key}" for key in manifest.objects}
        sizes = self.location.measure_files([*(file.name for file in files), *names.values()])
        self._require_whole(files, sizes)
        for key, name in names.items():
            size = sizes.get(name)
            if size != manifest.objects[key].size_bytes:  # `retry_missing_objects` asks the run's store
                lost = manifest.objects.pop(key)
                why = "is gone" if size is None else f"now has {size} bytes instead of {lost.size_bytes}"
                manifest.missing[key] = lost.model_copy(update={"why": f"{name} was in the archive, but {why}"})
        self.location.sweep({file.name for file in files}, manifest.objects.keys())
        return manifest

    def _require_whole(self, files: Sequence[ArchivedFile], sizes: Mapping[str, int]) -> None:
        """Raise ArchiveCorrupt for a file that is missing or has another size."""
        for file in files:
            size = sizes.get(file.name, -1)
            if size != file.bytes:
                what = "is not there" if size < 0 else f"has {size} bytes"
                raise ArchiveCorrupt(
                    f"{self.location}/{file.name} {what}, but the manifest says {file.bytes} bytes of sha256 "
                    f"{file.sha256}: put the file back from a copy, or archive into another folder"
                )

    # ---------------------------------------------------------------------------------------------------------- adding

    def add_topic(self, topic: str, partitions: int, config: Mapping[str, str], topic_id: str = "") -> None:
        """Add a topic. Raises UsageError if the archive has another topic of this name."""
        known = self.manifest.topics.get(topic)
        if known is None:
            series = [Series() for _ in range(partitions)]
            self.manifest.topics[topic] = ArchivedTopic(topic_id=topic_id, config=dict(config), partitions=series)
        elif (known.topic_id, len(known.partitions)) != (topic_id, partitions):
            differs = _describe_difference((topic_id, partitions), (known.topic_id, len(known.partitions)))
            raise UsageError(
                f"topic {topic} is not the topic in the archive {self.location}: the run's topic has {differs}. Its "
                "records cannot be added to this archive: give another --out"
            )
        self.new[topic] = Added()

    def next_offset(self, partition_id: PartitionId) -> int:
        """Return the offset from which a partition must be read."""
        return self.manifest.series(partition_id).next_offset

    def write(self, message: Message, *, is_own: bool = False) -> None:
        """Add the next message of its partition. Raises OSError, and the errors of fetching objects.

        With `is_own`, for a message just encoded that names no object, decoding is not checked.
        """
        schema, fingerprint = _schema_and_fingerprint(message.value) if is_own else self._schema_of(message)
        partition_id = (message.topic, message.partition)
        held = self._open.get(partition_id)
        if held is not None and fingerprint is not None and held.fingerprint != fingerprint:
            self._finish_file(partition_id)
            held = None
        if held is None:
            held = self._open[partition_id] = self._open_series(message, schema, fingerprint or b"")
        held.write(message, as_record=schema is not None)
        reach("archive.written")
        if held.size >= FILE_BYTES:
            self._finish_file(partition_id)
            self._save_manifest()
        else:
            self._save_if_due()

    def _schema_of(self, message: Message) -> tuple[Plain, bytes] | tuple[None, None]:
        """Return the schema and fingerprint of a message's file; (None, None) for a message that any file can take."""
        if message.is_null:
            return None, None
        try:
            schema, fields = codec.decode_as_written(message.value)
        except SchemaError:
            self.raw += 1
            return None, None
        for claim in self._claims(_record_name_of(schema), fields):
            self._copy_objects(claim)
        return schema, bytes(message.value[len(codec.AVRO_MAGIC) : codec.AVRO_HEADER_BYTES])

    def _open_series(self, message: Message, schema: Plain | None, fingerprint: bytes) -> ContainerWriter:
        partition_id = (message.topic, message.partition)
        path = self.location.path_of_growing_file(f"{_folder(partition_id)}/{message.offset}{PART}")
        named = f"{self.manifest.run_id}/{message.topic}/{message.partition}/{message.offset}"
        sync_marker = hashlib.sha256(named.encode()).digest()[:16]
        return ContainerWriter(path, partition_id, schema, fingerprint, sync_marker)

    def _finish_file(self, partition_id: PartitionId) -> None:
        """Close a partition's file and add it to the manifest in memory."""
        file, series = self._open[partition_id], self.manifest.series(partition_id)
        sha256, size = file.close()
        del self._open[partition_id]
        name = f"{_folder(partition_id)}/{file.first_offset:020}-{file.last_offset:020}-{sha256[:16]}.avro"
        self.location.move_file_in(file.path, name, sha256, size)
        series.files.append(
            ArchivedFile(
                name=name,
                schema_name=_record_name_of(file.schema) if file.schema else "",
                fingerprint=file.fingerprint.hex(),
                first_offset=file.first_offset,
                last_offset=file.last_offset,
                records=file.records,
                bytes=size,
                sha256=sha256,
            )
        )
        series.next_offset = file.last_offset + 1
        self.new[partition_id[0]].records += file.records
        self.new[partition_id[0]].bytes += size
        reach("archive.cut")

    def save(self, positions: Mapping[PartitionId, int] | None = None) -> None:
        """Close every file and replace the manifest. Raises OSError.

        Args:
            positions: Positions up to which partitions were read, if known, because their ends may have no records.
        """
        for partition_id in list(self._open):
            self._finish_file(partition_id)
        for partition_id, position in (positions or {}).items():
            series = self.manifest.series(partition_id)
            series.next_offset = max(series.next_offset, position)
        self._save_manifest()

    def _save_if_due(self) -> None:
        if time.monotonic() - self._saved_at > MANIFEST_EVERY_S:
            self.save()

    def _save_manifest(self) -> None:
        self.location.replace_manifest(self.manifest.to_bytes())
        self._saved_at = time.monotonic()
        reach("archive.saved")

    # --------------------------------------------------------------------------------------------------------- objects

    def _copy_objects(self, claim: ClaimCheck) -> None:
        """Copy an object and the objects that it names; record a missing one."""
        if claim.key in self.manifest.objects:
            return
        found = ArchivedObject(sha256=claim.sha256, size_bytes=claim.size_bytes)
        try:
            inner = self._fetch_object(claim)
        except (ObjectMissing, ObjectCorrupt, OSError) as error:
            if isinstance(error, OSError) and error.errno not in NO_FILE_NAME:
                raise
            self.manifest.missing[claim.key] = found.model_copy(update={"why": str(error)})
            return
        self.manifest.missing.pop(claim.key, None)
        self.manifest.objects[claim.key] = found
        self.new_objects += 1
        reach("archive.object")
        for one in inner:
            self._copy_objects(one)

    def _fetch_object(self, claim: ClaimCheck) -> list[ClaimCheck]:
        """Copy an object; return the objects that it names."""
        if claim.store != STORE_NAME or not is_key(claim.key):
            raise ObjectMissing(
                f"a record names object {claim.key[:200]!r} of store {claim.store[:80]!r}. Headrace gives no such "
                "name, so another program may have written the record"
            )
        name = f"{OBJECTS}/{claim.key}"
        path = self.location.path_of_growing_file(f"{name}{PART}")
        self._fetch(claim, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        inner = self._find_named(path)
        self.location.move_file_in(path, name, claim.sha256, claim.size_bytes)
        return inner

    def _find_named(self, path: Path) -> list[ClaimCheck]:
        """Return the objects that an object names, if it is a group."""
        with path.open("rb") as file:
            if file.read(len(codec.AVRO_MAGIC)) != codec.AVRO_MAGIC:
                return []
        try:
            schema, fields = codec.decode_as_written(path.read_bytes())
        except SchemaError:
            return []
        return self._claims(_record_name_of(schema), fields)

    def retry_missing_objects(self) -> None:
        """Try again to fetch missing objects."""
        for key, lost in list(self.manifest.missing.items()):
            self._copy_objects(ClaimCheck(STORE_NAME, key, lost.sha256, lost.size_bytes))
            self._save_if_due()

    # ------------------------------------------------------------------------------------------------------------- end

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the location; unsaved additions are lost."""
        for file in self._open.values():
            file.abandon()
        self._open.clear()
        self.location.release()


def _schema_and_fingerprint(value: bytes) -> tuple[Plain, bytes] | tuple[None, None]:
    return codec.schema_in(value), value[len(codec.AVRO_MAGIC) : codec.AVRO_HEADER_BYTES]


def _record_name_of(schema: Plain) -> str:
    return str(schema["name"]).removeprefix(f"{RECORD_NAMESPACE}.")


def _folder(partition_id: PartitionId) -> str:
    return f"{TOPICS}/{partition_id[0]}/{partition_id[1]}"


def _describe_difference(here: tuple[str, int], archived: tuple[str, int]) -> str:
    """Return in which of id and number of partitions a topic differs from the one in an archive."""
    parts = [f"id {here[0]} instead of {archived[0] or 'none'}"] if here[0] != archived[0] else []
    if here[1] != archived[1]:
        parts.append(f"{here[1]} {inflect(here[1], 'partition')} instead of {archived[1]}")
    return " and ".join(parts)
