"""A relative path in a recipe is looked for beside the recipe first, then where the command runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.envs.data.rows import TaskFileError
from headrace.envs.data.sources import Source
from headrace.infra import plug_ins
from headrace.infra.errors import UsageError
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.settings import Policy
from headrace.ops.preflight.models import check_model_files
from headrace.producers.engines.served.server_settings import ServerSettings, find_python

POLICY = Policy(path="model")


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The folder of a recipe that was read, and the folder where the command runs."""
    beside, here = tmp_path / "recipes", tmp_path / "here"
    for folder in (beside, here):
        folder.mkdir()
    (beside / "mine.toml").write_text('extends = "arithmetic"\n')
    monkeypatch.setattr(plug_ins, "_beside", [])
    monkeypatch.chdir(here)
    load_recipe(str(beside / "mine.toml"))
    return beside, here


def test_files_models_and_programs_are_found_beside_the_recipe_before_the_working_folder(
    folders: tuple[Path, Path],
) -> None:
    beside, here = folders
    python = ServerSettings(python="bin/python")
    for folder in (here, beside):
        (folder / "data.jsonl").write_text(f'{{"question": "{folder.name}", "answer": "1"}}\n')
        (folder / "model").mkdir()
        (folder / "bin").mkdir()
        (folder / "bin/python").touch()
        rows = Source("data.jsonl").open_rows(["question"])
        assert [row["question"] for row in rows.scan()] == [folder.name]
        assert (POLICY.folder, find_python(python)) == (folder / "model", str(folder / "bin/python"))
    assert POLICY.path == "model", "the recipe goes to other machines as it was written"


def test_what_is_in_no_place_is_told_with_all_places(folders: tuple[Path, Path]) -> None:
    beside, here = folders
    for name, ask in (
        ("model", lambda: check_model_files("solver", POLICY)),
        ("data.jsonl", lambda: Source("data.jsonl").open_rows([])),
    ):
        with pytest.raises(
            (UsageError, TaskFileError), match=re.escape(f"neither {beside / name} nor {here / name} exists")
        ):
            ask()
    with pytest.raises((UsageError, TaskFileError), match=r"/nowhere/data[.]jsonl does not exist"):
        Source("/nowhere/data.jsonl").open_rows([])
