"""The source of a data set's rows: a file, a folder or the hub, recognised by the name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.envs.data.rows import Rows, TaskFileError
from headrace.infra.errors import UsageError
from headrace.infra.recipe.recipe_paths import describe_places, find_path

HUB = "hub:"
DEFAULTS = {"split": "train", "config": "", "revision": ""}
"""Keys that choose a part of the data."""
_HUB_NAME = re.compile(r"[\w-]+/[\w-]+")
"""Matches names of data sets on the hub, but not file names with an extension."""
_ELSEWHERE = re.compile(r"[a-z0-9]+://")


@dataclass(frozen=True, slots=True)
class Source:
    """Names a set of rows."""

    path: str
    """JSONL or Parquet file, a folder of Parquet files or of `datasets`, or `hub:owner/name`."""
    split: str = "train"
    """Split, for data with several: a folder of `datasets`, the hub."""
    config: str = ""
    """Configuration of a data set on the hub."""
    revision: str = ""
    """Commit, tag or branch on the hub; empty for the newest."""

    def __str__(self) -> str:
        """Return the source's name in messages."""
        return self.path

    def refuse_ignored(self, given: Mapping[str, str], where: str = "") -> None:
        """Raise TaskFileError for a given `split`, `config` or `revision` that has no effect on these rows.

        Args:
            given: Settings in the recipe by key.
            where: Prefix of the keys in the recipe.
        """
        from headrace.envs.data.arrow_rows import SAVED_SPLITS

        if self.path.startswith(HUB):
            return
        chosen = {"split"} if (_find_path(self.path) / SAVED_SPLITS).is_file() else set()
        if idle := [key for key in DEFAULTS if key not in chosen and given.get(key, DEFAULTS[key]) != DEFAULTS[key]]:
            named = " and ".join(f"{where}{key} = {given[key]!r}" for key in idle)
            has = (
                "the folder has splits, but no configs or revisions"
                if chosen
                else "the path is neither a folder with splits nor a data set of the hub"
            )
            raise TaskFileError(f"{self.path}: leave out {named}, which would have no effect, because {has}")

    def open_rows(self, columns: Sequence[str]) -> Rows:
        """Open the rows to read `columns`. Raises TaskFileError."""
        from headrace.envs.data.arrow_rows import SAVED, SAVED_SPLITS, open_hub, open_parquet, open_saved
        from headrace.envs.data.jsonl_rows import JsonlRows

        if self.path.startswith(HUB):
            return open_hub(self.path.removeprefix(HUB), self.config, self.split, self.revision, columns)
        path = _find_path(self.path)
        if path.is_dir():
            if (path / SAVED).is_file() or (path / SAVED_SPLITS).is_file():
                return open_saved(path, self.split, columns)
            files = sorted(path.glob("*.parquet"))
            if not files:
                raise TaskFileError(
                    f"{path} is a folder without Parquet files, and save_to_disk of `datasets` did not write it: name "
                    "a folder with Parquet files, a folder written by save_to_disk, or a file"
                )
            return open_parquet(files, self.path, columns)
        if path.suffix == ".parquet":
            return open_parquet([path], self.path, columns)
        return JsonlRows(path)


def _find_path(given: str) -> Path:
    """Return a file or folder of this machine. Raises TaskFileError for an invalid path."""
    if _ELSEWHERE.match(given):
        raise TaskFileError(
            f"{given} is not a path on this machine: download it and give the local path; or, for a data set of the "
            f"hub, write {HUB}owner/name"
        )
    if not given or "\0" in given:
        raise TaskFileError(f"path must name a file or a folder, got {given!r}")
    try:
        path = find_path(given)
    except UsageError as error:
        raise TaskFileError(str(error)) from error
    if not path.exists():
        hub = f"; if you mean the data set of that name on the hub, write {HUB}{given}"
        raise TaskFileError(
            f"cannot read tasks from {given}: {describe_places(given)}{hub if _HUB_NAME.fullmatch(given) else ''}"
        )
    return path
