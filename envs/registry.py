"""Environments and workflows by the names that recipes use, imported when they are asked for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from headrace.envs.contract import Environment, Workflow
from headrace.infra.errors import UsageError
from headrace.infra.recipe.named import find_named

ENVIRONMENTS = {
    "arithmetic": "headrace.envs.arithmetic:Arithmetic",
    "dataset": "headrace.envs.dataset:Dataset",
    "judged_arithmetic": "headrace.envs.judged_arithmetic:JudgedArithmetic",
    "jsonl": "headrace.envs.jsonl:JsonLines",
    "mixture": "headrace.envs.mixture:Mixture",
    "reasoning_gym": "headrace.envs.reasoning_gym_env:ReasoningGym",
    "scripted": "headrace.envs.scripted:Scripted",
}
WORKFLOWS = {
    "single_turn": "headrace.envs.workflows.single_turn:single_turn",
    "solver_verifier": "headrace.envs.workflows.solver_verifier:solver_verifier",
}

LOOKED_AT = 64
"""Prompts that are held against an alphabet before a run."""


class UnknownEnvironment(ValueError):
    """A name that is neither shipped nor importable; the message lists what there is, the nearest first."""


class EnvironmentSettingsError(ValueError):
    """Settings that an environment does not take; the message names it and those that it takes."""


def load_environment(use: str, seed: int, settings: Mapping[str, Any]) -> Environment:
    """Build an environment by its shipped name, as `reasoning_gym:<dataset>` or as `package.module:Name`.

    Raises UnknownEnvironment, or EnvironmentSettingsError for settings that it refuses.
    """
    family, _, dataset = use.partition(":")
    given = dict(settings)
    if family == "reasoning_gym" and dataset:
        use, given = family, {**given, "dataset": dataset}
    build = _find_plug_in("environment", use, ENVIRONMENTS)
    try:
        bound = inspect.signature(build).bind(seed=seed, **given)
    except TypeError as error:
        raise EnvironmentSettingsError(f"environment {use}: {error}; it takes {_list_parameters(build)}") from error
    try:
        return cast("Environment", build(*bound.args, **bound.kwargs))
    except (TypeError, ValueError) as error:
        raise EnvironmentSettingsError(f"environment {use}: {error}") from error


def load_workflow(name: str) -> Workflow:
    """Return a workflow by its shipped name or as `package.module:name`. Raises UnknownEnvironment."""
    workflow = _find_plug_in("workflow", name, WORKFLOWS)
    if not inspect.iscoroutinefunction(workflow):
        raise UnknownEnvironment(f"workflow {name} is not an async function of (problem, env, actors)")
    return cast("Workflow", workflow)


def check_characters(environment: Environment, policy: str, alphabet: str) -> None:
    """Raise ValueError when a policy's alphabet, if it has one, lacks what an environment's first prompts hold."""
    if not alphabet:
        return
    size = environment.size("train")
    asked = range(LOOKED_AT if size is None else min(size, LOOKED_AT))
    lacking = {character for index in asked for character in environment.problem("train", index).text} - set(alphabet)
    if lacking:
        raise ValueError(
            f"environment {environment.name} asks with characters that policies.{policy}.alphabet lacks: "
            f"{''.join(sorted(lacking))!r}; add them to it"
        )


def _find_plug_in(what: str, name: str, shipped: Mapping[str, str]) -> Callable[..., Any]:
    try:
        return find_named(what, name, shipped)
    except UsageError as error:
        raise UnknownEnvironment(str(error)) from error


def _list_parameters(build: Any) -> str:
    names = [name for name in inspect.signature(build).parameters if name not in ("self", "seed")]
    return ", ".join(names) or "no settings"
