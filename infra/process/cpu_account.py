"""CPU seconds by process name and kind of thread, from /proc, over restarts and ended threads."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
LIBRDKAFKA_PREFIX = "rdk:"
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ThreadTime:
    """CPU time of one thread, or of one process."""

    name: str
    ticks: int
    started: int
    """Start of the process in ticks since boot; distinguishes it from a later process with the same pid."""


@dataclass(slots=True)
class Usage:
    """CPU time of one name."""

    process: dict[tuple[int, int], int] = field(default_factory=dict)
    """(pid, start) to ticks of the whole process, ended threads included."""
    librdkafka: dict[tuple[int, int], int] = field(default_factory=dict)
    """(thread id, start) to ticks of the Kafka client's own threads."""


class CpuAccount:
    """Adds up CPU time of processes. Sample each about once a second, and once after its end before reaping."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._lock = threading.Lock()
        self._usage: defaultdict[str, Usage] = defaultdict(Usage)

    def sample(self, name: str, pid: int) -> None:
        """Take in the CPU time of a process; ignore a process that is gone."""
        process = read_stat(self._proc / str(pid) / "stat")
        if process is None:
            return
        with self._lock:
            usage = self._usage[name]
            usage.process[pid, process.started] = process.ticks
            for thread, time in self._threads(pid):
                if time.name.startswith(LIBRDKAFKA_PREFIX):
                    usage.librdkafka[thread, time.started] = time.ticks

    def _threads(self, pid: int) -> list[tuple[int, ThreadTime]]:
        try:
            ids = [int(entry.name) for entry in (self._proc / str(pid) / "task").iterdir()]
        except OSError:
            return []
        found = ((thread, read_stat(self._proc / str(pid) / "task" / str(thread) / "stat")) for thread in ids)
        return [(thread, time) for thread, time in found if time is not None]

    def seconds(self) -> dict[str, dict[str, float]]:
        """Return CPU seconds by name: of `process` and, as a part of it, `librdkafka`."""
        with self._lock:
            return {
                name: {
                    "process": sum(usage.process.values()) / TICKS_PER_S,
                    "librdkafka": sum(usage.librdkafka.values()) / TICKS_PER_S,
                }
                for name, usage in self._usage.items()
            }


def read_stat(path: Path) -> ThreadTime | None:
    """Read a `stat` file of /proc (proc(5)); None when it is gone."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return None
    name = text[text.find("(") + 1 : text.rfind(")")]
    fields = text[text.rfind(")") + 2 :].split()
    return ThreadTime(name, int(fields[11]) + int(fields[12]), int(fields[19]))
