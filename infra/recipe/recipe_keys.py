"""The allowed keys of a recipe, from the settings classes, for error messages."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from headrace.infra.recipe import server_settings, settings
from headrace.infra.recipe.settings import Recipe, TrainerSettings
from headrace.infra.recipe.table import Named
from headrace.schemas.field_texts import read_field_texts


def list_children(path: Sequence[str]) -> dict[str, str]:
    """Return the fixed keys below a dotted path with their purposes; none if users choose the names."""
    kind = _find_kind(path)
    if not _is_model(kind):
        return {}
    return {name: _text_of(kind, name) for name in kind.model_fields}


def _text_of(kind: type[BaseModel], name: str) -> str:
    """Return the text under a field, in the class that defines it."""
    texts = (read_settings_texts().get(one.__name__, {}).get(name) for one in kind.__mro__)
    return inspect.cleandoc(next((text for text in texts if text), ""))


@functools.cache
def read_settings_texts() -> dict[str, dict[str, str]]:
    """Return the texts under the fields of every section, by class and field."""
    return read_field_texts(settings) | read_field_texts(server_settings)  # pydantic would read them in every process


def list_fields(path: Sequence[str]) -> tuple[str, ...]:
    """Return the fixed keys below a dotted path."""
    return tuple(list_children(path))


def is_free(path: Sequence[str]) -> bool:
    """Return whether any key is allowed below the path: settings of a `use`, fields of a model config, roles."""
    kind = _find_kind(path)
    if _is_model(kind):
        return issubclass(kind, Named)
    inner = get_args(kind)
    return not (get_origin(kind) is dict and _is_model(inner[1]))


def is_value(path: Sequence[str]) -> bool:
    """Return whether the path is a plain value without keys."""
    return _find_kind(path) in (bool, int, float, str)


def list_known_keys() -> tuple[str, ...]:
    """Return every fixed dotted key; `<name>` stands for names of policies and workflows."""
    return tuple(_walk(Recipe, ""))


def _walk(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        kind = _strip_none(field.annotation)
        dotted = f"{prefix}{name}"
        yield dotted
        if get_origin(kind) is dict and _is_model(get_args(kind)[1]):
            yield from _walk(get_args(kind)[1], f"{dotted}.<name>.")
        elif _is_model(kind):
            yield from _walk(kind, f"{dotted}.")


def _find_kind(path: Sequence[str]) -> Any:
    """Return the type at a path; None for an unknown path."""
    if len(path) == 3 and path[0] in {"policies", "shadows"} and path[2] == "trainer":
        return TrainerSettings  # a plain table, because its keys are checked together with [trainer]
    kind: Any = Recipe
    for key in path:
        if _is_model(kind):
            field = kind.model_fields.get(key)
            kind = _strip_none(field.annotation) if field else None
        elif get_origin(kind) in (dict, tuple, list):
            inner = [part for part in get_args(kind) if part is not Ellipsis]
            kind = _strip_none(inner[-1])
        else:
            return None
    return kind


def _strip_none(kind: Any) -> Any:
    """Return a type without its `| None`."""
    if get_origin(kind) in (Union, UnionType):
        some = [part for part in get_args(kind) if part is not type(None)]
        return some[0] if len(some) == 1 else kind
    return kind


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
