"""Writes `docs/settings.md`: every key of a recipe with the text under its field.

Run it as `python -m headrace.infra.recipe.settings_page`, in a clone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from headrace.infra.recipe import settings
from headrace.infra.recipe.recipe_keys import read_settings_texts
from headrace.infra.recipe.table import Named, Settings

SETTINGS_PAGE = Path("docs") / "settings.md"
HEAD = """\
# Settings: every key of a recipe

After this page you can look up any key of a recipe: its type, its default and its meaning.

[recipes.md](recipes.md) shows whole recipes. An unknown key is refused, and the error names the known ones. The
option `--set trainer.steps=40` sets one key for one command. `NAME` stands for a name that you choose.

A key of type *name* takes the name of something shipped (`"ppo"`), or of your own as `package.module:Name`. To give it
settings, write a table with the name as `use`: `{ use = "ppo", clip_high = 0.3 }`.

<!-- Written by `python -m headrace.infra.recipe.settings_page` from the texts in infra/recipe/settings.py. -->
"""
WORDS = {str: "string", int: "integer", float: "number", bool: "true or false", Any: "any value"}
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def render_page() -> str:
    """Return the text of the page: a section for each table, in the order of the fields."""
    return "\n".join([HEAD, *_render_tables(settings.Recipe, "", read_settings_texts())])


def _render_tables(model: type[BaseModel], path: str, texts: dict[str, dict[str, str]]) -> Iterator[str]:
    yield f"## `[{path}]`\n" if path else "## At the top of the file\n"
    yield f"{_flatten(texts[model.__name__][''])}\n"
    yield "| key | type | default | meaning |\n|---|---|---|---|"
    tables: list[tuple[type[BaseModel], str]] = []
    for name, field in model.model_fields.items():
        inner, is_by_name = _find_table(field.annotation)
        if inner:
            tables.append((inner, f"{path}.{name}".strip(".") + (".NAME" if is_by_name else "")))
        cells = [f"`{name}`", _describe_type(field), _describe_default(field), _flatten(texts[model.__name__][name])]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""
    for inner, below in tables:
        yield from _render_tables(inner, below, texts)


def _find_table(kind: Any) -> tuple[type[BaseModel] | None, bool]:
    """Return the settings class of a table field, and whether it has one table per name."""
    found = [one for one in (kind, *get_args(kind)) if isinstance(one, type) and issubclass(one, Settings)]
    return (found[0] if found else None), get_origin(kind) is dict


def _describe_type(field: FieldInfo) -> str:
    bounds = [
        f"{sign} {value:,}" if isinstance(value, int) else f"{sign} {value:g}"
        for one in field.metadata
        for name, sign in SIGNS.items()
        if (value := getattr(one, name, None)) is not None
    ]
    if any(isinstance(one, BeforeValidator) for one in field.metadata):
        return "name, or a list of names"
    return ", ".join([_name_type(field.annotation), *bounds])


def _name_type(kind: Any) -> str:
    parts = [part for part in get_args(kind) if part not in (NoneType, Ellipsis)]
    origin = get_origin(kind)
    if kind in WORDS:
        found = WORDS[kind]
    elif origin is Literal:
        found = ", ".join(f'`"{part}"`' for part in parts)
    elif origin in (Union, UnionType):
        found = " or ".join(map(_name_type, parts))
    elif origin is tuple:
        found = f"list of {_name_type(parts[0])}s" if Ellipsis in get_args(kind) else f"list of {len(parts)} numbers"
    elif origin is dict:
        found = "table" if parts[1] is Any else f"table of {_name_type(parts[1])}s"
    else:
        found = "name" if issubclass(kind, Named) else "table"
    return found


def _describe_default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if value is None or value in ("", (), {}) or isinstance(value, Settings):
        return ""
    if isinstance(value, tuple) and isinstance(value[0], Named):
        names = [one.use for one in value]
        value = names if len(names) > 1 else names[0]
    return f"`{json.dumps(value.use if isinstance(value, Named) else value)}`"


def _flatten(text: str) -> str:
    """Return a text in one line, with page names as links."""
    return re.sub(r"`docs/([\w-]+\.md)`", r"[\1](\1)", " ".join(text.split()))


def main() -> None:
    """Write the page in the clone that is the working folder."""
    SETTINGS_PAGE.write_text(render_page())


if __name__ == "__main__":
    main()
