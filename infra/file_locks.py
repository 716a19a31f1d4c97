"""Locks on files and folders (flock); a process loses its locks when it ends, however it ends.

The library `filelock` does not fit: it has no shared locks and no locks on folders, its import costs every command a
tenth of a second, and without flock it falls back to locks that survive a killed process.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

WITHOUT_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP})
NO_LOCKS = (
    "this file system does not support flock, which keeps two commands from using one folder at once: use a folder on "
    "a local disk, or mount the file system with locks (NFS: without `nolock`; Lustre: with `-o flock`)"
)


def take_lock(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Lock an open file or folder until it is closed; return False if another process holds the lock. Raises OSError.

    Args:
        descriptor: Descriptor of a file or folder.
        shared: Take a shared lock, which other processes may hold too.
        wait: Wait until the lock is free.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in WITHOUT_LOCKS:
            raise OSError(NO_LOCKS) from error
        raise
    return True


def open_locked(path: Path, mode: int = 0o644) -> int | None:
    """Open a file, or create it, and lock it; return its descriptor, or None if another process holds the lock.

    The file's content is not changed. Raises OSError.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, mode)
    try:
        if take_lock(descriptor):
            return descriptor
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None
