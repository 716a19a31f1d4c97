"""Folders that a process makes for itself; a later process removes those of a process that died."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from headrace.infra.file_locks import open_locked

LOCK = "owner.lock"


class OwnedFolder:
    """A new folder in `root`, locked for as long as this process lives; those of processes that are gone are removed.

    On a file system without locks the folder is not locked, and no folder there is ever removed as left over.

    Args:
        root: Where to make it.
        prefix: Beginning of the folder's name; only folders with this prefix are removed.
        keep_s: Seconds after its last change for which the folder of a dead process stays, so that it can be read.

    Raises OSError where `root` cannot be written to.
    """

    def __init__(self, root: Path, prefix: str, *, keep_s: float = 0.0) -> None:
        remove_leftovers(root, prefix, keep_s)
        self.path, self._lock = _make_locked(root, prefix)

    def close(self, *, keeps_folder: bool = False) -> None:
        """Remove the folder, or leave it for readers as if this process had died. Safe to call twice."""
        if not keeps_folder:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _make_locked(root: Path, prefix: str) -> tuple[Path, int | None]:
    while True:  # a second time only if another process removed the folder before this one locked it
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        try:
            lock = open_locked(path / LOCK)
        except FileNotFoundError:
            continue
        except OSError:
            return path, None
        if lock is None:
            continue
        if os.fstat(lock).st_nlink:
            return path, lock
        os.close(lock)


def remove_leftovers(root: Path, prefix: str, keep_s: float) -> None:
    """Remove the folders in `root` whose process is gone, and which did not change for `keep_s` seconds."""
    for path in root.glob(f"{prefix}*"):
        with suppress(OSError):  # of another user, removed meanwhile, or without locks
            if time.time() - path.stat().st_mtime < keep_s:
                continue
            lock = open_locked(path / LOCK)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)
