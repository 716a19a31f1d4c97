"""Environments and workflows by their recipe names, imported on demand."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from importlib import import_module
from operator import index
from types import MappingProxyType, ModuleType
from typing import Any, SupportsIndex, cast

from headrace.envs.contract import Environment, Problem, Workflow
from headrace.envs.messages import list_contents, refuse_lone_surrogates, show_value
from headrace.envs.payload import PayloadError, check_task_can_hold
from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.own_frames import locate_error, read_error_text
from headrace.infra.recipe.named import check_options, find_named
from headrace.infra.unreachable import is_unreachable

ENVIRONMENTS = {
    "alfworld": "headrace.envs.worlds.alfworld:open_alfworld",
    "arithmetic": "headrace.envs.arithmetic:Arithmetic",
    "code": "headrace.envs.code.programs:Programs",
    "dataset": "headrace.envs.dataset:Dataset",
    "human_eval": "headrace.envs.code.human_eval:HumanEval",
    "judged_arithmetic": "headrace.envs.judged_arithmetic:JudgedArithmetic",
    "errands": "headrace.envs.harbor.errands:Errands",
    "harbor": "headrace.envs.harbor.environment:Harbor",
    "jsonl": "headrace.envs.jsonl:JsonLines",
    "ledger": "headrace.envs.ledger:Ledger",
    "mixture": "headrace.envs.mixture:Mixture",
    "openenv": "headrace.envs.openenv.environment:OpenEnv",
    "reasoning_gym": "headrace.envs.reasoning_gym_env:ReasoningGym",
    "scripted": "headrace.envs.scripted:Scripted",
    "search": "headrace.envs.search.environment:Search",
    "split_sums": "headrace.envs.split_sums:SplitSums",
    "textcraft": "headrace.envs.worlds.textcraft:TextCraft",
    "webshop": "headrace.envs.worlds.webshop:Webshop",
}
WORKFLOWS = {
    "code_tests": "headrace.envs.workflows.code_tests:code_tests",
    "single_turn": "headrace.envs.workflows.single_turn:single_turn",
    "spawn": "headrace.envs.workflows.spawn:spawn",
    "solver_verifier": "headrace.envs.workflows.solver_verifier:solver_verifier",
    "terminal": "headrace.envs.workflows.terminal:terminal",
    "tools": "headrace.envs.workflows.tools:tools",
    "world": "headrace.envs.workflows.world:world",
}

METHODS = ("size", "problem", "score")
ALPHABET_PROMPTS = 64
"""Number of prompts that are checked against an alphabet before a run."""


class UnknownEnvironment(ValueError):
    """A name is neither shipped nor importable; the message lists the known names, the nearest first."""


class EnvironmentSettingsError(ValueError):
    """An environment refuses its settings; the message names the environment and the settings that it takes."""


def load_environment(name: str, seed: int, settings: Mapping[str, Any]) -> Environment:
    """Build an environment by its shipped name, as `reasoning_gym:<dataset>` or as `package.module:Name`.

    Raises UnknownEnvironment, or EnvironmentSettingsError for settings that it refuses.
    """
    family, _, dataset = name.partition(":")
    given = dict(settings)
    if family == "reasoning_gym" and dataset:
        name, given = family, {**given, "dataset": dataset}
    build = _find_plug_in("environment", name, ENVIRONMENTS)
    try:
        bound = inspect.signature(build).bind(seed=seed, **given)
    except TypeError as error:
        if "'seed'" in str(error):
            why = "its constructor must take the argument seed, as in `def __init__(self, seed)`"
            if "seed" in given:
                why = "seed is no setting of an environment: it gets the recipe's seed"
            raise EnvironmentSettingsError(f"environment {name}: {why}") from error
        takes = _list_parameters(build, [key for key in given if f"'{key}'" in str(error)])
        raise EnvironmentSettingsError(f"environment {name}: {error}; the settings are {takes}") from error
    try:
        environment = build(*bound.args, **bound.kwargs)
    except (Exception, SystemExit) as error:
        if is_unreachable(error):
            raise
        raise EnvironmentSettingsError(f"environment {name}: {_describe(error)}") from error
    _check_contract(name, environment)
    return cast("Environment", environment)


def build_to_score(
    name: str,
    seed: int,
    settings: Mapping[str, Any],
    *,
    all_tiers: bool = False,
    sources: Mapping[str, str] = MappingProxyType({}),
) -> Environment:
    """Build an environment as `load_environment`, in the process in which it will score.

    Args:
        name, seed, settings: Of the environment.
        all_tiers: Whether to build also what is needed for tiers that are not asked yet.
        sources: Hashes of the sources of plug-ins; a child process is to load the same as its parent.

    Raises what `load_environment` raises, and OtherSource.
    """
    if sources:
        from headrace.infra.recipe.plug_in_sources import check_sources  # it takes long

        check_sources(sources, sources)
    environment = load_environment(name, seed, settings)
    if all_tiers:  # a score has a time limit, and must not read the data of a harder tier
        getattr(environment, "prepare_tiers", lambda: None)()
    return environment


def load_workflow(name: str, settings: Mapping[str, Any] = MappingProxyType({})) -> Workflow:
    """Return a workflow by its shipped name or as `package.module:name`, with its settings as keyword arguments.

    Raises UnknownEnvironment, and ValueError for settings that it refuses.
    """
    workflow = _find_plug_in("workflow", name, WORKFLOWS)
    if not inspect.iscoroutinefunction(workflow):
        raise UnknownEnvironment(f"workflow {name} must be an async function of (problem, env, actors)")
    try:
        check_options(f"workflow {name}", workflow, settings)
    except UsageError as error:
        raise ValueError(str(error)) from error
    if shipped := WORKFLOWS.get(name):
        getattr(_import_module_of(shipped), "check_settings", dict)(**settings)
    return cast("Workflow", partial(workflow, **settings) if settings else workflow)


def check_first_problem(environment: Environment) -> None:
    """Raise ValueError if an environment does not give a valid size and first problem."""
    try:
        size = environment.size("train")
        given = None if size == 0 else environment.problem("train", 0)
    except ValueError:
        raise
    except Exception as error:
        if is_unreachable(error):
            raise
        raise ValueError(f"environment {environment.name} cannot give its first problem: {_describe(error)}") from error
    if size is not None and (isinstance(size, bool) or not isinstance(size, SupportsIndex) or index(size) < 0):
        raise ValueError(
            f"environment {environment.name}: `size` must return the number of problems, or None if they never end; "
            f"got {show_value(size)}"
        )
    if size != 0 and not isinstance(given, Problem):
        raise ValueError(
            f"environment {environment.name}: `problem` must return a Problem of headrace.envs.contract; "
            f"problem('train', 0) returned {show_value(given)}"
        )
    if isinstance(given, Problem):
        try:
            check_task_can_hold(given)
        except PayloadError as error:
            raise ValueError(f"environment {environment.name}: {error}") from error


def check_roles(workflow: str, roles: Collection[str]) -> None:
    """Raise ValueError when a shipped workflow cannot be played by a recipe's roles."""
    if shipped := WORKFLOWS.get(workflow):
        _import_module_of(shipped).check_roles(roles)


