"""`headrace clean`: stop and remove what a run left, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

from headrace.infra.embedded.data_folder import HOME, DataFolder, find_only_folder
from headrace.infra.embedded.kafka_server import EmbeddedKafka
from headrace.infra.embedded.store_server import EmbeddedStore
from headrace.infra.environment import cache_folder
from headrace.infra.errors import UsageError

MARKS_OF_FOLDER = ("run.json", "up.lock")


def folders_to_clean(data: Path | None, *, everything: bool, optional: bool) -> list[DataFolder]:
    """Return the folders that were asked for; with `optional` there may be none. Raises UsageError."""
    if data is not None:
        return [DataFolder(data)]
    found = sorted({path.parent for name in MARKS_OF_FOLDER for path in HOME.glob(f"*/{name}")})
    if everything or (optional and not found):
        return [DataFolder(path) for path in found]
    return [find_only_folder()]


def clean_folder(folder: DataFolder) -> int:
    """Stop leftovers and remove a data folder; return how many bytes it held.

    Raises FolderInUse while a run in it is running, UsageError when it is not a data folder of ours.
    """
    if not any((folder.root / name).exists() for name in MARKS_OF_FOLDER):
        raise UsageError(f"{folder.root} is not the data folder of a run (no run.json): not removed")
    with folder.hold("`headrace clean`"):
        for server in (EmbeddedKafka(folder.kafka), EmbeddedStore(folder.store)):
            if server.folder.is_dir():
                server.claim().stop()  # claiming stops what an earlier run left behind
        size = folder.size_bytes()
        shutil.rmtree(folder.root)
    return size


def clean_cache() -> Path:
    """Remove what all runs share: jars, start-up caches, workers' kept weights. They are fetched again when needed."""
    cache = cache_folder()
    shutil.rmtree(cache, ignore_errors=True)
    return cache
