"""Measures the memory that this process may use: the least of the machine's and of the limits of its control groups.

A container (`docker run -m 4g`) or a batch system limits a control group; the machine's figures do not show this.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

NO_LIMIT = 1 << 60
"""A limit of this many bytes or more is none: version 1 writes a huge number."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of memory."""

    free: int
    total: int
    swap_free: int = 0
    swap_total: int = 0
    limit: int = 0
    """The limit of a control group that gives `total`; 0 for the whole machine."""

    def describe_limit(self) -> str:
        """Return a clause that names the limit, for a message; empty if there is none."""
        return f" (this container or job may use {self.limit / (1 << 30):.1f} GiB)" if self.limit else ""


@dataclass(frozen=True, slots=True)
class _Files:
    """Names of a version's files."""

    limit: str
    used: str
    cache: str
    swap_limit: str = ""
    swap_used: str = ""
    swap_holds_memory: bool = False
    """Whether the figures of swap are of memory and swap together."""


_V1 = _Files(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
    "memory.memsw.limit_in_bytes",
    "memory.memsw.usage_in_bytes",
    swap_holds_memory=True,
)
_V2 = _Files("memory.max", "memory.current", "inactive_file", "memory.swap.max", "memory.swap.current")


def measure_memory(root: Path = Path("/")) -> Memory:
    """Return the memory that may be used. `root` is above `proc` and `sys`."""
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    machine = Memory(memory.available, memory.total, swap.free, swap.total)
    limits = [found for folder, files in _list_groups(root) if (found := _read_limit(folder, files, machine))]
    least = min([machine, *limits], key=lambda one: one.total)
    return Memory(
        min(one.free for one in (machine, *limits)),
        least.total,
        min(one.swap_free for one in (machine, *limits)),
        min(one.swap_total for one in (machine, *limits)),
        least.limit,
    )


def _list_groups(root: Path) -> Iterator[tuple[Path, _Files]]:
    """Yield the folders of this process's control groups and of all groups around them.

    In a container the path may be that of the host, and only the mounted folder itself is the container's.
    """
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            is_v1 = "memory" in controllers.split(",")
            if is_v1 or (number == "0" and not controllers):
                top = root / "sys/fs/cgroup" / ("memory" if is_v1 else "")
                inner = PurePosixPath(path.lstrip("/"))
                for part in (inner, *inner.parents):
                    yield top / part, _V1 if is_v1 else _V2


def _read_limit(folder: Path, files: _Files, machine: Memory) -> Memory | None:
    """Return what a group leaves free; None without a limit. File cache counts as free, because Linux drops it."""
    limit = _read_number(folder / files.limit)
    if limit is None or limit >= min(NO_LIMIT, machine.total):
        return None
    used = max((_read_number(folder / files.used) or 0) - _read_cache(folder / "memory.stat", files.cache), 0)
    swap, swap_used = (_read_number(folder / name) if name else None for name in (files.swap_limit, files.swap_used))
    if files.swap_holds_memory and swap is not None:
        swap, swap_used = swap - limit, max((swap_used or 0) - (_read_number(folder / files.used) or 0), 0)
    is_unlimited = bool(files.swap_limit) and swap is None and (folder / files.swap_limit).is_file()
    swap_total = machine.swap_total if is_unlimited else min(swap or 0, machine.swap_total)
    return Memory(max(limit - used, 0), limit, max(swap_total - (swap_used or 0), 0), swap_total, limit)


def _read_number(path: Path) -> int | None:
    """Return the number in a file; None for `max`, which is no limit, and without the file."""
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def _read_cache(path: Path, key: str) -> int:
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    return 0
