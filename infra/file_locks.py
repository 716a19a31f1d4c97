"""Locks on files and folders (flock), which a process loses when it ends, however it ends.

The library `filelock` does not fit: it has no shared locks and none on a folder, its import takes a tenth of a second
of every command, and where a file system has no flock it goes over to locks that outlive a killed process.
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
    """Lock what is open, until it is closed; False while another process holds it. Raises OSError.

    Args:
        descriptor: Of a file or folder.
        shared: Others may hold it too, if shared as well.
        wait: Wait until it is free.
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
    """Return a descriptor of a file, made when it is missing, that holds its lock; None while another process does.

    What the file holds is left as it is. Raises OSError.
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
