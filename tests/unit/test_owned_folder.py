"""Folders of one process: what is left of dead ones goes, and nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from headrace.infra import file_locks
from headrace.infra.file_locks import open_locked
from headrace.producers.engines import owned_folder
from headrace.producers.engines.owned_folder import LOCK, OwnedFolder

PREFIX = "servers-"


def test_the_folder_of_a_process_that_is_gone_is_removed_when_it_is_old_enough(tmp_path: Path) -> None:
    living, left, told = (OwnedFolder(tmp_path, PREFIX) for _ in range(3))
    (tmp_path / "somebody-else").mkdir()
    left.close(keeps_folder=True)
    told.close(keeps_folder=True)
    os.utime(left.path, (1, 1))
    new = OwnedFolder(tmp_path, PREFIX, keep_s=3600)
    assert {one.name for one in tmp_path.iterdir()} == {
        *(one.path.name for one in (living, told, new)),
        "somebody-else",
    }
    living.close()
    living.close()
    assert not living.path.exists()


@pytest.mark.parametrize("when", ["before it was locked", "while it was locked", "after it was locked"])
def test_a_folder_that_another_process_tidies_away_as_it_is_made_is_made_again(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[Path] = []

    def lock(path: Path) -> int | None:
        if lost:
            return open_locked(path)
        lost.append(path)
        if when == "while it was locked":
            return None
        if when == "before it was locked":
            shutil.rmtree(path.parent)
            return open_locked(path)
        descriptor = open_locked(path)
        shutil.rmtree(path.parent)
        return descriptor

    monkeypatch.setattr(owned_folder, "open_locked", lock)
    made = OwnedFolder(tmp_path, PREFIX)
    assert made.path not in {path.parent for path in lost}
    assert (made.path / LOCK).exists()
    made.close()


def test_nothing_is_taken_for_left_over_where_there_are_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> bool:
        raise OSError(file_locks.NO_LOCKS)

    monkeypatch.setattr(file_locks, "take_lock", refuse)
    made, other = OwnedFolder(tmp_path, PREFIX), OwnedFolder(tmp_path, PREFIX)
    assert made.path.exists()
    assert other.path.exists()
