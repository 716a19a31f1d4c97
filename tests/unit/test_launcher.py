"""Which processes `headrace up` starts, and what it refuses before it starts any."""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path

import pytest
from rich.console import Console

from headrace.app.launcher import launcher
from headrace.app.launcher.launcher import Order, components_of
from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.settings import Rollout, Use
from headrace.ops.recipe_check import check_names

ADDRESS = "kafka://127.0.0.1:9092/demo"


def commands(name: str, *sets: str) -> dict[str, list[str]]:
    """Component to its words after `headrace`."""
    children = components_of(load_recipe(name, sets), ADDRESS, Path("logs"))
    return {child.name: list(child.command[child.command.index("headrace") + 1 : -2]) for child in children}


def test_a_shadow_adds_a_curator_and_a_trainer_to_what_is_started_without_it() -> None:
    beside = commands("arithmetic-shadow", "launch.curators=2")
    alone = {name: words for name, words in beside.items() if "unfiltered" not in name}

    assert alone == commands("arithmetic", "launch.curators=2")
    assert {name: words for name, words in beside.items() if name not in alone} == {
        "train-solver.unfiltered": ["train", "--policy", "solver", "--variant", "unfiltered"],
        "curate-solver.unfiltered-0": [
            "curate", "--policy", "solver", "--variant", "unfiltered", "--slot", "0",
        ],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ('shadows.unfiltered.chain=["valdate"]', "valdate"),
        ("shadows.unfiltered.trainer.loss=ppoo", "ppoo"),
        ("shadows.unfiltered.trainer.advantage=gropo", "gropo"),
        ("shadows.unfiltered.trainer.tensor_parallel=2", "solver.unfiltered: trainer.tensor_parallel"),
    ],
)
def test_what_a_shadow_names_is_looked_for_before_anything_is_started(word: str, why: str) -> None:
    check_names(load_recipe("arithmetic-shadow"))
    with pytest.raises((UsageError, ValueError), match=why):
        check_names(load_recipe("arithmetic-shadow", [word]))


@pytest.mark.parametrize(
    ("sets", "forked"),
    [
        ((), {"feed", "curate", "evaluate", "train", "rollout"}),
        (("trainer.device=cuda",), {"feed", "curate", "evaluate", "rollout"}),
        (("rollout.device=cuda",), {"feed", "curate", "evaluate", "train"}),
        (("trainer.processes=2",), {"feed", "curate", "evaluate", "rollout"}),
    ],
)
def test_what_is_on_cuda_and_what_torchrun_starts_is_not_forked(sets: tuple[str, ...], forked: set[str]) -> None:
    children = components_of(load_recipe("arithmetic", sets), ADDRESS, Path("logs"))

    assert {child.name.partition("-")[0] for child in children if child.imports} == forked


def test_what_needs_no_torch_is_forked_before_torch_is_imported() -> None:
    children = components_of(load_recipe("arithmetic-shadow"), ADDRESS, Path("logs"))
    heavy = ["headrace.trainers.component" in child.imports or child.torch_processes > 0 for child in children]

    assert heavy == sorted(heavy)


@pytest.mark.parametrize("engine", ["torch", "scripted"])
def test_what_is_imported_for_forks_is_there_and_with_torch_only_where_that_plays(engine: str) -> None:
    recipe = load_recipe("arithmetic").model_copy(update={"rollout": Rollout(engine=Use(use=engine))})
    imports = {child.name: child.imports for child in components_of(recipe, ADDRESS, Path("logs"))}

    assert all(find_spec(name) is not None for names in imports.values() for name in names)
    assert any("torch_engine" in name for name in imports["rollout-sums-0"]) is (engine == "torch")


@pytest.mark.parametrize("begun", [True, False])
def test_a_run_that_an_error_stops_says_how_to_go_on_if_it_had_begun(
    begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(launch: launcher.Launch) -> int:
        if begun:
            monkeypatch.setattr(launch, "_run", object())
            monkeypatch.setattr(launch, "stop", lambda _: None)
        raise HeadraceError("curate-solver-0 ended 5 times within a minute")

    monkeypatch.setattr(launcher.Launch, "run", fail)
    again = "headrace up '[/b].toml' --set 'workflows.sums.env.tiers=[\"sum1\"]'"
    order = Order(load_recipe("arithmetic"), tmp_path / "run", again=again)
    told = io.StringIO()
    with pytest.raises(HeadraceError, match="5 times"):
        launcher.up(order, Console(file=told))
    assert (f"to go on from here:\n  {again}\n" in told.getvalue()) is begun
