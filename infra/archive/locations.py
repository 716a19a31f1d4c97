"""Locations of an archive: a folder, or a prefix of an object store, with the same file names.

A folder has one manifest, which is replaced, and one writer, which holds a lock. In a store nothing is overwritten or
locked: each manifest is a separate object, named by a number and its hash, and the one with the last name is valid. A
manifest names only existing files, and a writer adds to the manifest that it started with. So two concurrent writers
cannot mix their additions: a writer that finds another manifest with its own number removes its own and fails, and the
next writer adds that data again.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from headrace.infra.atomic_files import sync_folder, write_atomically
from headrace.infra.environment import ENDPOINT_VARIABLE, read_environment
from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.failpoints import reach
from headrace.infra.file_locks import open_locked
from headrace.infra.store.object_store import (
    SPARED_BY_GC,
    ListedObject,
    ObjectMissing,
    ObjectStore,
    StoreAddress,
    StoredObject,
)

TOPICS, OBJECTS, LOCK = "topics", "objects", "archive.lock"
MANIFEST, MANIFESTS = "manifest.json", "manifests"
PART = ".part"
FILE_NAME = re.compile(r"\d{20}-\d{20}-[0-9a-f]{16}\.avro|\d+\.part")
MANIFEST_NAME = re.compile(rf"{MANIFESTS}/(\d{{10}})-([0-9a-f]{{64}})\.json")
MOST_MANIFESTS = 3
"""Number of manifests kept in a store, so that running readers find theirs; older ones are deleted."""
OWN_FILES = re.compile(rf"{TOPICS}/[^/]+/\d+/(?:{FILE_NAME.pattern})|{OBJECTS}/.+|{MANIFEST_NAME.pattern}")
IN_A_STORE = ("s3://", "http://", "https://")
OWN_STORE = "store:"
FORMS = {"store": "store:archives/sums", "s3": "s3://BUCKET/archives/sums"}
"""Examples, by what comes before the colon; others begin with http:// or https://."""


class ArchiveBusy(HeadraceError):
    """Another process writes to the archive."""


class Location(Protocol):
    """A location of an archive; its `str` is for people."""

    def read_manifest(self) -> bytes | None:
        """Return the valid manifest; None if there is none. Raises OSError and StoreError."""
        ...

    def open_file(self, name: str, sha256: str, size_bytes: int) -> AbstractContextManager[Path]:
        """Yield a path at which a file can be read during the block.

        Raises OSError, ObjectMissing or ObjectCorrupt for a file that is missing or, in a store, damaged; also OSError
        if this machine cannot open it.
        """
        ...

    def begin(self) -> None:
        """Become the writer. Raises UsageError for an unusable location, and ArchiveBusy."""
        ...

    def measure_files(self, names: Collection[str]) -> dict[str, int]:
        """Return the bytes of those files that are there."""
        ...

    def list_others(self) -> list[str]:
        """Return the names of files that cannot belong to an archive."""
        ...

    def sweep(self, files: Collection[str], objects: Collection[str]) -> None:
        """Remove files that killed writers left, except the listed files and objects."""
        ...

    def path_of_growing_file(self, name: str) -> Path:
        """Return a path for a growing file."""
        ...

    def move_file_in(self, path: Path, name: str, sha256: str, size_bytes: int) -> None:
        """Give a complete file its name, durably. Raises OSError and StoreError."""
        ...

    def replace_manifest(self, data: bytes) -> None:
        """Make this the valid manifest. Raises OSError, StoreError, ArchiveBusy."""
        ...

    def release(self) -> None:
        """Stop being the writer."""
        ...


def location_of(where: str | Path, own: StoreAddress | None = None) -> Location:
    """Return the location with a name.

    Args:
        where: A folder, `s3://BUCKET/PREFIX`, `http[s]://HOST:PORT/BUCKET/PREFIX`, `store:PREFIX`.
        own: The store of the current run, for `store:`, and for its endpoint if the name has none.

    Raises UsageError.
    """
    text = str(where)
    if text.startswith(OWN_STORE):
        if own is None:
            raise UsageError(
                f"{text}: `store:` means the store of the run, but this command names no run: write s3://BUCKET/PREFIX"
            )
        return InStore(_parse_below(own, own.bucket, text.removeprefix(OWN_STORE), text))
    if not text.startswith(IN_A_STORE):
        return InFolder(Path(text))
    if not text.startswith("s3://"):
        found = StoreAddress.from_url(text)
        return InStore(_parse_below(found, found.bucket, found.prefix, text))
    bucket, _, prefix = text.removeprefix("s3://").partition("/")
    endpoint = read_environment(ENDPOINT_VARIABLE)
    if endpoint:
        scheme = "" if "://" in endpoint else "http://"
        found = StoreAddress.from_url(f"{scheme}{endpoint.rstrip('/')}/{bucket}/{prefix}")
        return InStore(_parse_below(found, found.bucket, found.prefix, text))
    if own is None:
        raise UsageError(
            f"{text}: the store's endpoint is not known: set {ENDPOINT_VARIABLE} to it, as https://HOST:PORT"
        )
    return InStore(_parse_below(own, bucket, prefix, text))


