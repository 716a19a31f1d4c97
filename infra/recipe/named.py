"""A function or class by the name that a recipe gives it: a shipped one, or the user's own as `package.module:name`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from headrace.infra.errors import UsageError
from headrace.infra.recipe.plug_ins import load_plug_in

SETTING_KINDS = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}


def find_named(where: str, name: str, shipped: Mapping[str, str | Callable[..., Any]]) -> Callable[..., Any]:
    """Return what a recipe calls `name`: a shipped function or class by its name, or the user's own.

    All that a recipe names is found here. `where` begins the sentence of an error, as `trainer.loss`; what is shipped
    may be given as `package.module:Name`, to be imported when it is asked for.

    Raises UsageError with the shipped names, nearest first, or as `load_plug_in`.
    """
    known = shipped.get(name, name)
    if not isinstance(known, str):
        return known
    module, _, attribute = known.partition(":")
    if not module or not attribute:
        nearest = difflib.get_close_matches(name, shipped, n=len(shipped), cutoff=0.0)
        raise UsageError(
            f"{where}: {name!r} is not known; take one of {', '.join(nearest)}, or your own as `package.module:name`"
        )
    return load_plug_in(where, known)


def check_kinds(where: str, function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Raise UsageError for a value that is not of the plain kind which its parameter's annotation names.

    An integer is a number too; a bool is not. None, which only a call can give, passes where the annotation has
    it. Settings that are not parameters are passed over.
    """
    parameters = _read_signature(function).parameters
    for name, value in settings.items():
        kinds = _list_kinds(parameters[name].annotation) if name in parameters else ()
        if kinds and type(value) not in kinds and not (type(value) is int and float in kinds):
            plain = [SETTING_KINDS[kind] for kind in kinds if kind is not NoneType]
            raise UsageError(f"{where}: {name} must be {' or '.join(plain)}, got {value!r}")


def check_options(
    where: str, function: Callable[..., Any], options: Mapping[str, Any], elsewhere: Collection[str] = ()
) -> None:
    """Raise UsageError, with what the function takes, unless `options` are some of its keyword-only parameters.

    A value must be of the kind that a parameter's annotation names, where that is a plain one; a bool is not a number.
    Parameters that the recipe has `elsewhere` are none of its options.
    """
    parameters = _read_signature(function).parameters.values()
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
    """Raise UsageError, with what a class takes, for a setting that it does not take, or of the wrong kind.

    Parameters that come from `elsewhere` are not settings. Raises ValueError for a class that has no signature.
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


def _read_signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:  # noqa: BLE001 - a user's annotation may name what is imported for type checkers alone
        return inspect.signature(function)


def _list_kinds(annotation: Any) -> tuple[type, ...]:
    """Return the plain kinds that an annotation allows, None among them; none for any other annotation."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return tuple(parts) if all(part in SETTING_KINDS or part is NoneType for part in parts) else ()
