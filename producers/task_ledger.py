"""The state of one partition's tasks, in a form that fits into the metadata of a committed offset.

The committed offset is that of the oldest unfinished task. Its metadata lists the later tasks that are done, and how
often open tasks were started. So the next owner of the partition skips done tasks, and recognises a task that kills its
workers: a start is committed before the task runs, and taken back when its worker leaves in good order. By a mark of
the worker the feeder knows which partitions belong to one worker.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping

MOST_METADATA_BYTES = 4096
"""The broker's default limit, `offset.metadata.max.bytes`."""
MOST_DONE = 1_000_000
"""Most done offsets in metadata; with more, another program wrote it."""
POISON_STARTS = 3
"""A task that was started so often without finishing is not started again. At its last start it runs alone in its
worker, so it is the cause if that worker dies."""

Range = tuple[int, int]
"""First and last offset, both included."""


class TaskLedger:
    """The ledger of one partition, without I/O or a clock.

    Offsets are received in order; gaps between them are transaction markers, not tasks. Tasks start and finish in any
    order.

    Args:
        committed_offset: The group's committed offset; negative if there is none.
        metadata: The metadata that `commit` returned with it. Text of another program is ignored: then tasks may be
            done twice, and dedupe drops the copy, but no task is left out.
        run_id: Id of the run that issued these tasks. A commit of another run is ignored: see `is_of_run`.
        owner: Name of the worker that owns the partition.
    """

    def __init__(self, committed_offset: int, metadata: str = "", run_id: str = "", owner: str = "") -> None:
        self._run_id, self._mark = run_id, f"{zlib.crc32(owner.encode()):08x}" if owner else ""
        is_ours = is_of_run(metadata, run_id)
        self._next = max(committed_offset, 0) if is_ours else 0
        self._base = self._next
        self._open: set[int] = set()
        self._done, self._starts = _decode(self._base, metadata if is_ours else "")
        self._inherited = dict(self._starts)
        self._mine: set[int] = set()

    @property
    def position(self) -> int:
        """Offset from which the newest commit lets the partition be read."""
        return self._base

    def receive(self, offset: int) -> bool:
        """Take in the next task of the partition; return False if it is done or already received."""
        self._next = max(self._next, offset + 1)
        if offset < self._base or offset in self._done or offset in self._open:
            return False
        self._open.add(offset)
        return True

    def add_start(self, offset: int) -> bool:
        """Count a start, which must be committed before the task runs; return False, uncounted, if the task is done."""
        if offset not in self._open and not self.receive(offset):
            return False
        self._starts[offset] = self._starts.get(offset, 0) + 1
        self._mine.add(offset)
        return True

    def count_starts(self, offset: int) -> int:
        """Return how often earlier owners started an open task."""
        return self._inherited.get(offset, 0)

    def has_to_run_alone(self, offset: int) -> bool:
        """Return whether one more death makes a task poison, so that it must run alone."""
        return self.count_starts(offset) >= POISON_STARTS - 1

    def mark_done(self, offset: int) -> None:
        """Mark a task as concluded, as all its records are acknowledged. Ignore offsets before the position."""
        self._open.discard(offset)
        self._starts.pop(offset, None)
        self._mine.discard(offset)
        if offset >= self._base:
            self._done.add(offset)

    def reset_starts(self) -> None:
        """Take back this owner's starts of open tasks, because it leaves in good order and no task is at fault."""
        for offset in self._mine:
            self._starts[offset] -= 1
            if not self._starts[offset]:
                del self._starts[offset]
        self._mine.clear()

    def commit(self) -> tuple[int, str]:
        """Return the offset to commit and its metadata, at most 4,096 bytes of ASCII.

        The offset is that of the oldest unfinished task, else the next offset. If the metadata is too long, it keeps
        start counts before done marks, high counts before low ones, and long runs of done marks before short ones. A
        lost mark means that a task is done twice, a lost count that a poison task is found later; an unfinished task is
        never lost.
        """
        self._base = min(self._open, default=self._next)
        self._done = {offset for offset in self._done if offset >= self._base}
        self._starts = {offset: count for offset, count in self._starts.items() if offset >= self._base}
        started = sorted(self._starts.items(), key=lambda item: (-item[1], item[0]))
        done = sorted(self._done_ranges(), key=lambda bounds: (bounds[0] - bounds[1], bounds[0]))
        text = self._encode(done, started)
        while len(text) > MOST_METADATA_BYTES:
            if done:
                done = done[: len(done) * 7 // 8]
            else:
                started = started[: len(started) * 7 // 8]
            text = self._encode(done, started)
        return self._base, text

    def _done_ranges(self) -> list[Range]:
        """Return runs of done offsets; a run may span offsets without a task."""
        ranges: list[Range] = []
        unfinished = sorted(self._open)
        for offset in sorted(self._done):
            begin, end = ranges[-1] if ranges else (offset, offset - 1)
            is_gap_empty = offset < self._next and bisect_right(unfinished, offset) == bisect_right(unfinished, end)
            if ranges and (offset == end + 1 or is_gap_empty):
                ranges[-1] = (begin, offset)
            else:
                ranges.append((offset, offset))
        return ranges

    def _encode(self, done: Iterable[Range], started: Iterable[tuple[int, int]]) -> str:
        """`{"done": "3-7,9", "started": "0:1,4:2", "run": "…", "by": "…"}`, offsets counted from the committed one."""
        base = self._base
        ranges = ",".join(f"{begin - base}-{end - base}" if end > begin else f"{begin - base}" for begin, end in done)
        counts = ",".join(f"{offset - base}:{count}" for offset, count in started)
        found = {"done": ranges, "started": counts, "run": self._run_id, "by": self._mark}
        found = {name: text for name, text in found.items() if text}
        return json.dumps(found, separators=(",", ":")) if found else ""


def is_of_run(metadata: str, run_id: str) -> bool:
    """Return whether a commit is of this run, not of an earlier run of the same name.

    Topics may be deleted and created again under one name. A worker that outlives them commits by name, and its offset
    would skip tasks that nobody played. A commit without a run id counts as one of this run, because older builds and
    Kafka's tools write no run id.
    """
    try:
        found = json.loads(metadata) if metadata else {}
    except (ValueError, RecursionError):
        return True
    return not isinstance(found, dict) or found.get("run", run_id) == run_id


def read_owner(metadata: str) -> str:
    """Return the mark of the worker that made a commit; empty for another program's, or an older build's."""
    try:
        found = json.loads(metadata) if metadata else {}
    except (ValueError, RecursionError):
        return ""
    mark = found.get("by", "") if isinstance(found, dict) else ""
    return mark if isinstance(mark, str) else ""


def _decode(base: int, metadata: str) -> tuple[set[int], dict[int, int]]:
    try:
        found = json.loads(metadata) if metadata else {}
        return _list_offsets(base, found), _list_counts(base, found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return set(), {}


def _list_offsets(base: int, found: Mapping[str, str]) -> set[int]:
    offsets: set[int] = set()
    for part in filter(None, found.get("done", "").split(",")):
        begin, _, end = part.partition("-")
        run = range(base + int(begin), base + int(end or begin) + 1)
        if len(run) + len(offsets) > MOST_DONE:
            raise ValueError(f"the commit metadata names more than {MOST_DONE} finished tasks, the last at {part}")
        offsets.update(run)
    return offsets


def _list_counts(base: int, found: Mapping[str, str]) -> dict[int, int]:
    pairs = (part.split(":") for part in filter(None, found.get("started", "").split(",")))
    return {base + int(offset): int(count) for offset, count in pairs}
