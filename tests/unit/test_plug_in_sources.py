"""Hashes of plug-ins' sources: what they depend on, how they come to stand in a run's record, who is refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Connection, RunAddress
from headrace.infra.recipe import plug_in_sources
from headrace.infra.recipe.plug_in_sources import (
    OtherSource,
    PlugInSource,
    SourceChanged,
    all_plug_ins,
    check_sources,
    curator_plug_ins,
    feeder_plug_ins,
    hash_sources,
    newest_sources,
    read_source_on_disk,
    rollout_plug_ins,
    trainer_plug_ins,
    warn_of_differing_sources,
)
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.settings import Recipe, TrainerSettings
from headrace.infra.recipe.table import Named
from headrace.infra.run import revisions
from headrace.infra.run.progress import RunProgress
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreAddress
from headrace.ops import swap
from headrace.producers.rollout.revision_check import RevisionCheck
from headrace.schemas import codec
from headrace.schemas.records import RecipeRevision
from headrace.trainers.learner.numerics import fingerprint_plug_ins

ADDRESS = RunAddress(Connection("127.0.0.1:1"), "t")
WHERE = StoreAddress("127.0.0.1:1", "b", "key", "secret", prefix="run-1/", keys_file="/store.json")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def hash_of(top: str) -> str:
    found = read_source_on_disk(top)
    assert found is not None
    return found.hash


def test_the_source_of_a_module_is_its_file_wherever_it_lies(here: Path, tmp_path: Path) -> None:
    file = written(here / "its_rules.py", "a = 1\n")
    first = hash_of("its_rules")

    assert read_source_on_disk("its_rules") == PlugInSource(file, first)
    written(here / "its_other.py", "b = 1\n")
    assert hash_of("its_rules") == first, "a module beside it is no part of it"
    moved = here / "elsewhere" / "its_rules.py"
    moved.parent.mkdir()
    shutil.copy(file, moved)
    file.unlink()
    os.environ["HEADRACE_PLUG_INS"] = str(moved.parent)
    try:
        assert read_source_on_disk("its_rules") == PlugInSource(moved, first)
        moved.write_text("a = 2\n")
        assert hash_of("its_rules") != first
    finally:
        del os.environ["HEADRACE_PLUG_INS"]


def test_the_source_of_a_package_is_all_its_python_below_the_top_in_name_order(here: Path) -> None:
    top = here / "its_package"
    files = {"__init__.py": "", "rules.py": "a = 1\n", "deep/more.py": "b = 1\n"}
    for name in reversed(files):
        written(top / name, files[name])
    first = hash_of("its_package")
    for name, text in (("notes.txt", "x"), ("deep/.#more.py", "x"), (".copies/rules.py", "x"), ("data.json", "1")):
        written(top / name, text)

    assert hash_of("its_package") == first, "what is no Python, or hidden, is no part of it"
    seen = {first}
    for name in files:
        before = (top / name).read_text()
        written(top / name, f"{before}# changed\n")
        seen.add(hash_of("its_package"))
        written(top / name, before)
    (top / "rules.py").rename(top / "ruled.py")
    seen.add(hash_of("its_package"))
    assert len(seen) == 2 + len(files)
    shutil.rmtree(top)
    assert read_source_on_disk("its_package") is None


def recipe(**tables: Any) -> Recipe:
    return Recipe.model_validate({**load_recipe("arithmetic-shadow").model_dump(mode="json"), **tables})


def test_each_component_knows_its_own_plug_ins_and_nothing_shipped_is_one() -> None:
    mixed = {"use": "mixture", "sources": [{"use": "my_worlds:Chess"}, {"use": "arithmetic"}]}
    asked = recipe(
        workflows={"sums": {"env": mixed, "workflow": "my_plays.deep:duel", "policies": {"solver": "solver"}}},
        rollout={"engine": "my_engine:opened"},
        feed={"selector": ["my_picks:Mine", "filter_solved"]},
        curate={"chain": ["validate", "my_rules:Mine", "headrace.consumers.algorithms.pods:Pods"]},
        shadows={"beside": {"chain": ["my_rules:Other"], "trainer": {"loss": "my_losses:other"}}},
    )

    assert rollout_plug_ins(asked, "sums") == ("my_worlds:Chess", "my_plays.deep:duel", "my_engine:opened")
    assert feeder_plug_ins(asked) == ("my_worlds:Chess", "my_picks:Mine")
    assert curator_plug_ins(asked, "solver") == ("my_rules:Mine",)
    assert curator_plug_ins(asked, "solver.beside") == ("my_rules:Other",)
    assert trainer_plug_ins(asked.trainer_of("solver.beside")) == ("my_losses:other",)
    assert (
        trainer_plug_ins(asked.trainer_of("solver"))
        == curator_plug_ins(asked, "solver.gone")
        == rollout_plug_ins(asked, "gone")
        == ()
    )
    assert {name.partition(":")[0] for name in all_plug_ins(asked)} == {
        "my_worlds", "my_plays.deep", "my_engine", "my_picks", "my_rules", "my_losses",
    }  # fmt: skip
    scored = {
        "use": "dataset",
        "path": "a",
        "scorer": "my_a:s",
        "scorers": {"b": "my_b:s", "c": {"use": "my_c:s"}, "d": "math"},
    }
    judged = recipe(workflows={"sums": {"env": scored, "policies": {"solver": "solver"}}})
    assert set(all_plug_ins(judged)) == {"my_a:s", "my_b:s", "my_c:s"}
    old = recipe(workflows={"sums": {"env": "envs.arithmetic:Arithmetic", "policies": {"solver": "solver"}}})
    chess = recipe(workflows={"sums": {"env": "reasoning_gym:chess", "policies": {"solver": "solver"}}})
    assert all_plug_ins(old) == all_plug_ins(chess) == ()


# ------------------------------------------------------------------------------------------------------- who is refused


def test_another_source_is_refused_with_name_path_both_hashes_and_what_to_do(here: Path) -> None:
    file = written(here / "its_refused.py", "a = 1\n")
    ours, told = hash_of("its_refused"), "f" * 64

    with pytest.raises(OtherSource) as refused:
        check_sources({"its_refused": told}, ["its_refused:Mine"])

    said = str(refused.value)
    assert said.startswith(f"plug-in its_refused:Mine in {file} has source hash {ours[:12]}, but the run uses")
    assert f" {told[:12]}: bring the run's source here; or, to use this source" in said
    assert said.endswith("--new-recipe")
    assert OtherSource.exit_code == 2


def test_what_nobody_told_and_what_is_the_same_is_accepted(here: Path) -> None:
    written(here / "its_same.py", "a = 1\n")
    same = hash_of("its_same")

    check_sources({}, ["its_same:Mine"])
    check_sources({"its_same": same, "its_other": "f" * 64}, ["its_same:Mine", "nowhere:Mine"])


def test_a_process_that_loaded_a_source_before_it_was_changed_to_the_runs_is_begun_anew(here: Path) -> None:
    file = written(here / "its_edited.py", "a = 1\n")
    check_sources({}, ["its_edited:Mine"])
    file.write_text("a = 2\n")
    told = {"its_edited": hash_of("its_edited")}

    with pytest.raises(SourceChanged, match="The disk now has the run's source: start this process again"):
        check_sources(told, ["its_edited:Mine"])

    assert SourceChanged.exit_code == os.EX_TEMPFAIL, "the supervisor counts it as no death"
    file.write_text("a = 3\n")
    with pytest.raises(OtherSource):
        check_sources(told, ["its_edited:Mine"])


def test_a_worker_looks_again_whenever_a_revision_tells_of_sources(here: Path) -> None:
    written(here / "its_world.py", "a = 1\n")
    same = {"its_world": hash_of("its_world")}
    world = {"sums": {"env": "its_world:World", "policies": {"solver": "solver"}}}
    run = cast("Run", SimpleNamespace(plug_ins={}, recipe=recipe(workflows=world)))
    revisions = RevisionCheck(run, "sums", "", "")

    revisions.check(run.recipe, same)

    with pytest.raises(OtherSource, match="its_world:World"):
        revisions.check(run.recipe, {"its_world": "f" * 64})


def test_where_nothing_is_written_to_the_run_another_source_is_a_warning(here: Path) -> None:
    written(here / "its_noted.py", "a = 1\n")

    with capture_logs() as logs:
        warn_of_differing_sources({"its_noted": "f" * 64}, ["its_noted:Mine"])
        warn_of_differing_sources({"its_noted": hash_of("its_noted")}, ["its_noted:Mine"])

    [line] = logs
    assert (line["event"], line["log_level"]) == ("plug_in.differs", "warning")
    assert hash_of("its_noted")[:12] in line["why"]
    assert "f" * 12 in line["why"]


def test_the_fingerprint_of_a_version_names_the_sources_that_made_its_loss(here: Path) -> None:
    written(here / "its_losses.py", "a = 1\n")
    settings = TrainerSettings(loss=Named(use="its_losses:loss"), advantage=Named(use="its_losses:advantage"))

    assert fingerprint_plug_ins(settings) == {"plug-in its_losses": hash_of("its_losses")[:12]}
    assert fingerprint_plug_ins(TrainerSettings()) == {}


# ----------------------------------------------------------------------------------------------------- the run's record


def with_chain(*chain: str) -> Recipe:
    return recipe(curate={"chain": list(chain)}, shadows={})


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> Callable[..., RecipeRevision | None]:
    """`settled` over revisions that stand on no topic."""

    def ask(asked: Recipe, *before: RecipeRevision, new_recipe: bool = False) -> RecipeRevision | None:
        monkeypatch.setattr(revisions, "read_known_revisions", lambda _: before)
        monkeypatch.setattr(revisions, "read_progress", lambda *_: RunProgress(has_trained=True))
        return revisions.plan_revision(ADDRESS, asked, WHERE, new_recipe=new_recipe)

    return ask


def revision(number: int, asked: Recipe, **changes: Any) -> RecipeRevision:
    made = revisions.build_revision("run-1", number, asked, revisions.describe_store(WHERE))
    return replace(made, **changes)


def test_a_run_records_its_plug_ins_and_goes_on_after_an_edit_only_by_a_new_revision(
    here: Path, settled: Callable[..., RecipeRevision | None]
) -> None:
    file, asked = written(here / "its_ruling.py", "a = 1\n"), with_chain("validate", "its_ruling:Mine")
    first = settled(asked)
    assert first is not None
    old = hash_of("its_ruling")
    assert first.plug_ins == {"its_ruling": old}
    began = replace(first, store=revision(0, asked).store, run_id="run-1")
    assert settled(asked, began) is None, "nothing has changed"

    file.write_text("a = 2\n")
    new = hash_of("its_ruling")
    with pytest.raises(UsageError, match="--new-recipe") as refused:
        settled(asked, began)
    assert f"plug-in its_ruling ({file}): source {old[:12]} -> {new[:12]}\n" in str(refused.value)
    changed = settled(asked, began, new_recipe=True)
    assert changed is not None
    assert (changed.revision, changed.plug_ins, changed.recipe) == (1, {"its_ruling": new}, began.recipe)
    assert settled(asked, began, changed) is None
    assert newest_sources([began, changed]) == {"its_ruling": new}
    assert codec.decode(codec.encode(changed), RecipeRevision) == changed


def test_a_run_that_recorded_none_goes_on_and_records_them(
    here: Path, settled: Callable[..., RecipeRevision | None]
) -> None:
    written(here / "its_late.py", "a = 1\n")
    asked = with_chain("its_late:Mine")
    old = revision(0, asked)

    told = settled(asked, old)

    assert told is not None
    assert (told.revision, told.plug_ins, told.recipe) == (0, hash_sources(["its_late:Mine"]), old.recipe)
    assert settled(asked, old, told) is None


def test_a_swap_records_the_sources_of_its_chain_and_an_edited_one_is_another_chain(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = "from headrace.consumers.algorithms.contract import Keep, Stateless\nclass Mine(Stateless):\n"
    file = written(here / "its_swapped.py", rule + "    process = lambda self, candidate, clock: [Keep(candidate)]\n")
    chain = written(here / "chain.toml", '[[curate.chain]]\nuse = "its_swapped:Mine"\n')
    told = [revision(0, with_chain("validate"), plug_ins={"its_world": "e" * 64})]
    monkeypatch.setattr(swap, "read_revisions", lambda _: told)
    run = Run(ADDRESS, "run-1", (with_chain("validate"),), WHERE)

    def swapped() -> RecipeRevision | None:
        return swap._prepare(run, chain)[0]

    first = swapped()
    assert first is not None
    assert first.plug_ins == {"its_world": "e" * 64, "its_swapped": hash_of("its_swapped")}
    told.append(first)
    assert swapped() is None, "it has this chain already"
    file.write_text(file.read_text() + "# edited\n")
    second = swapped()
    assert second is not None
    assert (second.revision, second.plug_ins["its_swapped"]) == (2, hash_of("its_swapped"))
    assert plug_in_sources.find_source_differences(first.plug_ins, plug_in_sources.sources_of(["its_swapped:Mine"]))
