"""A function or class by the name that a recipe gives it: a shipped one, or the user's own as `package.module:name`."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from headrace.infra.errors import UsageError

ROOMS_OF_0_1 = ("consumers", "envs", "producers", "trainers")
"""Until 0.1 these were imported by their own names, and recipes on the log name what they hold so."""
SELECTORS = ("contract", "dots", "filter_solved", "greso", "pools", "registry", "tiers")
MOVED = {
    "envs.single_turn": "envs.workflows.single_turn",
    "envs.solver_verifier": "envs.workflows.solver_verifier",
    **{f"producers.selectors.{name}": f"producers.feed.selectors.{name}" for name in SELECTORS},
}
"""What a recipe of 0.1 may name and where it is now."""
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def named(where: str, use: str, shipped: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Return the function called `use`; `where` begins the sentence of an error, as `trainer.loss`.

    Raises UsageError with the shipped names, nearest first, or with why an import failed.
    """
    return shipped[use] if use in shipped else imported(where, use, dict.fromkeys(shipped, ""))


def imported(where: str, use: str, shipped: Mapping[str, str]) -> Callable[..., Any]:
    """Return the function or class called `use`, by its own `module:name` or by that of the shipped name.

    Raises UsageError like `named`.
    """
    module, _, attribute = shipped.get(use, use).partition(":")
    if not module or not attribute:
        nearest = difflib.get_close_matches(use, shipped, n=len(shipped), cutoff=0.0)
        raise UsageError(f"{where}: no {use!r}; take one of {', '.join(nearest)}, or your own as `package.module:name`")
    try:
        found: Callable[..., Any] = getattr(module_named(module), attribute)
    except ImportError as error:
        raise UsageError(
            f"{where}: importing {module} failed ({error}); have it installed, or its folder on PYTHONPATH, wherever a "
            "process of the run begins"
        ) from error
    except AttributeError as error:
        raise UsageError(f"{where}: module {module} has no {attribute!r}") from error
    if not callable(found):
        raise UsageError(f"{where}: {use!r} is no function and no class but {found!r}")
    return found


def module_named(name: str) -> ModuleType:
    """Import a module that a recipe names; one of ours also by the name that it had until 0.1.

    Raises ImportError. A module of the user's own comes first: their folder may hold packages of our rooms' names.
    """
    return importlib.import_module(f"headrace.{MOVED.get(name, name)}" if _is_ours(name) else name)


def _is_ours(name: str) -> bool:
    if name.partition(".")[0] not in ROOMS_OF_0_1:
        return False
    ours, found = _file_of(f"headrace.{MOVED.get(name, name)}"), _file_of(name)
    # In a checkout both names may lead to one file, which must not become two modules.
    return ours is not None and (found is None or Path(ours).samefile(found))


def _file_of(module: str) -> str | None:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    return spec.origin if spec is not None else None


def check_kinds(where: str, function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Raise UsageError for a value that is not of the plain kind which its parameter's annotation names.

    A whole number is a number too; a bool is none. Settings that are no parameters are passed over.
    """
    parameters = _signature(function).parameters
    for name, value in settings.items():
        kinds = _kinds(parameters[name].annotation) if name in parameters else ()
        if kinds and type(value) not in kinds and not (type(value) is int and float in kinds):
            raise UsageError(f"{where}: {name} must be {' or '.join(KINDS[k] for k in kinds)}, got {value!r}")


def check_options(
    where: str, function: Callable[..., Any], options: Mapping[str, Any], elsewhere: Collection[str] = ()
) -> None:
    """Raise UsageError, with what the function takes, unless `options` are some of its keyword-only parameters.

    A value must be of the kind that a parameter's annotation names, where that is a plain one; a bool is no number.
    Parameters that the recipe has `elsewhere` are none of its options.
    """
    parameters = _signature(function).parameters.values()
    takes = {
        parameter.name: parameter
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in elsewhere
    }
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    check_known(where, options, takes)
    check_kinds(where, function, options)
    for name, parameter in takes.items():
        if parameter.default is parameter.empty and name not in options:
            raise UsageError(f"{where}: {name!r} is missing; it takes {', '.join(takes)}")


def check_settings(
    where: str, build: Callable[..., Any], settings: Mapping[str, Any], elsewhere: Collection[str] = ()
) -> None:
    """Raise UsageError, with what a class takes, for a setting that is none of its, or not of its parameter's kind.

    Parameters that come from `elsewhere` are no settings. Raises ValueError for a class that has no signature.
    """
    parameters = inspect.signature(build).parameters
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values()):
        check_known(where, settings, [name for name in parameters if name not in elsewhere])
    check_kinds(where, build, settings)


def check_known(where: str, options: Iterable[str], takes: Collection[str]) -> None:
    """Raise UsageError, with what is taken, nearest first, for an option that is not."""
    for name in options:
        if name not in takes:
            nearest = difflib.get_close_matches(name, takes, n=len(takes) or 1, cutoff=0.0)
            raise UsageError(f"{where}: no option {name!r}; it takes {', '.join(nearest) or 'none'}")


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:  # noqa: BLE001 - a user's annotation may name what is imported for type checkers alone
        return inspect.signature(function)


def _kinds(annotation: Any) -> tuple[type, ...]:
    """Return the plain kinds that an annotation allows, but for None, which no recipe can say; none for any other."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    some = tuple(part for part in parts if part is not NoneType)
    return some if all(part in KINDS for part in some) else ()
