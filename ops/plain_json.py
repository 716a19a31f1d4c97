"""The JSON of a tool's result, as `--json` prints it: the fields of its dataclass, in their order."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class PlainForm(Protocol):
    """A result whose JSON differs from its fields."""

    def to_json(self) -> Mapping[str, object]:
        """Return keys and values; values may be dataclasses."""


def plain(found: object) -> Any:
    """Return what `json` can write: dataclasses as objects, tuples as lists, NaN and infinities as null.

    Nested values are converted too. A field whose name is a keyword of Python ends in `_` (`from_`); its key does not.
    """
    if is_dataclass(found) and not isinstance(found, type):
        if isinstance(found, PlainForm):
            return plain(found.to_json())
        return {field.name.removesuffix("_"): plain(getattr(found, field.name)) for field in fields(found)}
    if isinstance(found, Mapping):
        return {key: plain(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [plain(value) for value in found]
    if isinstance(found, float) and not math.isfinite(found):
        return None
    return found


def encode_json(found: object, indent: int | None = 1) -> str:
    """Return the JSON of a tool's result. Every parser can read it, because NaN and infinities are null."""
    return json.dumps(plain(found), indent=indent, allow_nan=False)
