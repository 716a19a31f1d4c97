"""What `up --branch` begins with, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.infra.embedded.data_folder import DataFolder, RunNotes
from headrace.infra.errors import UsageError
from headrace.infra.recipe.recipe_file import load_recipe
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


def write_copy(data: DataFolder, policy: str = "solver") -> None:
    """Write what `--branch gone@4` leaves of a run that need not be there."""
    (data.branch / policy).mkdir(parents=True)
    (data.branch / BEGAN).write_text(json.dumps({"branch": "gone@4", "parent": f"gone-1 {policy}@4"}))


def test_a_folder_that_holds_a_branch_goes_on_as_one_and_takes_no_other(tmp_path: Path) -> None:
    data = DataFolder(tmp_path)
    write_copy(data)
    data.write(RunNotes("arithmetic", "127.0.0.1:1", embedded_kafka=True))

    for text in ("gone@4", ""):
        found = branch(RECIPE, text, data)
        policy = found.recipe.policies["solver"]
        assert found.parent == "gone-1 solver@4"
        assert (policy.path, policy.model, policy.warm_start) == (str(data.branch / "solver"), {}, None)
        assert found.recipe.trainer == RECIPE.trainer
    with pytest.raises(UsageError, match=r"began with --branch gone@4: give the same --branch"):
        branch(RECIPE, "gone@5", data)


@pytest.mark.parametrize("text", ["", "other@4", "gone@5", "no version"])
def test_a_copy_of_a_start_that_became_no_run_is_neither_begun_with_unasked_nor_removed(
    text: str, tmp_path: Path
) -> None:
    data = DataFolder(tmp_path)
    write_copy(data)
    with pytest.raises(
        UsageError, match=r"give --branch gone@4 to begin with these weights, or remove .*branch to begin without them"
    ):
        branch(RECIPE, text, data)
    assert (data.branch / "solver").is_dir()
    assert branch(RECIPE, "gone@4", data).parent == "gone-1 solver@4"


def test_a_copy_for_a_recipe_of_other_policies_is_not_begun_with(tmp_path: Path) -> None:
    data = DataFolder(tmp_path)
    write_copy(data, "judge")
    with pytest.raises(UsageError, match=r"--branch gone@4 copied no weights of policy solver: remove .*branch"):
        branch(RECIPE, "gone@4", data)


def test_a_folder_of_ones_own_beside_a_run_is_no_branch_and_stays(tmp_path: Path) -> None:
    data = DataFolder(tmp_path)
    data.branch.mkdir()
    (data.branch / "notes").touch()
    assert branch(RECIPE, "", data) == Branch(RECIPE, "")
    assert (data.branch / "notes").exists()


def test_a_run_that_began_otherwise_becomes_no_branch(tmp_path: Path) -> None:
    data = DataFolder(tmp_path)
    data.write(RunNotes("arithmetic", "127.0.0.1:1", embedded_kafka=True))
    with pytest.raises(UsageError, match="did not begin as a branch: leave out --branch"):
        branch(RECIPE, "other@4", data)
