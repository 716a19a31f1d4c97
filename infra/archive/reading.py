"""Reads an archive: each file is checked completely against the manifest before any of it is returned."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from headrace.infra.archive.container import Container
from headrace.infra.archive.locations import IN_A_STORE, OBJECTS, Location, location_of
from headrace.infra.archive.manifest import ArchiveCorrupt, ArchivedFile, Manifest, read_manifest
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.infra.run.run import STORE_NAME, read_revision, refuse_large_group
from headrace.infra.store.object_store import ObjectCorrupt, ObjectMissing
from headrace.schemas import codec
from headrace.schemas.records import ClaimCheck, RecipeRevision
from headrace.schemas.topics import Topics

OF_THIS_MACHINE = {
    errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM,
}  # fmt: skip
"""Errors of this machine, with which a file of a good archive cannot be read."""


def is_archive(where: str) -> bool:
    """Return whether a name means an archive."""
    return where.startswith(IN_A_STORE) or location_of(where).read_manifest() is not None


class Archive:
    """An archive as of its manifest when it was opened; safe while a writer adds to it.

    With `manifest` it is the archive as of that manifest.

    Raises UsageError if there is no archive, ArchiveCorrupt if its manifest is damaged.
    """

    def __init__(self, root: Path | str | Location, manifest: Manifest | None = None) -> None:
        self.root = location_of(root) if isinstance(root, Path | str) else root
        self.manifest: Manifest = read_manifest(self.root) if manifest is None else manifest

    @property
    def topics(self) -> Topics:
        """Names of the run's topics."""
        return Topics(self.manifest.run)

    def partitions(self, topic: str) -> list[PartitionId]:
        """Return the partitions of a topic, by its whole name. Raises UsageError when the archive lacks it."""
        if topic not in self.manifest.topics:
            there = ", ".join(sorted(self.manifest.topics)) or "none"
            raise UsageError(f"the archive {self.root} has no topic {topic}; it has: {there}")
        return [(topic, partition) for partition in range(len(self.manifest.topics[topic].partitions))]

    def messages(self, partition_id: PartitionId) -> Iterator[Message]:
        """Yield the messages of a partition in order; verify each file and learn its schema first.

        Raises ArchiveCorrupt, which names the file, and OSError if this machine has no room or no right to read it.
        """
        for file in self.manifest.series(partition_id).files:
            yield from self._messages(partition_id, file)

    def read_backwards(self, partition_id: PartitionId, offset: int) -> Iterator[Iterator[Message]]:
        """Yield the messages of each file that begins at or before an offset, the newest file first.

        Raises as `messages`.
        """
        for file in reversed(self.manifest.series(partition_id).files):
            if file.first_offset <= offset:
                yield self._messages(partition_id, file)

    def revisions(self) -> list[RecipeRevision]:
        """Return the archived run's recipe revisions, oldest first. Raises as `partitions` and `messages`."""
        [partition_id] = self.partitions(self.topics.recipe)
        found = (read_revision(message) for message in self.messages(partition_id))
        return [one for one in found if one is not None and one.run_id == self.manifest.run_id]

    def _messages(self, partition_id: PartitionId, listed: ArchivedFile) -> Iterator[Message]:
        count, behind = 0, listed.first_offset - 1
        wrong = partial(_corruption_error, f"{self.root}/{listed.name}", listed)
        try:
            with self.root.open_file(listed.name, listed.sha256, listed.bytes) as path, path.open("rb") as file:
                container = self._open_verified(partition_id, listed, file)
                for message in container:
                    if message.offset <= behind:
                        raise wrong(f"has a record with offset {message.offset} after one with offset {behind}")
                    count, behind = count + 1, message.offset
                    yield message
        except (OSError, ObjectMissing, ObjectCorrupt) as error:
            _raise_if_local_fault(error)
            raise wrong(f"cannot be read ({error})") from error
        except (ValueError, KeyError, EOFError, TypeError, IndexError) as error:  # as fastavro raises on odd bytes
            raise wrong(f"cannot be decoded ({type(error).__name__}: {error})") from error
        if (count, behind) != (listed.records, listed.last_offset):
            raise wrong(f"has {count} records up to offset {behind}")

    def _open_verified(self, partition_id: PartitionId, listed: ArchivedFile, file: BinaryIO) -> Container:
        wrong = partial(_corruption_error, f"{self.root}/{listed.name}", listed)
        digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # a file that is read only
        if digest != listed.sha256:
            raise wrong(f"has sha256 {digest}")
        file.seek(0)
        container = Container(file)
        if (container.topic, container.partition) != partition_id:
            wanted = f"{partition_id[0]}[{partition_id[1]}]"
            raise wrong(f"has records of {container.topic}[{container.partition}] instead of {wanted}")
        if container.schema is not None:
            codec.learn({listed.schema_name: json.dumps(container.schema)})
        return container

    # --------------------------------------------------------------------------------------------------------- objects

    @contextmanager
    def open_object(self, key: str) -> Iterator[Path]:
        """Yield the path of a listed object after verifying it. Raises as `messages`."""
        listed, where = self.manifest.objects[key], f"{self.root}/{OBJECTS}/{key}"
        with ExitStack() as opened:
            try:
                path = opened.enter_context(self.root.open_file(f"{OBJECTS}/{key}", listed.sha256, listed.size_bytes))
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
            except (OSError, ObjectMissing, ObjectCorrupt) as error:
                _raise_if_local_fault(error)
                raise ArchiveCorrupt(f"{where} cannot be read ({error}): put the object back from a copy") from error
            if digest != listed.sha256:
                raise ArchiveCorrupt(
                    f"{where} has sha256 {digest}, but the manifest says {listed.sha256}: put the object back "
                    "from a copy"
                )
            yield path

    def copy(self, claim: ClaimCheck, path: Path) -> None:
        """Write an object to a path. Raises as `get`."""
        with self._find(claim) as found:
            shutil.copyfile(found, path)

    def get(self, claim: ClaimCheck) -> bytes:
        """Return an object's bytes, verified.

        Raises ObjectMissing or ObjectCorrupt if the run's store would have, and ArchiveCorrupt for an archived object
        that was damaged since.
        """
        with self._find(claim) as found:
            return found.read_bytes()

    def get_group(self, claim: ClaimCheck) -> bytes:
        """`get` for an encoded group. Raises ObjectCorrupt for a too large group."""
        refuse_large_group(claim)
        return self.get(claim)

    def _find(self, claim: ClaimCheck) -> AbstractContextManager[Path]:
        listed = self.manifest.objects.get(claim.key)
        if listed is None or claim.store != STORE_NAME:
            lost = self.manifest.missing.get(claim.key)
            why = f": {lost.why}" if lost else ""
            of = "" if claim.store == STORE_NAME else f" of store {claim.store[:80]!r}"
            raise ObjectMissing(f"the archive {self.root} has no object {claim.key[:200]!r}{of}{why}")
        if (listed.sha256, listed.size_bytes) != (claim.sha256, claim.size_bytes):
            raise ObjectCorrupt(
                f"the archive {self.root} has object {claim.key} with sha256 {listed.sha256} and {listed.size_bytes} "
                f"bytes, but the record that names it says {claim.sha256} and {claim.size_bytes} bytes"
            )
        return self.open_object(claim.key)


def _raise_if_local_fault(error: Exception) -> None:
    """Raise the error if its cause is this machine, not the archive."""
    if isinstance(error, OSError) and error.errno in OF_THIS_MACHINE:
        raise error


def _corruption_error(where: str, listed: ArchivedFile, what: str) -> ArchiveCorrupt:
    return ArchiveCorrupt(
        f"{where} {what}, but the manifest says {listed.records} records, offsets {listed.first_offset} to "
        f"{listed.last_offset} and sha256 {listed.sha256}: put the file back from a copy, or archive the run into "
        "another folder"
    )
