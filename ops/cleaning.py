"""`headrace clean`: stop and remove what a run left, and nothing else."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from headrace.infra.embedded.data_folder import CLEANING, HOME, SUMMARY, SWEPT, DataFolder, find_only_folder
from headrace.infra.embedded.kafka_server import EmbeddedKafka
from headrace.infra.embedded.mirror_maker import MirrorMaker, MirrorPlan
from headrace.infra.embedded.server_process import ServerProcess
from headrace.infra.embedded.store_server import EmbeddedStore
from headrace.infra.environment import cache_folder
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Connection

MARKS_OF_FOLDER = ("run.json", "up.lock")
LEFT_BY_RUNS = frozenset({
    *MARKS_OF_FOLDER, "kafka", "store", "logs", "branch", "scale", "regions", "keys.sh", SUMMARY,
    "curated", "curated.json", "trained", "trained.json", "held-out.json", "experiment.json", "seconds.json",
    SWEPT, "swept-data.json", "comparison.json", "archive.txt", "output.txt",
    "ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm",
})  # fmt: skip
"""Names that commands make in a data folder. A sweep also makes a folder for each run, which holds SWEPT."""
LEFT_IN_CACHE = (
    "m2", "jars.lock", "bootstrap-*.checkpoint", "kafka-*.aot", "recording-*", "warm-starts", "ledgers", "steps",
    "mirrors", "weights/[0-9a-f][0-9a-f]",
)  # fmt: skip
"""Names that runs make in the cache folder. A user may have chosen a folder that also holds other files."""
NO_PLAN = MirrorPlan("", Connection(""), "", Connection(""), out=(), back=())
UNFINISHED = re.compile(r"(?:\.(?P<growing>.+)\.part|(?P<written>.+)\.[0-9a-f]{8}\.new)")
"""Names of the files that a killed process was writing."""


def folders_to_clean(data: Path | None, *, everything: bool, may_be_none: bool) -> list[DataFolder]:
    """Return the folders that the command line names; with `may_be_none` there may be none. Raises UsageError."""
    if data is not None:
        return [DataFolder(data)]
    found = sorted({path.parent for name in MARKS_OF_FOLDER for path in HOME.glob(f"*/{name}")})
    if everything or (may_be_none and not found):
        return [DataFolder(path) for path in found]
    return [find_only_folder(or_address=False)]


def clean_folder(folder: DataFolder) -> tuple[int, list[str]]:
    """Stop servers that still run, remove all that runs made in a data folder, and the folder if it is then empty.

    Return how many bytes were removed, and the names of the files that no run made, which are kept.

    Raises FolderInUse while a run in it is running, and UsageError if it is not a data folder of Headrace.
    """
    if not any((folder.root / name).exists() for name in MARKS_OF_FOLDER):
        raise UsageError(
            f"{folder.root} has no {' and no '.join(MARKS_OF_FOLDER)}, so it is not the data folder of a run, and "
            "nothing was removed: give the folder of a run by --data"
        )
    with folder.hold(CLEANING):
        for server in _list_servers(folder):
            if server.folder.is_dir():
                server.claim().stop()  # claiming stops what an earlier run left behind
        size = folder.size_bytes()
        kept = _clear_folder(folder.root)
        return size - (folder.size_bytes() if kept else 0), kept


def _list_servers(folder: DataFolder) -> Iterator[ServerProcess]:
    """Yield the servers that a run may have left, at home and in its regions; they can be claimed and stopped."""
    for place in (folder, *map(DataFolder, sorted(folder.regions.glob("*")))):
        yield from (EmbeddedKafka(place.kafka), EmbeddedStore(place.store), MirrorMaker(place.root / "mirror", NO_PLAN))


def clean_cache() -> tuple[Path, list[str]]:
    """Remove what all runs share: jars, start-up caches, workers' kept weights. They are fetched again when needed.

    Return the folder, and the names of the files in it that are not Headrace's, which are kept.
    """
    cache = cache_folder()
    _remove(path for pattern in LEFT_IN_CACHE for path in list(cache.glob(pattern)))
    for folder in (cache / "weights", cache):
        with suppress(OSError):  # it holds other files, or does not exist
            folder.rmdir()
    return cache, sorted(path.name for path in cache.iterdir()) if cache.is_dir() else []


def _clear_folder(root: Path) -> list[str]:
    """Remove what runs made in a folder, and in the run folders of a sweep below it; return the names that are kept."""
    kept = []
    for path in sorted(root.iterdir()):
        if (path / SWEPT).is_file():
            kept += [f"{path.name}/{name}" for name in _clear_folder(path)]
            continue
        found = UNFINISHED.fullmatch(path.name)
        name = (found["growing"] or found["written"]) if found else path.name
        if name in LEFT_BY_RUNS:
            _remove([path])
        else:
            kept.append(path.name)
    if not kept:
        root.rmdir()
    return kept


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
