"""Old names of a module, which still work with a DeprecationWarning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any


def deprecated_names(module: str, names: Mapping[str, Any]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module that finds classes and functions by their old names."""

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = names[name]
        warnings.warn(f"{module}.{name} is deprecated: use {new.__name__}", DeprecationWarning, stacklevel=2)
        return new

    return find
