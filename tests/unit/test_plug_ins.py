"""Where a user's own modules are looked for, in which order, and what is said of one that is not there or is broken."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.app.launcher.components import list_components
from headrace.consumers.algorithms.chain import UnknownAlgorithm, load_chain
from headrace.envs.registry import UnknownEnvironment, load_environment, load_workflow
from headrace.infra.environment import PLUG_INS_VARIABLE
from headrace.infra.errors import UsageError
from headrace.infra.plug_ins import add_search_folders, import_module_named, load_plug_in, search_folders
from headrace.infra.recipe.named import find_named
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.settings import Recipe
from headrace.infra.recipe.table import Named
from headrace.producers.engines.registry import open_engine
from headrace.producers.feed.selectors.registry import load_selector
from headrace.trainers.batches.estimator import check_advantage
from headrace.trainers.learner.chosen_loss import check_loss

RULE = """
from headrace.consumers.algorithms.contract import Keep, Stateless

WHO = {who!r}

class Mine(Stateless):
    def process(self, candidate, clock):
        return [Keep(candidate)]
"""


@pytest.fixture(autouse=True)
def _modules_as_before() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in sys.modules.keys() - before:
        if name.startswith(("mine", "envs")):
            del sys.modules[name]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where the command runs."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def asked(kind: str, name: str) -> None:
    """Look for what a recipe names, as each kind of it is looked for."""
    recipe = load_recipe("arithmetic")
    match kind:
        case "environment":
            load_environment(name, 1, {})
        case "workflow":
            load_workflow(name)
        case "selector":
            load_selector(Named(use=name), 1)
        case "engine":
            open_engine({}, recipe.rollout.model_copy(update={"engine": Named(use=name)}), 1)
        case "algorithm":
            load_chain([(name, {})])
        case "advantage":
            check_advantage(with_trainer(recipe, advantage=Named(use=name)), "solver")
        case "loss":
            check_loss(with_trainer(recipe, loss=Named(use=name)), "solver")


KINDS = ("environment", "workflow", "selector", "engine", "algorithm", "advantage", "loss")


def with_trainer(recipe: Recipe, **changes: object) -> Recipe:
    return recipe.model_copy(update={"trainer": recipe.trainer.model_copy(update=changes)})


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_recipe_names_is_looked_for_in_the_same_places_which_the_error_tells(
    kind: str, tmp_path: Path, here: Path
) -> None:
    add_search_folders([tmp_path / "recipes"])

    with pytest.raises((UsageError, UnknownEnvironment)) as refused:
        asked(kind, "mine_nowhere.rules:Mine")

    said = str(refused.value)
    assert "there is no module mine_nowhere: it is not installed, not on PYTHONPATH" in said
    assert f", not in {tmp_path / 'recipes'}, not in {here}. Put it beside the recipe" in said


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_that_fails_by_itself_is_not_called_missing_and_its_line_is_told(kind: str, here: Path) -> None:
    written(here, "mine_broken/__init__.py", "")
    written(here, "mine_broken/deep.py", "import json\n\njson.loads('{')\n")
    file = written(here, "mine_broken/rules.py", "x = 1\nfrom mine_broken import deep\n")

    with pytest.raises((UsageError, UnknownEnvironment)) as refused:
        asked(kind, "mine_broken.rules:Mine")

    said = str(refused.value)
    assert f"importing mine_broken.rules fails in {file.with_name('deep.py')}, line 3: JSONDecodeError: " in said
    assert "no module" not in said


@pytest.mark.parametrize(
    ("text", "line", "error"),
    [
        ("import nosuchlibrary\n", 1, "ModuleNotFoundError: No module named 'nosuchlibrary'"),
        ("from headrace.envs import nosuch\n", 1, "ImportError: cannot import name 'nosuch'"),
        ("def mine(:\n", 1, "SyntaxError: "),
        ("\nraise SystemExit(0)\n", 2, "SystemExit: 0"),
    ],
)
def test_what_a_module_lacks_or_raises_is_told_as_its_own_fault(text: str, line: int, error: str, here: Path) -> None:
    file = written(here, f"mine_failing_{line}{len(text)}.py", text)

    with pytest.raises(UsageError) as refused:
        find_named("trainer.loss", f"{file.stem}:mine", {})

    assert str(refused.value).startswith(f"trainer.loss: importing {file.stem} fails in {file}, line {line}: {error}")


def test_the_recipes_folder_comes_before_the_commands_and_both_after_what_can_be_imported(
    tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed, beside = tmp_path / "installed", tmp_path / "recipes"
    for folder in (installed, beside, here):
        written(folder, "mine_rules.py", RULE.format(who=folder.name))
        written(folder, "json.py", "raise AssertionError('Python has one')\n")
    written(beside, "run.toml", 'extends = "arithmetic"\nname = "mine"\n')
    path = sys.path[:]
    load_recipe(str(beside / "run.toml"))

    assert search_folders() == (str(beside), str(here))
    assert import_module_named("mine_rules").WHO == "recipes"
    assert sys.path[: len(path)] == path, "nothing of the user's comes first"
    assert "raise" not in Path(str(import_module_named("json").__file__)).read_text().splitlines()[0]
    del sys.modules["mine_rules"]
    (beside / "mine_rules.py").unlink()
    assert import_module_named("mine_rules").WHO == "here"
    del sys.modules["mine_rules"]
    monkeypatch.setattr(sys, "path", [str(installed), *path])
    assert import_module_named("mine_rules").WHO == "installed"


def test_a_recipe_that_another_extends_brings_its_folder_too(tmp_path: Path, here: Path) -> None:
    written(tmp_path, "base/base.toml", 'extends = "arithmetic"\nname = "base"\n')
    written(tmp_path, "tried/run.toml", 'extends = "../base/base.toml"\nname = "run"\n')

    load_recipe("../tried/run.toml")

    assert search_folders() == (str(tmp_path / "tried"), str(tmp_path / "base"), str(here))


def test_components_look_where_the_launcher_looks_and_hide_nothing_by_where_they_run(
    tmp_path: Path, here: Path
) -> None:
    beside = tmp_path / "recipes"
    written(beside, "mine_handed.py", RULE.format(who="recipes"))
    written(here, "queue.py", "raise AssertionError('Python has one')\n")
    environment = {**os.environ, PLUG_INS_VARIABLE: str(beside)}
    [command] = [
        c.command for c in list_components(load_recipe("arithmetic"), "kafka://h:1/r", here) if c.name == "feed"
    ]
    python = command[: command.index("-m")]
    importing = "import queue; from headrace.infra.plug_ins import import_module_named"
    code = f"{importing}; print(import_module_named('mine_handed').WHO)"

    done = subprocess.run([*python, "-c", code], env=environment, capture_output=True, text=True, check=False, cwd=here)
    version = subprocess.run(
        [sys.executable, "-m", "headrace", "--version"], capture_output=True, check=False, cwd=here
    )

    assert done.stdout == "recipes\n", done.stderr
    assert version.returncode == 0, "a module of the user's own, where the command runs, does not hide Python's"


def test_an_installed_module_that_hides_the_users_is_told(tmp_path: Path, here: Path) -> None:
    mine = written(here, "mine_hidden.py", RULE.format(who="here"))
    written(tmp_path, "mine_hidden.py", "")
    sys.path.insert(0, str(tmp_path))

    with pytest.raises(
        UnknownAlgorithm, match=r"has no 'Mine' \(.*\); another .* hides your .*: modules installed"
    ) as refused:
        load_chain([("mine_hidden:Mine", {})])

    assert str(mine) in str(refused.value)


@pytest.mark.parametrize("name", ["envs.registry", "consumers.algorithms.pods", "trainers.losses.ppo"])
def test_a_module_of_ours_is_found_by_the_name_that_recipes_of_the_first_release_have(name: str) -> None:
    assert import_module_named(name) is sys.modules[f"headrace.{name}"]


def test_a_module_in_the_users_own_package_of_the_same_name_comes_first(
    tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, "envs/__init__.py", "")
    written(tmp_path, "envs/arithmetic.py", "MINE = True\n")
    importlib.import_module("headrace.envs.jsonl")  # with what it needs, which is not on the path below
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for known in [known for known in sys.modules if known.partition(".")[0] == "envs"]:
        monkeypatch.delitem(sys.modules, known)

    assert import_module_named("envs.arithmetic").MINE
    assert import_module_named("envs.jsonl").__name__ == "headrace.envs.jsonl"
    with pytest.raises(ModuleNotFoundError, match=r"envs\.nosuch"):
        import_module_named("envs.nosuch")


@pytest.mark.parametrize("name", ["./rules:grade", "rules.py:grade", ".rules:grade"])
def test_a_path_instead_of_a_module_is_told_with_the_name(name: str) -> None:
    with pytest.raises(UsageError, match=r'^scorer: .* is a path; write the module\'s name, as in "rules:grade"'):
        load_plug_in("scorer", name)