def _parse_below(address: StoreAddress, bucket: str, prefix: str, text: str) -> StoreAddress:
    if not bucket or not prefix.strip("/"):
        scheme = text.partition(":")[0]
        needs = "a prefix" if text.startswith(OWN_STORE) else "a bucket, and a prefix"
        form = FORMS.get(scheme, f"{scheme}://HOST:PORT/BUCKET/archives/sums")
        raise UsageError(f"{text} must name {needs} that only this archive uses, as in {form}")
    where = (address.endpoint, bucket, address.access_key, address.secret_key, address.secure, address.region)
    return StoreAddress(*where, prefix=f"{prefix.strip('/')}/")


class InFolder:
    """A folder. One process writes at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = -1

    def __str__(self) -> str:
        return str(self.root)

    def read_manifest(self) -> bytes | None:
        """Return the manifest; in a folder copied from a store's archive, the valid one."""
        try:
            return (self.root / MANIFEST).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            names = sorted(path.name for path in (self.root / MANIFESTS).glob("*.json"))
            return (self.root / MANIFESTS / names[-1]).read_bytes() if names else None

    @contextmanager
    def open_file(self, name: str, sha256: str, size_bytes: int) -> Iterator[Path]:  # noqa: ARG002 - a reader verifies it
        """Give the file itself."""
        yield self.root / name

    def begin(self) -> None:
        """Lock the folder, which is made."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock = open_locked(self.root / LOCK)
        except OSError as error:
            raise UsageError(f"cannot use the archive's folder {self.root}: {error}; give another by --out") from error
        if lock is None:
            raise ArchiveBusy(f"another process is archiving into {self.root}: wait until it ends")
        self._lock = lock

    def measure_files(self, names: Collection[str]) -> dict[str, int]:
        """Return the bytes of those files that are there."""
        paths = {name: self.root / name for name in names}
        return {name: path.stat().st_size for name, path in paths.items() if path.exists()}

    def list_others(self) -> list[str]:
        """Return the names of files that a writer killed before its first manifest cannot have left."""
        ours = {TOPICS, OBJECTS, LOCK}
        names = (path.name for path in self.root.iterdir())
        return sorted(name for name in names if name not in ours and not name.startswith(f"{MANIFEST}."))

    def sweep(self, files: Collection[str], objects: Collection[str]) -> None:
        """Remove files without a name, and files that no manifest lists."""
        for path in (self.root / TOPICS).glob("*/*/*"):
            if FILE_NAME.fullmatch(path.name) and path.relative_to(self.root).as_posix() not in files:
                path.unlink()
        for path in (self.root / OBJECTS).rglob(f"*{PART}"):
            if path.is_file() and path.relative_to(self.root / OBJECTS).as_posix() not in objects:
                path.unlink()
        for path in self.root.glob(f"{MANIFEST}.*.new"):
            path.unlink()

    def path_of_growing_file(self, name: str) -> Path:
        """Return a path in the folder itself, so that the file can be renamed to its name."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def move_file_in(self, path: Path, name: str, sha256: str, size_bytes: int) -> None:  # noqa: ARG002 - it was just written
        """Rename it."""
        path.replace(self.root / name)
        sync_folder((self.root / name).parent)

    def replace_manifest(self, data: bytes) -> None:
        """Replace the file as a whole."""
        write_atomically(self.root / MANIFEST, data, durable=True)

    def release(self) -> None:
        """Unlock the folder."""
        os.close(self._lock)


