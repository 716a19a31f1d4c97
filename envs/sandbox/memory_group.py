"""A cgroup for the memory of a box, where this process may make one: limits of processes do not add up to one."""

from __future__ import annotations

import itertools
import os
from contextlib import suppress
from functools import cache
from pathlib import Path

from headrace.envs.sandbox.limits import MIB, Limits

ROOT = Path("/sys/fs/cgroup")
PREFIX = "headrace-box"
OWN_MIB = 32
"""Room for the first process of a box."""
_numbers = itertools.count()


class MemoryGroup:
    """A cgroup of a box: processes and files of the box together have at most `memory_mb + disk_mb`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def members(self) -> Path:
        """Return the file that takes the numbers of processes."""
        return self._folder / "cgroup.procs"

    def remove(self) -> None:
        """Remove the cgroup, whose processes have ended."""
        with suppress(OSError):
            self._folder.rmdir()


def make_memory_group(limits: Limits) -> MemoryGroup | None:
    """Return a new cgroup with a box's limits, or None where this process may make none."""
    found = find_parent()
    if found is None:
        return None
    parent, limit_file = found
    folder = parent / f"{PREFIX}-{os.getpid()}-{next(_numbers)}"
    try:
        folder.mkdir()
        (folder / limit_file).write_text(str((limits.memory_mb + limits.disk_mb + OWN_MIB) * MIB))
    except OSError:
        with suppress(OSError):
            folder.rmdir()
        return None
    for name in ("memory.swap.max", "memory.memsw.limit_in_bytes"):
        with suppress(OSError):
            (folder / name).write_text("0" if name == "memory.swap.max" else (folder / limit_file).read_text())
    return MemoryGroup(folder)


@cache
def find_parent() -> tuple[Path, str] | None:
    """Return where a cgroup for memory can be made, and the name of the file of its limit."""
    own = _read_own_groups()
    version_1 = ROOT / "memory"
    candidates = [(version_1 / own.get("memory", "").strip("/"), "memory.limit_in_bytes")] if "memory" in own else []
    candidates += [(folder, "memory.max") for folder in (ROOT / own.get("", "").strip("/"), ROOT) if "" in own]
    for folder, limit_file in candidates:
        if _can_hold_groups(folder, limit_file):
            _remove_left_over(folder)
            return folder, limit_file
    return None


def _read_own_groups() -> dict[str, str]:
    """Return the name of each controller of version 1, and the empty name for version 2, to this process's cgroup."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            found |= dict.fromkeys(names.split(","), path)
    return found


def _can_hold_groups(folder: Path, limit_file: str) -> bool:
    probe = folder / f"{PREFIX}-{os.getpid()}-probe"
    try:
        probe.mkdir()
    except OSError:
        return False
    try:
        return os.access(probe / limit_file, os.W_OK) and os.access(probe / "cgroup.procs", os.W_OK)
    finally:
        probe.rmdir()


def _remove_left_over(folder: Path) -> None:
    """Remove empty cgroups of processes that were killed."""
    for left in folder.glob(f"{PREFIX}-*"):
        if not Path("/proc", left.name.removeprefix(PREFIX).split("-")[1]).exists():
            with suppress(OSError):
                left.rmdir()
