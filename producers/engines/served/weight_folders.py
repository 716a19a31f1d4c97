"""Folders in memory with weights that a server on this host reads."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from headrace.infra.weights.files import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from headrace.infra.weights.tensor_file import split_safetensors
from headrace.infra.weights.tensors import Tensor
from headrace.producers.engines.contract import EngineError
from headrace.producers.engines.owned_folder import OwnedFolder

PREFIX = "headrace-weights-"
FILE = "model.safetensors"
ASIDE = ".aside"
"""Suffix of a folder that is about to be removed."""


class WeightFolders:
    """A folder of this process below `root`, with a folder for each version; folders of dead processes are removed.

    Any thread may call.

    Args:
        root: Where to write, on tmpfs if possible: `/dev/shm`.
        files: Policy to the folder of its config and tokenizer, which is copied.

    Raises EngineError where `root` cannot be written to.
    """

    def __init__(self, root: Path, files: Mapping[str, Path]) -> None:
        self._writing = threading.Lock()
        """Held while a version is written: two threads that need the same one would write into one folder."""
        try:
            self._owned = OwnedFolder(root, PREFIX)
            self.folder = self._owned.path
            for policy, folder in files.items():
                shutil.copytree(folder, self.folder / policy / "files")
        except OSError as error:
            raise EngineError(
                f"weights cannot be written to {root}: {error}; set rollout.engine.folder to another folder"
            ) from error

    def write(self, policy: str, version: int, weights: Mapping[str, Tensor]) -> Path:
        """Write a version with config and tokenizer; return its folder. Raises EngineError if there is no room."""
        folder = self.folder / policy / str(version)
        part = folder.with_suffix(".part")
        with self._writing:
            if folder.exists():
                return folder
            try:
                shutil.rmtree(part, ignore_errors=True)
                name = self._copy_files(policy, part)
                with (part / name).open("wb") as file:
                    file.writelines(split_safetensors(weights))
                part.rename(folder)
            except OSError as error:
                shutil.rmtree(part, ignore_errors=True)
                raise EngineError(
                    f"version {version} of {policy} cannot be written to {folder}: {error}; make room there, or set "
                    "rollout.engine.folder to another folder"
                ) from error
        return folder

    def find_base(self, policy: str) -> Path | None:
        """Return the folder of the adapter's base model; None for whole weights."""
        files = self.folder / policy / "files"
        return files if (files / ADAPTER_CONFIG).exists() else None

    def find(self, policy: str, version: int) -> Path | None:
        """Return the folder of a version; None if it is not written."""
        folder = self.folder / policy / str(version)
        return folder if folder.exists() else None

    def set_aside_others(self, policy: str, versions: Collection[int]) -> None:
        """Take the folders of all other versions of a policy out of use, which takes a moment."""
        with suppress(FileNotFoundError):  # closed: a load that this ends gets here too
            for folder in (self.folder / policy).iterdir():
                if folder.name.isdigit() and int(folder.name) not in versions:
                    with suppress(OSError):  # it only costs memory
                        folder.rename(folder.with_suffix(ASIDE))

    def remove_aside(self, policy: str) -> None:
        """Remove what was set aside, which may take seconds."""
        for folder in (self.folder / policy).glob(f"*{ASIDE}"):
            shutil.rmtree(folder, ignore_errors=True)

    def _copy_files(self, policy: str, part: Path) -> str:
        """Copy config and tokenizer into the folder; return the name of the weights file."""
        if base := self.find_base(policy):
            part.mkdir()
            shutil.copy(base / ADAPTER_CONFIG, part)
            return ADAPTER_WEIGHTS
        shutil.copytree(self.folder / policy / "files", part)
        return FILE

    def close(self) -> None:
        """Remove everything."""
        self._owned.close()
