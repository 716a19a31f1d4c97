"""What `up --branch` begins with, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from headrace.app.launcher import launcher
from headrace.app.launcher.launcher import UpRequest
from headrace.app.launcher.look_before import Looked
from headrace.infra.embedded.data_folder import DataFolder, RunNotes
from headrace.infra.errors import UsageError
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.settings import Recipe
from headrace.ops import branch as branches
from headrace.ops.branch import BEGAN, Branch, BranchPoint, branch

RECIPE = load_recipe("arithmetic")


@pytest.mark.parametrize(
    ("text", "point"),
    [
        (".headrace/sums@40", BranchPoint(".headrace/sums", 40)),
        ("kafka://user@host:9092/sums@best", BranchPoint("kafka://user@host:9092/sums", None)),
    ],
)
def test_a_branch_names_a_run_and_a_version(text: str, point: BranchPoint) -> None:
    assert BranchPoint.of(text) == point


@pytest.mark.parametrize("text", ["sums", "@40", "sums@", "sums@newest", "sums@-1", "sums@²"])
def test_what_names_no_run_and_version_is_refused_with_the_forms_that_there_are(text: str) -> None:
    with pytest.raises(UsageError, match=r"give the data folder or the address of a run.*@best"):
        BranchPoint.of(text)


def write_copy(folder: Path, text: str) -> None:
    """Write what `--branch` with this text leaves of a run that need not be there."""
    (folder / "solver").mkdir(parents=True)
    (folder / BEGAN).write_text(json.dumps({"branch": text, "parent": f"{text.partition('@')[0]}-1 solver@4"}))


def test_a_folder_that_holds_a_branch_goes_on_as_one_and_takes_no_other(tmp_path: Path) -> None:
    data = DataFolder(tmp_path)
    write_copy(data.branch, "gone@4")
    data.write(RunNotes("arithmetic", "127.0.0.1:1", embedded_kafka=True))

    for text in ("gone@4", ""):
        found = branch(RECIPE, text, data)
        policy = found.recipe.policies["solver"]
        assert found.parent == "gone-1 solver@4"
        assert (policy.path, policy.model, policy.warm_start) == (str(data.branch / "solver"), {}, None)
        assert found.recipe.trainer == RECIPE.trainer
    with pytest.raises(UsageError, match=r"began with --branch gone@4: give the same --branch"):
        branch(RECIPE, "gone@5", data)


def test_a_start_that_became_no_run_binds_its_folder_to_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = list[str]()

    def copy(_recipe: Recipe, _point: BranchPoint, text: str, folder: Path) -> None:
        copied.append(text)
        write_copy(folder, text)

    monkeypatch.setattr(branches, "_copy_branch", copy)
    data = DataFolder(tmp_path)
    for text in ("one@4", "one@4", "other@4"):
        assert branch(RECIPE, text, data).parent == f"{text.partition('@')[0]}-1 solver@4"
    assert copied == ["one@4", "other@4"], "the same one is there already"
    assert branch(RECIPE, "", data) == Branch(RECIPE, ""), "it begins as its recipe says"
    assert not data.branch.exists()


@pytest.mark.parametrize("text", ["one@4", ""])
def test_a_copy_of_which_the_removal_was_interrupted_is_no_branch(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branches, "_copy_branch", lambda *given: write_copy(given[-1], given[-2]))
    data = DataFolder(tmp_path)
    write_copy(data.branch, "one@4")

    def stop(folder: Path) -> None:
        assert [path.name for path in folder.iterdir()] == ["solver"], "what makes it a branch goes first"
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped:
        stopped.setattr(branches.shutil, "rmtree", stop)
        with pytest.raises(KeyboardInterrupt):
            branch(RECIPE, "other@4", data)
    found = branch(RECIPE, text, data)
    assert (found.parent, data.branch.exists()) == (("one-1 solver@4", True) if text else ("", False))


def test_an_address_without_its_scheme_is_taken_for_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the run address '10\.0\.0\.7:9092/arithmetic': give kafka://10"):
        branch(RECIPE, "10.0.0.7:9092/arithmetic@40", DataFolder(tmp_path))


def test_a_run_that_began_otherwise_becomes_no_branch(tmp_path: Path) -> None:
    data = DataFolder(tmp_path)
    data.write(RunNotes("arithmetic", "127.0.0.1:1", embedded_kafka=True))
    with pytest.raises(UsageError, match="did not begin as a branch: leave out --branch"):
        branch(RECIPE, "other@4", data)


def test_up_holds_what_it_copied_until_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataFolder(tmp_path)
    looks = list[bool]()

    def look(*_: object) -> Looked:
        looks.append(data.find_owner() is not None)
        return Looked((), ())

    class Launch:
        def __init__(self, request: UpRequest, *_: object) -> None:
            self.parent = request.parent

        def run(self) -> int:
            looks.append(data.find_owner() is not None)
            return len(self.parent)

        def stop(self, _within_s: float) -> None:
            pass

    monkeypatch.setattr(branches, "_copy_branch", lambda *given: write_copy(given[-1], given[-2]))
    monkeypatch.setattr(launcher, "check_before_start", look)
    monkeypatch.setattr(launcher, "Launcher", Launch)
    assert launcher.up(UpRequest(RECIPE, tmp_path, branch="one@4"), Console()) == len("one-1 solver@4")
    assert looks == [True, True]
    assert launcher.up(UpRequest(RECIPE, tmp_path), Console()) == 0, "it begins as its recipe says"
    assert launcher.up(UpRequest(RECIPE, tmp_path), Console()) == 0
    assert (looks[4:], data.find_owner()) == ([False, True], None)
