"""Folders of weights in memory: whole or not there, few at a time, and gone with their process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from patience import PATIENCE_S
from safetensors.numpy import load_file
from told_lock import ToldLock

from headrace.infra.weights.tensor_file import split_safetensors
from headrace.infra.weights.tensors import Tensor
from headrace.producers.engines.contract import EngineError
from headrace.producers.engines.served import weight_folders
from headrace.producers.engines.served.weight_folders import FILE, WeightFolders

NUMBERS = np.arange(6, dtype=np.float32).reshape(2, 3)
WEIGHTS = {"layer": Tensor("F32", (2, 3), memoryview(NUMBERS.tobytes()))}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "memory"
    folder.mkdir()
    return folder


def test_a_version_is_a_folder_that_a_server_can_read(files: Path, root: Path) -> None:
    folders = WeightFolders(root, {"solver": files})
    written = folders.write("solver", 3, WEIGHTS)
    assert sorted(file.name for file in written.iterdir()) == ["config.json", FILE]
    np.testing.assert_array_equal(load_file(written / FILE)["layer"], NUMBERS)
    assert folders.find("solver", 3) == written
    assert folders.find("solver", 4) is None
    folders.close()
    assert not list(root.iterdir())


def test_only_the_versions_that_are_needed_stay(files: Path, root: Path) -> None:
    folders = WeightFolders(root, {"solver": files, "judge": files})
    for version in (1, 2, 3):
        folders.write("solver", version, WEIGHTS)
    folders.write("judge", 1, WEIGHTS)
    folders.set_aside_others("solver", {2, 3})
    assert [folders.find("solver", version) is not None for version in (1, 2, 3)] == [False, True, True]
    folders.remove_aside("solver")
    assert sorted(folder.name for folder in (folders.folder / "solver").iterdir()) == ["2", "3", "files"]
    assert folders.find("judge", 1)
    folders.close()


def test_nothing_is_left_to_set_aside_once_all_is_removed(files: Path, root: Path) -> None:
    folders = WeightFolders(root, {"solver": files})
    folders.write("solver", 1, WEIGHTS)
    folders.close()
    folders.set_aside_others("solver", {1})
    folders.remove_aside("solver")


def test_a_process_removes_what_dead_ones_left_and_nothing_of_living_ones(files: Path, root: Path) -> None:
    living = WeightFolders(root, {"solver": files})
    (root / "headrace-weights-dead" / "solver" / "1").mkdir(parents=True)
    (root / "somebody-else").mkdir()
    other = WeightFolders(root, {"solver": files})
    assert {folder.name for folder in root.iterdir()} == {living.folder.name, other.folder.name, "somebody-else"}
    living.close()
    other.close()


def test_a_version_that_was_not_written_whole_is_not_there(files: Path, root: Path) -> None:
    folders = WeightFolders(root, {"solver": files})
    (folders.folder / "solver" / "1.part").write_text("no folder")
    with pytest.raises(EngineError, match=r"version 1 of solver cannot be written to .*1: "):
        folders.write("solver", 1, WEIGHTS)
    assert folders.find("solver", 1) is None
    folders.close()
    with pytest.raises(EngineError, match=r"set rollout\.engine\.folder to another folder"):
        WeightFolders(root / "missing" / "folder", {"solver": files})


def test_two_that_write_one_version_at_once_get_one_whole_folder(
    files: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = WeightFolders(root, {"solver": files})
    came, first_is_over = threading.Event(), threading.Event()
    monkeypatch.setattr(folders, "_writing", cast(threading.Lock, ToldLock(came)), raising=False)
    others: list[Future[Path]] = []

    with ThreadPoolExecutor(1) as pool:

        def split_slowly(weights: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
            head, *rest = split_safetensors(weights)
            yield head
            if others:  # the second one, which is not to write at all
                came.set()
                first_is_over.wait(PATIENCE_S)
            else:
                others.append(pool.submit(folders.write, "solver", 7, WEIGHTS))
                assert came.wait(PATIENCE_S)
            yield from rest

        monkeypatch.setattr(weight_folders, "split_safetensors", split_slowly)
        written = folders.write("solver", 7, WEIGHTS)
        try:
            np.testing.assert_array_equal(load_file(written / FILE)["layer"], NUMBERS)
        finally:
            first_is_over.set()
        assert others[0].result(PATIENCE_S) == written
    folders.close()
