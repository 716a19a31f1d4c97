"""Driving one run through cells: wait until the victim works, kill it, prove that it died at work, wait until it works.

A victim works when its own life moves its own count: versions for the trainer, the servers and the supervisor, tasks
for the feeder, results for the evaluator, delivered groups for a worker, committed offsets of its partitions for a
curator.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from cells import SLOTS, Cell
from launched import Launched, NotInTime, alive, stopped, until
from progress import Progress

from headrace.infra.recipe.settings import Recipe

WORKS_S = 420.0
"""How long a killed component may take until it works again; on an idle machine 2 to 12 s."""
HITS_S = 240.0
"""How long a point may take to be passed."""
LAST_VERSIONS = 25
"""No cell begins so near the end of a run."""

Waiter = Callable[[], bool]


class RunOver(Exception):
    """The run came to its end before the cell did: it is for another run."""


@dataclass(frozen=True, slots=True)
class Row:
    """What became of a cell."""

    cell: Cell
    pids: tuple[int, ...] = ()
    """Who died."""
    before: int = -1
    """Count of the first victim when it was seen at work."""
    died_at: int = -1
    """At its death."""
    after: int = -1
    """When it worked again."""
    recovered_s: float = 0.0
    """From death to work."""
    red: str = ""
    """What is wrong; empty when nothing is."""


class Drive:
    """One run under faults."""

    def __init__(self, launched: Launched, progress: Progress, recipe: Recipe) -> None:
        self.launched, self.progress = launched, progress
        self._steps = recipe.trainer.steps
        self._log_begin: dict[str, int] = {}
        """Where, in its log, a component's present life begins."""

    @property
    def nearly_over(self) -> bool:
        """Whether the run is too near its end for another cell."""
        return self.progress.version > self._steps - LAST_VERSIONS

    def cell(self, cell: Cell) -> Row:
        """Drive one cell. Raises RunOver, with nothing armed."""
        row = Row(cell)
        try:
            names = self._victims(cell)
            self._until_all_work(cell, names, "at work before its death")
            row = replace(row, before=self._count(cell.kinds[0], names))
            pids = self._kill(cell, names)
            self._release(cell.point)
            died = time.monotonic()
            row = replace(row, pids=tuple(pids.values()))
            if "supervisor" in cell.kinds:
                self.launched.start()
            self._await(lambda: not any(map(alive, pids.values())), "the victims are gone", 30)
            self._await(lambda: set(pids) <= self.launched.processes().keys(), "the victims are started again", WORKS_S)
            # Their successors have done nothing yet: they are still importing.
            row = replace(row, died_at=self._count(cell.kinds[0], pids))
            self._until_all_work(cell, pids, "at work after its death")
            now = self._newest(pids)
            row = replace(row, after=self._count(cell.kinds[0], now), recovered_s=time.monotonic() - died)
        except NotInTime as error:
            return replace(row, red=str(error))
        finally:
            self._release(cell.point)
        return replace(
            row, red="" if row.before <= row.died_at < row.after or cell.kinds[0] == "worker" else "stood still"
        )

    # ------------------------------------------------------------------------------------------------------------ death

    def _victims(self, cell: Cell) -> dict[str, int]:
        """Return the processes that the cell asks for, by name, as soon as they run."""
        if cell.kinds == ("supervisor",):
            wanted = {name for slots in SLOTS.values() for name in slots}
        else:
            wanted = {SLOTS[kind][cell.slot % len(SLOTS[kind])] for kind in cell.kinds}
        self._await(lambda: wanted <= self.launched.processes().keys(), f"{sorted(wanted)} run", WORKS_S)
        return {name: pid for name, pid in self.launched.processes().items() if name in wanted}

    def _kill(self, cell: Cell, names: dict[str, int]) -> dict[str, int]:
        """Bring the moment about; return who died, by name."""
        if not cell.point:
            time.sleep(cell.delay_s)
            return self._kill_now(cell, {**names, **self._newest(names)})
        before = self.launched.processes()
        self.launched.arm(cell.point, "kill" if cell.dies_by_itself else "stop", cell.nth)
        self._await(lambda: self.launched.hit(cell.point), f"{cell.point} is passed", HITS_S)
        hit = self.launched.hit(cell.point)
        assert hit is not None
        # One that a server's death left stuck may have started anew while the point was awaited.
        named = {pid: name for known in (before, self.launched.processes()) for name, pid in known.items()}
        if hit not in named:
            raise NotInTime(f"process {hit}, which passed {cell.point}, is none of the run's: {named}")
        name = named[hit]
        if cell.dies_by_itself:
            self._note_log(name)
            return {name: hit}
        self._await(lambda: stopped(hit), f"{name} is stopped at {cell.point}", 30)
        kind = next(kind for kind, slots in SLOTS.items() if name in slots)
        victims = {other: pid for other, pid in self._newest(names).items() if other not in SLOTS[kind]}
        victims |= {name: hit} if kind in cell.kinds or cell.kinds == ("supervisor",) else {}
        return self._kill_now(cell, victims)

    def _kill_now(self, cell: Cell, victims: dict[str, int]) -> dict[str, int]:
        if cell.kinds == ("supervisor",):
            killed = self.launched.kill_all() if cell.point else self.launched.kill_alone()
            del killed["up"]
            for name in killed:
                self._note_log(name)
            return killed
        for name, pid in victims.items():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self._note_log(name)
        return victims

    def _release(self, point: str) -> None:
        """Leave nothing armed, and nobody suspended."""
        if not point:
            return
        self.launched.disarm(point)
        hit = self.launched.hit(point)
        if hit is not None and stopped(hit):
            os.kill(hit, signal.SIGCONT)

    def _newest(self, names: dict[str, int]) -> dict[str, int]:
        """Return the same processes with the pids of now: one may have started itself anew meanwhile."""
        now = self.launched.processes()
        return {name: now.get(name, pid) for name, pid in names.items()}

    def _note_log(self, name: str) -> None:
        log = self.launched.log(name)
        self._log_begin[name] = log.stat().st_size if log.exists() else 0

    # ------------------------------------------------------------------------------------------------------------- work

    def _until_all_work(self, cell: Cell, names: dict[str, int], what: str) -> None:
        """Wait until every victim's own life has moved its own count."""
        waiters = [
            self._works(kind, name) for kind in cell.kinds for name in SLOTS.get(kind, ("",)) if name in {*names, ""}
        ]
        for kind_works in waiters:
            self._await(kind_works, f"{cell.who}, {cell.moment}: {what}", WORKS_S)

    def _works(self, kind: str, name: str) -> Waiter:
        """Return what tells whether a component has worked since now."""
        if kind == "worker":
            pid = self.launched.processes().get(name, 0)
            return lambda: self.progress.groups.get(self.launched.processes().get(name, pid), 0) > 0
        if kind == "curator":
            return self._curator_works(name)
        begin = self._count(kind, {})
        return lambda: self._count(kind, {}) > begin

    def _curator_works(self, name: str) -> Waiter:
        seen: dict[int, int] = {}

        def works() -> bool:
            offsets, held = self.progress.curated(), self._partitions_of(name)
            if any(offsets.get(partition, 0) > seen.get(partition, 1 << 62) for partition in held):
                return True
            seen.update({partition: offsets[partition] for partition in held if partition in offsets} | seen)
            return False

        return works

    def _partitions_of(self, name: str) -> set[int]:
        """Return what a curator's present life has restored and not given up, by its log."""
        held: set[int] = set()
        with self.launched.log(name).open("rb") as file:
            file.seek(self._log_begin.get(name, 0))
            for line in file:
                with suppress(ValueError, TypeError):
                    told = json.loads(line)
                    if told.get("event") == "state.restored":
                        held.add(_partition(told["partition"]))
                    elif told.get("event") == "partitions.revoked":
                        held -= {_partition(partition) for partition in told["partitions"]}
        return held

    def _count(self, kind: str, names: dict[str, int]) -> int:
        """Return how far a kind is, for its row."""
        if kind == "feeder":
            return self.progress.tasks
        if kind == "evaluator":
            return self.progress.evaluations
        if kind == "curator":
            return sum(self.progress.curated().values())
        if kind == "worker":
            return sum(self.progress.groups.get(pid, 0) for pid in names.values())
        return self.progress.version

    def _await(self, condition: Callable[[], object], what: str, limit_s: float) -> None:
        """Wait, unless the run is over. Raises NotInTime, RunOver."""

        def settled() -> bool:
            if condition():
                return True
            if self.progress.version >= self._steps or self.launched.ended() == 0:
                raise RunOver
            if self.launched.ended() is not None:
                raise NotInTime(f"`headrace up` ended with {self.launched.ended()} while waiting: {what}")
            return False

        until(settled, what, limit_s)


def _partition(name: str) -> int:
    return int(name.removesuffix("]").rpartition("[")[2])
