"""Finds functions and classes by their recipe names: shipped ones, or a user's own as `package.module:name`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from headrace.infra.errors import UsageError
from headrace.infra.plug_ins import load_plug_in

SETTING_KINDS = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}


def find_named(where: str, name: str, shipped: Mapping[str, str | Callable[..., Any]]) -> Callable[..., Any]:
    """Return the function or class with a recipe name, shipped or the user's own.

    `where`, such as `trainer.loss`, begins the error message. Values of `shipped` may be `package.module:Name`, which
    is imported on demand.

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
    """Raise UsageError for a value whose type differs from its parameter's annotation, if that is a plain type.

    An integer is also a number; a bool is not. None, which only Python code can give, is accepted if the annotation
    allows it. Settings that are not parameters are ignored.
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
    """Raise UsageError, with the known options, unless all `options` are keyword-only parameters of the function.

    A value must have the annotated type, if that is a plain type; a bool is not a number. Parameters that the recipe
    sets `elsewhere` are not options.
    """
    parameters = _read_signature(function).parameters.values()
    takes = {
        parameter.name: parameter
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in elsewhere
    }
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    refuse_unknown_options(where, options, takes)
    check_kinds(where, function, options)
    for name, parameter in takes.items():
        if parameter.default is parameter.empty and name not in options:
            raise UsageError(f"{where}: {name!r} is missing; the options are {', '.join(takes)}")


def check_settings(
    where: str, build: Callable[..., Any], settings: Mapping[str, Any], elsewhere: Collection[str] = ()
) -> None:
    """Raise UsageError, with the known settings, for an unknown setting of a class or a wrong type.

    Parameters set `elsewhere` are not settings. Raises ValueError for a class without a signature.
    """
    parameters = inspect.signature(build).parameters
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values()):
        refuse_unknown_options(where, settings, [name for name in parameters if name not in elsewhere])
    check_kinds(where, build, settings)


def refuse_unknown_options(where: str, options: Iterable[str], takes: Collection[str]) -> None:
    """Raise UsageError, with the known options, nearest first, for an unknown option."""
    for name in options:
        if name not in takes:
            nearest = difflib.get_close_matches(name, takes, n=len(takes) or 1, cutoff=0.0)
            raise UsageError(f"{where}: no option {name!r}; the options are {', '.join(nearest) or '(none)'}")


def _read_signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:  # noqa: BLE001 - a user's annotation may use names imported only for type checkers
        return inspect.signature(function)


def _list_kinds(annotation: Any) -> tuple[type, ...]:
    """Return the plain types that an annotation allows, perhaps with None; empty for any other annotation."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return tuple(parts) if all(part in SETTING_KINDS or part is NoneType for part in parts) else ()