class InStore:
    """A prefix of a bucket, used by the archive alone."""

    def __init__(self, address: StoreAddress) -> None:
        self.address = address
        self._store = ObjectStore(address)
        self._newest = ""
        """Name of the last manifest read or written."""
        self._here = Path()
        """Folder of growing files, until they are complete and sent."""

    def __str__(self) -> str:
        return f"s3://{self.address.bucket}/{self.address.prefix.rstrip('/')}"

    def read_manifest(self) -> bytes | None:
        """Return the manifest with the last name."""
        for attempt in (1, 2):
            listed = self._manifests()
            if not listed:
                return None
            try:
                found = self._fetch_manifest(listed[-1])
            except ObjectMissing:  # newer ones came meanwhile, so it was deleted
                if attempt == 2:
                    raise
            else:
                self._newest = listed[-1].key
                return found
        return None

    def _manifests(self) -> list[ListedObject]:
        found = self._store.list_objects(f"{MANIFESTS}/")
        ours = [one for one in found if MANIFEST_NAME.fullmatch(one.key.removeprefix(self.address.prefix))]
        return sorted(ours, key=lambda one: one.key)

    def _fetch_manifest(self, one: ListedObject) -> bytes:
        _, sha256 = self._parse_manifest_name(one.key)
        return self._store.get(one.key, sha256, one.size_bytes)

    def _parse_manifest_name(self, key: str) -> tuple[int, str]:
        """Return number and sha256 of a manifest's name."""
        found = MANIFEST_NAME.fullmatch(key.removeprefix(self.address.prefix))
        return (int(found[1]), found[2]) if found else (0, "")

    @contextmanager
    def open_file(self, name: str, sha256: str, size_bytes: int) -> Iterator[Path]:
        """Yield the path of a copy, which is removed afterwards."""
        with tempfile.TemporaryDirectory(prefix="headrace-archive-") as folder:
            path = Path(folder) / "file"
            try:
                self._store.get_to_file(f"{self.address.prefix}{name}", sha256, size_bytes, path)
            except OSError as error:  # of this machine; of a disk that is full it names no file
                raise OSError(error.errno, error.strerror, str(path)) from error
            yield path

    def begin(self) -> None:
        """Check that the bucket can be used; make a folder for growing files."""
        self._store.ensure_bucket()
        self._here = Path(tempfile.mkdtemp(prefix="headrace-archive-"))

    def measure_files(self, names: Collection[str]) -> dict[str, int]:
        """Return the bytes of those files that are there."""
        listed = {one.key.removeprefix(self.address.prefix): one.size_bytes for one in self._store.list_objects()}
        return {name: listed[name] for name in names if name in listed}

    def list_others(self) -> list[str]:
        """Return the names of objects that cannot belong to an archive."""
        names = (one.key.removeprefix(self.address.prefix) for one in self._store.list_objects())
        return sorted(name for name in names if not OWN_FILES.fullmatch(name) and not name.startswith("probe/"))

    def sweep(self, files: Collection[str], objects: Collection[str]) -> None:  # noqa: ARG002 - they are found again
        """Remove files that no manifest lists and that are too old to belong to a running writer."""
        for one in self._store.list_objects(f"{TOPICS}/"):
            name = one.key.removeprefix(self.address.prefix)
            if OWN_FILES.fullmatch(name) and name not in files and datetime.now(UTC) - one.modified > SPARED_BY_GC:
                self._store.delete(one.key)

    def path_of_growing_file(self, name: str) -> Path:
        """Return a path on this machine."""
        path = self._here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def move_file_in(self, path: Path, name: str, sha256: str, size_bytes: int) -> None:
        """Send the file to the store."""
        self._store.put_file(StoredObject(f"{self.address.prefix}{name}", sha256, size_bytes), path)
        path.unlink()

    def replace_manifest(self, data: bytes) -> None:
        """Put the manifest with the next number, and check that it is the last."""
        self._require_newest()
        number, sha256 = self._parse_manifest_name(self._newest)[0] + 1, hashlib.sha256(data).hexdigest()
        stored = StoredObject(f"{self.address.prefix}{MANIFESTS}/{number:010}-{sha256}.json", sha256, len(data))
        reach("archive.manifest")
        self._store.put_named(stored, data)
        self._newest = stored.key
        listed = self._manifests()
        if any(self._parse_manifest_name(one.key)[0] == number and one.key != stored.key for one in listed):
            # The other writer may have checked before this one came, and believe that its own is the last.
            self._store.delete(stored.key)
            raise self._busy_error()
        self._require_newest()
        for old in listed[:-MOST_MANIFESTS]:
            self._store.delete(old.key)

    def _require_newest(self) -> list[ListedObject]:
        listed = self._manifests()
        if (listed[-1].key if listed else "") != self._newest:
            raise self._busy_error()
        return listed

    def _busy_error(self) -> ArchiveBusy:
        return ArchiveBusy(
            f"another process has archived into {self} at the same time, so the last additions of this command are not "
            "in the archive. Wait until the other process ends, then give this command again"
        )

    def release(self) -> None:
        """Remove growing files."""
        shutil.rmtree(self._here, ignore_errors=True)
        self._store.close()
