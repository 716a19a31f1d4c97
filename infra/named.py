"""A function by the name that a recipe gives it: a shipped one, or the user's own as `package.module:function`."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from infra.errors import UsageError


def named(where: str, use: str, shipped: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Return the function called `use`; `where` begins the sentence of an error, as `trainer.loss`.

    Raises UsageError with the shipped names, nearest first, or with why an import failed.
    """
    if use in shipped:
        return shipped[use]
    module, _, attribute = use.partition(":")
    if not module or not attribute:
        nearest = difflib.get_close_matches(use, shipped, n=len(shipped), cutoff=0.0)
        raise UsageError(f"{where}: no {use!r}; take one of {', '.join(nearest)}, or your own as `package.module:name`")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise UsageError(f"{where}: importing {module} failed ({error})") from error
    except AttributeError as error:
        raise UsageError(f"{where}: module {module} has no {attribute!r}") from error
    if not callable(found):
        raise UsageError(f"{where}: {use!r} is no function but {found!r}")
    return found


def check_options(where: str, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise UsageError, with what the function takes, unless `options` are some of its keyword-only parameters."""
    parameters = inspect.signature(function).parameters.values()
    takes = {parameter.name: parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    for name in options:
        if name not in takes:
            nearest = difflib.get_close_matches(name, takes, n=len(takes) or 1, cutoff=0.0)
            raise UsageError(f"{where}: no option {name!r}; it takes {', '.join(nearest) or 'none'}")
    for name, parameter in takes.items():
        if parameter.default is parameter.empty and name not in options:
            raise UsageError(f"{where}: {name!r} is missing; it takes {', '.join(takes)}")
