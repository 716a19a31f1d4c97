"""A folder that appears complete or not at all, even if a process is killed or several make it at once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.failpoints import reach
from headrace.infra.file_locks import take_lock


class FolderBusy(HeadraceError):
    """Another process is making the same folder now."""


def require_parent(out: Path) -> None:
    """Raise UsageError if there is no folder in which `out` could be made."""
    if not out.parent.is_dir():
        raise UsageError(f"{out.parent} is not a folder: make it, or name another place for {out.name}")


@contextmanager
def write_new_folder(out: Path) -> Iterator[Path]:
    """Give an empty folder beside `out`, which becomes `out` when the block ends, and is removed when the block fails.

    The rest that a killed process left is removed. The folder is locked until it has its name.

    Raises UsageError when `out` exists already or its parent folder does not, and FolderBusy.
    """
    require_parent(out)
    growing = out.with_name(f".{out.name}.part")
    lock = _make_locked(growing, out)
    try:
        if out.exists():  # no other process can be making it now
            raise UsageError(f"{out} exists already: name a new folder, or remove it")
        yield growing
        reach("folder.made")
        growing.rename(out)
    finally:
        if _is_at(lock, growing):
            shutil.rmtree(growing, ignore_errors=True)
        os.close(lock)


def _make_locked(growing: Path, out: Path) -> int:
    """Make the folder new and empty, and return a lock on it."""
    busy = FolderBusy(f"another process is writing {out}: wait until it ends, or name another folder")
    growing.mkdir(exist_ok=True)
    try:
        lock = os.open(growing, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        raise busy from None
    try:
        is_locked = take_lock(lock)
    except OSError as error:
        os.close(lock)
        raise UsageError(f"cannot make {out}: {error}") from error
    if not is_locked:
        os.close(lock)
        raise busy
    if not _is_at(lock, growing):  # whoever held it has given it its name, or removed it
        os.close(lock)
        raise busy
    for path in growing.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return lock


def _is_at(lock: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except OSError:
        return False
