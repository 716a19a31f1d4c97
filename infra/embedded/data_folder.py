"""The data folder of a run: its servers, logs and notes, and the process that uses it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headrace.infra.atomic_files import write_atomically
from headrace.infra.environment import expand_user
from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.file_locks import open_locked, take_lock

HOME = Path(".headrace")
"""Default parent of data folders, below the working directory, with one folder per run; `--data` names another."""
SWEPT, SUMMARY = "recipe.json", "summary.json"
"""Files in a run's folder below that of a sweep: its request, which only `headrace compare` writes, and what
came of it, once it is done."""
UP, COMPARING = "`headrace up`", "`headrace compare`"
LOOKING = "a command that reads the run, such as `headrace status`,"
CLEANING, REPLAYING = "`headrace clean`", "`headrace replay`"
"""Who holds a folder: a launcher, or a command on a stopped run."""
LAUNCHERS = frozenset({UP, COMPARING})
RESTING = frozenset({LOOKING, CLEANING, REPLAYING})
"""Holders under which no process of a run plays, curates or trains."""


class FolderInUse(HeadraceError):
    """Another command runs on the folder."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The cost of a run so far, over all its starts."""

    wall_s: float = 0.0
    """Wall seconds under `headrace up`."""
    cpu: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Process name to CPU seconds: `process` and, as a part of it, `librdkafka`."""

    def add(self, wall_s: float, cpu: Mapping[str, Mapping[str, float]]) -> Effort:
        """Return the sum with another stretch."""
        total = {
            name: {
                what: self.cpu.get(name, {}).get(what, 0.0) + cpu.get(name, {}).get(what, 0.0)
                for what in ("process", "librdkafka")
            }
            for name in {**self.cpu, **cpu}
        }
        return Effort(self.wall_s + wall_s, total)


@dataclass(frozen=True, slots=True)
class RunNotes:
    """Content of `run.json`: enough to find the run again, without data of the topics."""

    run: str
    bootstrap: str
    embedded_kafka: bool
    run_id: str = ""
    finished: bool = False
    """Whether the run has ended and all open work is concluded."""
    effort: Effort = Effort()

    @property
    def address(self) -> str:
        """The run as `--run` takes it."""
        return f"kafka://{self.bootstrap}/{self.run}"


class DataFolder:
    """A run's folder; constructing touches nothing."""

    def __init__(self, root: Path) -> None:
        self.root = expand_user(root, "the data folder").absolute()
        self.kafka = self.root / "kafka"
        self.store = self.root / "store"
        self.logs = self.root / "logs"
        self.ledger = self.root / "ledger.sqlite"
        self.scale = self.root / "scale"
        """Folder of what `headrace scale` asks for."""
        self.regions = self.root / "regions"
        """Folder of a folder for each region, with its servers."""
        self.branch = self.root / "branch"
        """For a branch: folder with the initial weights of each policy."""
        self._notes = self.root / "run.json"
        self._lock = self.root / "up.lock"

    def read(self) -> RunNotes | None:
        """Return the folder's notes; None if it holds no run. Raises HeadraceError if they cannot be read."""
        if not self._notes.exists():
            return None
        try:
            raw: dict[str, Any] = json.loads(self._notes.read_bytes())
            return RunNotes(**{**raw, "effort": Effort(**raw["effort"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise HeadraceError(
                f"{self._notes} cannot be read ({error!r}): put it back from a copy, or remove the run by "
                f"`headrace clean --data {self.root}`"
            ) from error

    def require_notes(self) -> RunNotes:
        """Return the folder's notes. Raises UsageError when it holds no run."""
        notes = self.read()
        if notes is None and self.list_runs_of_sweep():
            raise UsageError(
                f"{self.root} holds a sweep over an archive, made by `headrace compare`. The runs of a sweep have no "
                f"topics, so this command cannot read them. The result of a run is in {self.root}/RUN/{SUMMARY}; "
                "`headrace compare` with the same sweep file shows all results"
            )
        if notes is None:
            raise UsageError(
                f"{self.root} holds no run: begin one by `headrace up RECIPE`, or name the folder of a run by --data"
            )
        return notes

    def write(self, notes: RunNotes) -> None:
        """Replace the folder's notes."""
        write_atomically(self._notes, json.dumps(asdict(notes), indent=1).encode())

    def list_runs_of_sweep(self) -> list[str]:
        """Return the begun or done runs of a sweep's folder; none if this is not a sweep's folder."""
        return sorted(path.parent.name for path in self.root.glob(f"*/{SWEPT}"))

    def sweep(self) -> DataFolder | None:
        """Return the sweep's folder, if this is the folder of a run in a sweep; else None."""
        return DataFolder(self.root.parent) if (self.root / SWEPT).exists() else None

    @contextmanager
    def hold(self, by: str) -> Iterator[None]:
        """Hold the folder for this process. Raises FolderInUse while another holds it, UsageError if not writable.

        Args:
            by: Name of the holder in the error of another process: "`headrace up`".
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock = open_locked(self._lock)
        except OSError as error:
            raise UsageError(f"cannot use the data folder {self.root}: {error}; give another by --data") from error
        if lock is None:
            pid, other = self.find_holder() or (0, "")
            watch = f"watch it with `headrace status --data {self.root}`" if other == UP else "wait until it ends"
            stop = "or stop it with Ctrl-C"
            if by not in {LOOKING, CLEANING}:  # those are about the run in this folder
                stop = "stop it with Ctrl-C, or give this run another folder by --data"
            raise FolderInUse(
                f"{f'process {pid}' if pid else 'another process'} runs {other or 'another command'} on {self.root} "
                f"now: {watch}, {stop}"
            )
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n{by}".encode(), 0)
            yield
        finally:
            os.close(lock)

    def find_holder(self) -> tuple[int, str] | None:
        """Return the pid and command of the process that holds the folder; None if nobody does."""
        try:
            with self._lock.open("rb") as file:
                if not take_lock(file.fileno(), shared=True):
                    pid, _, by = file.read(200).decode().partition("\n")
                    return int(pid or 0), by
        except OSError:
            return None
        return None

    def find_holder_start_ms(self) -> int:
        """Return since when the holder has the folder, in ms since the epoch; 0 if unknown."""
        try:
            return self._lock.stat().st_mtime_ns // 1_000_000
        except OSError:
            return 0

    def size_bytes(self) -> int:
        """Return the folder's size on disk."""
        walked = os.walk(self.root)  # ignores folders that vanish meanwhile
        return sum(_size(Path(folder, name)) for folder, folders, files in walked for name in (*folders, *files))


def _size(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except OSError:  # servers may be writing: files vanish while the folder is walked
        return 0


def data_folder_of(run: str, given: Path | None) -> DataFolder:
    """Return the folder of a run: the given folder, else `.headrace/<run>`."""
    return DataFolder(given or HOME / run)


def find_only_folder(*, or_address: bool = True) -> DataFolder:
    """Return the only data folder below the working directory. Raises UsageError if there is none or several.

    `or_address` says whether the command also takes --run.
    """
    found = sorted(path.parent for path in HOME.glob("*/run.json"))
    if len(found) == 1:
        return DataFolder(found[0])
    if not found:
        other = " or --run kafka://HOST:PORT/RUN" if or_address else ""
        raise UsageError(f"no run in {HOME.absolute()}: name one by --data FOLDER{other}")
    raise UsageError(f"several runs in {HOME.absolute()}: name one by --data: {', '.join(str(f) for f in found)}")
