from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.infra.embedded.data_folder import CLEANING, UP, DataFolder, FolderInUse


def test_the_size_of_a_folder_is_that_of_what_is_there_when_another_vanishes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stays", "vanishes"):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "inner" / "file").write_bytes(bytes(10_000))
    scandir = os.scandir

    def look(path: Any = ".") -> Any:
        if not isinstance(path, int) and Path(path).name == "vanishes":
            shutil.rmtree(path)
        return scandir(path)

    both = DataFolder(tmp_path).size_bytes()
    monkeypatch.setattr(os, "scandir", look)
    assert 10_000 <= DataFolder(tmp_path).size_bytes() < both
    assert not (tmp_path / "vanishes").exists()


def test_who_finds_a_folder_in_use_is_told_only_what_helps_its_own_command(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    watch = f"runs `headrace up` on {tmp_path} now: watch it with `headrace status --data {tmp_path}`"
    for by, rest in (
        (CLEANING, "or stop it with Ctrl-C"),
        (UP, "stop it with Ctrl-C, or give this run another folder by --data"),
    ):
        with folder.hold(UP), pytest.raises(FolderInUse) as caught, folder.hold(by):
            pass
        assert str(caught.value) == f"process {os.getpid()} {watch}, {rest}"
