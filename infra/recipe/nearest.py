"""Suggests what a user may have meant by a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def suggest_nearest(name: str, known: Iterable[str]) -> str:
    """Return a question that names the nearest known name; empty if none is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean `{near[0]}`?" if near else ""


def suggest_nearest_file(path: Path) -> str:
    """Return a question that names the TOML file in that folder whose name is nearest; empty if none is near."""
    with suppress(OSError):
        if hint := suggest_nearest(path.name, sorted(file.name for file in path.parent.glob("*.toml"))):
            return hint
    return ""
