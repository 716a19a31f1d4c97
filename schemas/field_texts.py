"""The text under each field of a module's classes, read from its source: Python keeps none at run time."""

from __future__ import annotations

import ast
import inspect
from types import ModuleType


def read_field_texts(module: ModuleType) -> dict[str, dict[str, str]]:
    """Return class name to field name to the text under it; the class's own text is under ""."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef):
            texts = found[node.name] = {"": ast.get_docstring(node) or ""}
            for field, below in zip(node.body, node.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    match below:
                        case ast.Expr(ast.Constant(str(text))):
                            texts[field.target.id] = text
    return found
