"""Shared memory that killed processes leave behind: files in /dev/shm, which fill the memory of the machine."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path("/dev/shm")  # noqa: S108 - where shm_open(3) of Linux has its files


@dataclass(frozen=True, slots=True)
class SharedFile:
    """One piece of shared memory with a name."""

    path: Path
    inode: int
    """Tells it from a later file of the same name."""


def list_named() -> set[SharedFile]:
    """Return all shared memory of the machine that has a name; nothing where there is no such folder."""
    try:
        with os.scandir(FOLDER) as entries:
            return {SharedFile(FOLDER / entry.name, entry.inode()) for entry in entries}
    except OSError:
        return set()


def list_shared_memory(pids: Iterable[int]) -> set[SharedFile]:
    """Return what these processes have mapped and what still has a name; nothing where there is no /proc."""
    found = set[SharedFile]()
    for pid in pids:
        with suppress(OSError):  # it has ended
            for line in Path(f"/proc/{pid}/maps").read_bytes().split(b"\n"):
                parts = line.split(maxsplit=5)  # address, rights, offset, device, inode, and a file's name
                if len(parts) == 6 and (path := Path(os.fsdecode(parts[5]))).parent == FOLDER:
                    found.add(SharedFile(path, int(parts[4])))
    return {one for one in found if _is_there(one)}


def remove_shared_memory(shared: Iterable[SharedFile]) -> None:
    """Remove the names of shared memory; a process that has it mapped keeps it. Those of other users stay."""
    for one in shared:
        if _is_there(one):
            with suppress(OSError):
                one.path.unlink()


def _is_there(one: SharedFile) -> bool:
    try:
        return one.path.stat().st_ino == one.inode
    except OSError:
        return False


class SharedMemoryNotes:
    """Notes what some processes share while they live, so that it can be removed after they were killed."""

    def __init__(self) -> None:
        self._before = set[SharedFile]()
        self._noted = set[SharedFile]()
        self._noted_at = -math.inf

    @property
    def age_s(self) -> float:
        """Seconds since the last look; infinite before the first one."""
        return time.monotonic() - self._noted_at

    def begin(self) -> None:
        """Leave alone from now on what is there before the processes start, because others share it."""
        self._before = list_named()

    def note(self, pids: Iterable[int]) -> None:
        """Look at what these processes share now."""
        self._noted |= list_shared_memory(pids) - self._before
        self._noted_at = time.monotonic()

    def remove(self) -> None:
        """Remove all that was noted. Call it when the processes have ended."""
        noted, self._noted = self._noted, set()
        remove_shared_memory(noted)
