"""Which data and environment a run goes by: recorded with its recipe, compared where the data is read, shown."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from made_recipes import sums_recipe

from headrace.app.views.environment_lines import environment_lines
from headrace.envs.contract import Environment
from headrace.envs.identity import find_version, identify_environment
from headrace.envs.openenv.environment import OpenEnv
from headrace.envs.registry import load_environment
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Connection, RunAddress
from headrace.infra.recipe.settings import Recipe
from headrace.infra.recipe.table import Named
from headrace.infra.run import revisions
from headrace.infra.run.progress import RunProgress
from headrace.infra.run.recorded_data import (
    OtherData,
    check_data,
    find_data_differences,
    find_other_versions,
    newest_environments,
)
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreAddress
from headrace.ops.preflight.table import check_names
from headrace.producers.feed import feeder
from headrace.schemas import codec
from headrace.schemas.records import ReadData, RecipeRevision, UsedEnvironment

ADDRESS = RunAddress(Connection("127.0.0.1:1"), "t")
WHERE = StoreAddress("127.0.0.1:1", "b", "key", "secret", prefix="run-1/", keys_file="/store.json")


def write_rows(file: Path, count: int) -> str:
    """Write that many problems; return the SHA-256 of the file."""
    rows = (json.dumps({"problem": f"{number} + 1?", "answer": str(number + 1)}) for number in range(count))
    file.write_text("".join(f"{row}\n" for row in rows))
    return hashlib.sha256(file.read_bytes()).hexdigest()


def recipe_of(file: Path) -> Recipe:
    workflow = {"env": {"use": "dataset", "path": str(file)}, "policies": {"solver": "solver"}}
    return sums_recipe(workflows={"math": workflow}, evaluate={"problems": 1})


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> Callable[..., RecipeRevision | None]:
    """`plan_revision` over revisions that stand on no topic, of a run that has trained."""

    def ask(recipe: Recipe, *before: RecipeRevision, new_recipe: bool = False) -> RecipeRevision | None:
        monkeypatch.setattr(revisions, "read_known_revisions", lambda _: before)
        monkeypatch.setattr(revisions, "read_progress", lambda *_: RunProgress(has_trained=True))
        return revisions.plan_revision(ADDRESS, recipe, WHERE, check_names(recipe), new_recipe=new_recipe)

    return ask


class Mislaid:
    name = "coins"

    @property
    def version(self) -> str:
        raise KeyError("May")


def test_an_environment_is_known_by_its_name_its_package_and_the_content_of_its_data(tmp_path: Path) -> None:
    digest = write_rows(tmp_path / "a.jsonl", 40)
    found = identify_environment(
        "math", load_environment("dataset", 1, {"path": str(tmp_path / "a.jsonl")}), Named(use="dataset")
    )
    assert (found.workflow, found.name) == ("math", "dataset")
    assert found.version.startswith("headrace ")
    assert found.data == (ReadData(str(tmp_path / "a.jsonl"), 40, digest),)
    made = identify_environment("sums", load_environment("arithmetic", 1, {}), Named(use="arithmetic"))
    assert (made.name, made.data) == ("arithmetic", ())
    assert made.settings_hash not in ("", found.settings_hash), "the settings are known too"
    own = cast("Environment", SimpleNamespace(name="coins", version="coins of May"))
    assert find_version(own) == "coins of May"
    with pytest.raises(
        UsageError, match=r"^environment coins: its `version` .*\(KeyError: 'May' at test_rec.* in version\)"
    ):
        find_version(cast("Environment", Mislaid()))
    assert find_version(cast("Environment", OpenEnv(1, "http://127.0.0.1:1"))) == "", "its server is away"


def test_a_run_records_its_data_and_goes_on_after_a_change_only_by_a_new_revision(
    tmp_path: Path, settled: Callable[..., RecipeRevision | None]
) -> None:
    file = tmp_path / "a.jsonl"
    old = write_rows(file, 40)
    first = settled(recipe_of(file))
    assert first is not None
    [recorded] = first.environments
    assert recorded.data == (ReadData(str(file), 40, old),)
    assert codec.decode(codec.encode(first), RecipeRevision) == first
    began = replace(first, store=revisions.describe_store(WHERE))
    assert settled(recipe_of(file), began) is None, "nothing has changed"

    new = write_rows(file, 41)
    with pytest.raises(UsageError, match="--new-recipe") as refused:
        settled(recipe_of(file), began)
    assert f"data of math, {file}: 40 rows, {old[:12]} -> 41 rows, {new[:12]}\n" in str(refused.value)
    changed = settled(recipe_of(file), began, new_recipe=True)
    assert changed is not None
    assert (changed.revision, changed.recipe) == (1, began.recipe)
    assert settled(recipe_of(file), began, changed) is None
    swapped = replace(changed, revision=2, environments=())
    assert settled(recipe_of(file), began, changed, swapped) is None, "a swap records no data"


def test_a_run_of_before_these_records_goes_on_with_whatever_is_there(
    tmp_path: Path, settled: Callable[..., RecipeRevision | None]
) -> None:
    write_rows(tmp_path / "a.jsonl", 40)
    recipe = recipe_of(tmp_path / "a.jsonl")
    old = revisions.build_revision("run-1", 0, recipe, revisions.describe_store(WHERE))
    assert settled(recipe, old) is None


def used(*data: ReadData, workflow: str = "math") -> UsedEnvironment:
    return UsedEnvironment(workflow, "dataset", "headrace 1", data)


def test_data_is_compared_by_workflow_and_path_and_another_version_is_only_told() -> None:
    train, other = ReadData("d", 9, "aa"), ReadData("d", 8, "bb")
    known = [used(train, other)]
    newer = [replace(used(train, other), version="headrace 2")]
    check_data(known, newer)
    assert list(find_other_versions(known, newer)) == [("math", "headrace 1", "headrace 2")]
    assert not list(find_other_versions(known, [replace(newer[0], version="")])), "a server was away"
    assert not list(find_other_versions([replace(known[0], version="")], newer))
    check_data((), [used(train)])
    check_data(known, [used(ReadData("elsewhere", 9, "cc")), used(other, workflow="more")])
    assert find_data_differences(known, [used(train, train)]) == [
        "data of math, d: 9 rows, aa and 8 rows, bb -> 9 rows, aa and 9 rows, aa"
    ]
    with pytest.raises(OtherData, match=r"(?s)data of math, d: 9 rows.*--new-recipe"):
        check_data(known, [used(train)])


def test_what_a_revision_goes_by_is_the_newest_of_each_workflow_until_then() -> None:
    first, later, beside = used(ReadData("d", 1, "a")), used(ReadData("d", 2, "b")), used(workflow="sums")
    assert newest_environments([(first, beside), (), (later,)]) == (later, beside)
    recipe = sums_recipe()
    run = Run(ADDRESS, "run-1", (recipe, recipe, recipe), WHERE, environments={0: (first, beside), 2: (later,)})
    assert run.environments_at(1) == (first, beside)
    assert run.environments_at(run.revision) == (later, beside)
    assert replace(run, environments={}).environments_at(2) == ()


def test_a_feeder_does_not_start_over_other_data_than_the_run_goes_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.jsonl"
    write_rows(file, 40)
    recipe = recipe_of(file)
    recorded = replace(check_names(recipe)[0], data=(ReadData(str(file), 39, "other"),))
    run = Run(ADDRESS, "run-1", (recipe,), WHERE, environments={0: (recorded,)})
    monkeypatch.setattr(feeder, "read_revisions", lambda _: [RecipeRevision()])
    with pytest.raises(OtherData, match="39 rows, other -> 40 rows"):
        feeder.open_feeder(run, cast("Any", None))


def test_data_and_environment_are_shown_in_a_line_for_each_workflow() -> None:
    shown = environment_lines([used(ReadData("a.jsonl", 8792, "ab" * 32)), UsedEnvironment("own", "coins")])
    assert list(shown) == ["math: dataset (headrace 1): a.jsonl, 8,792 rows, abababababab", "own: coins"]
