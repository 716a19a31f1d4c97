"""Compares the names and shapes of tensors with those of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]


def describe_wrong_shape(found: Shapes, expected: Shapes) -> str:
    """Return the first difference of the found tensors, by name, from those of a model; empty if there is none."""
    for name in sorted(found.keys() | expected.keys()):
        here, there = found.get(name), expected.get(name)
        if here is None:
            return f"the tensor {name[:80]!r} is missing"
        if there is None:
            return f"the model has no tensor {name[:80]!r}"
        if here != there:
            return f"the tensor {name[:80]!r} has the shape {list(here)}, and not {list(there)} as in the model"
    return ""
