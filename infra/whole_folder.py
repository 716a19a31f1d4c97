"""A folder that is there whole or not at all, whoever is killed and however many make it at once."""

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
    """Another process makes the same folder now."""


@contextmanager
def write_new_folder(out: Path) -> Iterator[Path]:
    """Give an empty folder beside `out` to write into, which becomes `out` when the block ends, and goes when it fails.

    What a killed process left of it is removed. It is locked until it has its name.

    Raises UsageError when there is something at `out` already or no folder that it could be in, and FolderBusy.
    """
    if not out.parent.is_dir():
        raise UsageError(f"{out.parent} is not a folder")
    growing = out.with_name(f".{out.name}.part")
    lock = _make_locked(growing, out)
    try:
        if out.exists():  # now that nobody else can be making it
            raise UsageError(f"{out} exists already: name a new folder, or remove it")
        yield growing
        reach("folder.made")
        growing.rename(out)
    finally:
        if _is_at(lock, growing):
            shutil.rmtree(growing, ignore_errors=True)
        os.close(lock)


def _make_locked(growing: Path, out: Path) -> int:
    """Return a lock on the folder itself, made anew and empty."""
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
