"""What a box may use at most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from headrace.infra.errors import UsageError

MIB = 1 << 20
LEAST = {"memory_mb": 32, "processes": 4}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a box may use at most. Whole positive numbers; a sentence of docs/sandbox.md says what happens beyond."""

    cpu_s: int = 60
    """CPU seconds of one process."""
    wall_s: int = 60
    """Seconds of one command."""
    memory_mb: int = 1024
    """Address space of one process; where the machine has a writable cgroup, also the memory of all together."""
    processes: int = 64
    """Processes and threads at a time."""
    file_mb: int = 64
    """Size of one file."""
    disk_mb: int = 256
    """Size of all files of the box together; they are in memory."""
    output_kb: int = 256
    """Kept of each of stdout and stderr of a command; the rest is dropped."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), LEAST.get(field.name, 1)
            if type(value) is not int or value < least:
                raise UsageError(f"limit {field.name} of a box must be a whole number, {least} or more; got {value!r}")

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Limits:
        """Return limits, those that are not named at their defaults. Raises UsageError."""
        known = [field.name for field in fields(cls)]
        if unknown := sorted(settings.keys() - set(known)):
            raise UsageError(f"a box has no limit {unknown[0]!r}; the limits are {', '.join(known)}")
        return cls(**settings)

    @property
    def most_files(self) -> int:
        """Return how many files and folders a box may have: an empty one takes about 1 KiB of memory, too."""
        return max(self.disk_mb * 64, 1024)