def check_plays(workflow: str, environment: Environment) -> None:
    """Raise ValueError when a shipped workflow cannot play an environment."""
    if shipped := WORKFLOWS.get(workflow):
        getattr(_import_module_of(shipped), "check_environment", id)(environment)


def check_alphabet(workflow: str, environment: Environment, policy: str, alphabet: str) -> None:
    """Raise ValueError if a policy's alphabet lacks characters that a shipped workflow writes."""
    if alphabet and (shipped := WORKFLOWS.get(workflow)):
        lacking = getattr(_import_module_of(shipped), "list_lacking_characters", lambda *_: "")(environment, alphabet)
        if lacking:
            raise ValueError(
                f"workflow {workflow} writes calls with characters that are not in policies.{policy}.alphabet: add "
                f"{lacking!r} to it"
            )


def _import_module_of(shipped: str) -> ModuleType:
    return import_module(shipped.partition(":")[0])


def check_characters(environment: Environment, policy: str, alphabet: str) -> None:
    """Raise ValueError if a policy's alphabet lacks characters of an environment's first prompts."""
    if not alphabet:
        return
    size = environment.size("train")
    asked = range(ALPHABET_PROMPTS if size is None else min(size, ALPHABET_PROMPTS))
    lacking: set[str] = set()
    first = ""
    for number in asked:
        problem = environment.problem("train", number)
        found = {character for text in list_contents(problem.prompt) for character in text} - set(alphabet)
        first = first or (f"problem {problem.task_id!r} has {min(found)!r}" if found else "")
        lacking |= found
    if lacking:
        raise ValueError(
            f"problems of environment {environment.name} have characters that are not in policies.{policy}.alphabet: "
            f"add {''.join(sorted(lacking))!r} to it. The first {first}"
        )


def _check_contract(name: str, environment: Any) -> None:
    """Raise EnvironmentSettingsError for an object that is not an environment; each episode would fail."""
    for method in METHODS:
        if not callable(found := getattr(environment, method, None)):
            raise EnvironmentSettingsError(
                f"environment {name}: {show_value(environment)} has no method `{method}`; an environment has "
                f"{', '.join(METHODS)} and a `name` (headrace.envs.contract)"
            )
        if inspect.iscoroutinefunction(found):
            raise EnvironmentSettingsError(
                f"environment {name}: `{method}` must not be async: make it a plain function (`score` runs in a child "
                "process, so it may take long)"
            )
    if not isinstance(own := getattr(environment, "name", None), str) or not own:
        raise EnvironmentSettingsError(
            f"environment {name}: its `name` must be a non-empty string, got {show_value(own)}: write "
            f'`name = "…"` in the class'
        )
    try:
        refuse_lone_surrogates("its `name`", own)
    except ValueError as error:
        raise EnvironmentSettingsError(f"environment {name}: {error}") from error


def _describe(error: BaseException) -> str:
    if isinstance(error, TypeError | ValueError | HeadraceError):
        return read_error_text(error)
    return f"{type(error).__name__}: {read_error_text(error)} at {locate_error(error)}"


def _find_plug_in(what: str, name: str, shipped: Mapping[str, str]) -> Callable[..., Any]:
    try:
        return find_named(what, name, shipped)
    except UsageError as error:
        raise UnknownEnvironment(str(error)) from error


def _list_parameters(build: Any, like: Sequence[str]) -> str:
    """Return the settings that an environment takes, those nearest to the given ones first."""
    names = [name for name in inspect.signature(build).parameters if name not in ("self", "seed")]
    for wrong in like[:1]:
        names = difflib.get_close_matches(wrong, names, n=len(names) or 1, cutoff=0.0)
    return ", ".join(names) or "(none)"
