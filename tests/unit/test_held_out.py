"""Weights in a folder, played on held-out problems without a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.app.cli.main import app
from headrace.envs.arithmetic import ALPHABET
from headrace.infra.errors import UsageError
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.weights.folder import write_weights
from headrace.infra.weights.tensors import hash_weights
from headrace.ops.offline.held_out import evaluate, parse_weight_folders, play_held_out

SETS = ("evaluate.problems=5", "evaluate.samples=3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from headrace.trainers.learner.model import (  # torch is slow
        build_model,
        character_tokenizer,
        encode_model_files,
        round_to_bf16,
    )

    recipe, made = load_recipe("arithmetic", ()), tmp_path_factory.mktemp("model")
    tokenizer = character_tokenizer(ALPHABET)
    model = build_model(recipe.policies["solver"].model, tokenizer, seed=1)
    weights = round_to_bf16({name: tensor.detach() for name, tensor in model.named_parameters()})
    write_weights(weights, made, hash_weights(weights))
    for name, data in encode_model_files(model, tokenizer).items():
        (made / name).write_bytes(data)
    return made


def tokens(groups: Any) -> dict[int, list[list[int]]]:
    return {g.number: [s.ids.tolist() for t in g.trajectories for s in t.sequences] for g in groups}


def test_every_problem_is_played_and_the_same_folder_answers_alike(folder: Path) -> None:
    recipe = load_recipe("arithmetic", SETS)
    told: list[tuple[int, int]] = []
    first = play_held_out(recipe, {"solver": folder}, lambda done, total: told.append((done, total)))
    again = play_held_out(recipe, {"solver": folder})
    assert sorted(group.number for group in first) == list(range(5))
    assert all(len(group.trajectories) == 3 for group in first)
    assert told[-1] == (5, 5)
    assert tokens(first) == tokens(again)
    assert len({group.task_id for group in first}) == 5


def test_the_command_tells_the_figures_of_an_evaluation(folder: Path) -> None:
    words = ["offline", "evaluate", "--weights", str(folder), "--recipe", "arithmetic", "--json"]
    done = CliRunner().invoke(app, [*words, *(word for one in SETS for word in ("--set", one))])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["sums"]["solver"]
    assert (found["problems"], found["samples"], found["failures"]) == (5, 3, 0)
    assert found["avg_at_k"] == 0, "it has learnt nothing yet"
    assert list(found["pass_at_k"]) == ["1", "2", "3"]


def test_what_is_no_model_and_what_names_no_policy_is_refused(folder: Path, tmp_path: Path) -> None:
    recipe = load_recipe("arithmetic", SETS)
    with pytest.raises(UsageError, match=r"a folder needs config\.json, tokenizer and safetensors"):
        evaluate(recipe, {"solver": tmp_path})
    with pytest.raises(UsageError, match=r"the folder .*none does not exist: `headrace weights export` makes a folder"):
        evaluate(recipe, {"solver": tmp_path / "none"})
    with pytest.raises(UsageError, match="no weights: add --weights solver=FOLDER"):
        evaluate(recipe, {})
    with pytest.raises(UsageError, match="policies are solver"):
        parse_weight_folders(recipe, [f"judge={folder}"])
    assert parse_weight_folders(recipe, [str(folder)]) == {"solver": folder}
    with pytest.raises(UsageError, match="holds out"):
        play_held_out(load_recipe("arithmetic", ("evaluate.problems=1000000",)), {"solver": folder})
