"""The files of `infra/deploy/`: what they start is what the command line and the recipe know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from typer.core import TyperGroup
from typer.main import get_command

from headrace.app.cli.main import app
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.settings import Recipe

DEPLOY = Path(__file__).parents[2] / "infra" / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
MANIFESTS: list[dict[str, Any]] = [
    one for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")) for one in yaml.safe_load_all(path.read_text())
]


@pytest.fixture
def recipe() -> Recipe:
    return load_recipe(str(DEPLOY / "recipe.toml"))


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the name of what is started, and its words for `headrace`."""
    for name, service in COMPOSE["services"].items():
        if service["image"] == "headrace":
            yield name, service["command"]
    for manifest in MANIFESTS:
        if "template" in manifest["spec"]:
            [container] = manifest["spec"]["template"]["spec"]["containers"]
            yield f"{manifest['kind']} {container['name']}", container["args"]


@pytest.mark.parametrize("words", [pytest.param(words, id=name) for name, words in commands()])
def test_every_command_of_a_deployment_is_one_of_the_command_line(words: list[str]) -> None:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    group.commands[words[0]].make_context(words[0], words[1:])  # raises for what it does not know


def test_the_parts_of_a_deployment_are_those_of_its_recipe_and_of_its_region(recipe: Recipe) -> None:
    parts = {words[0] for name, words in commands() if not name[0].isupper()}
    assert parts == {"begin", "feed", "curate", "evaluate", "train", "rollout", "mirror", "relay"}
    assert {words[0] for name, words in commands() if name[0].isupper()} == parts - {"mirror", "relay"}
    assert not load_recipe(str(DEPLOY / "kubernetes" / "recipe.toml")).regions, "its tasks would have no workers"
    for _, words in commands():
        named = dict(zip(words[1::2], words[2::2], strict=False))
        if "--run" in named:
            cluster = "kafka-west" if words[0] == "rollout" and "--region" in named else "kafka"
            assert named["--run"] == f"kafka://{cluster}:9092/{recipe.name}"
        assert named.get("--policy", "solver") in recipe.policies
        assert named.get("--workflow", "sums") in recipe.workflows
        assert named.get("--region", "west") in recipe.regions


def test_servers_of_a_deployment_are_those_that_its_recipe_names(recipe: Recipe) -> None:
    west = recipe.regions["west"]
    named = (recipe.kafka.bootstrap, recipe.store.endpoint, west.kafka.bootstrap, west.store.endpoint)
    assert {address.partition(":")[0] for address in named} <= COMPOSE["services"].keys()


def test_what_keda_scales_is_a_deployment_and_what_it_watches_is_of_the_run(recipe: Recipe) -> None:
    deployments = {one["metadata"]["name"] for one in MANIFESTS if one["kind"] == "Deployment"}
    scaled = [one["spec"] for one in MANIFESTS if one["kind"] == "ScaledObject"]
    assert scaled
    for spec in scaled:
        assert spec["scaleTargetRef"]["name"] in deployments
        for trigger in spec["triggers"]:
            if trigger["type"] == "kafka":
                assert trigger["metadata"]["topic"] == recipe.topics.trajectories("solver")
                assert trigger["metadata"]["consumerGroup"] == recipe.topics.curate_group("solver")
