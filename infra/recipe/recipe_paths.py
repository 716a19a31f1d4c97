"""Finds files and folders that a recipe names: a relative path is looked for in the places of plug-ins, in their order.

So it is found beside the recipe, then in the folder where the command runs. The recipe keeps the path as it was
written, because the path must also be found on other machines.
"""

from __future__ import annotations

from pathlib import Path

from headrace.infra.environment import expand_user
from headrace.infra.plug_ins import search_folders


def find_path(named: str, where: str = "path") -> Path:
    """Return the first place of a path where something is; if there is nothing at all, the last place.

    Raises UsageError, which names the key `where`, for a `~` without a home folder.
    """
    places = list_places(named, where)
    return next((place for place in places if place.exists()), places[-1])


def list_places(named: str, where: str = "path") -> list[Path]:
    """Return the absolute paths that a path of a recipe may mean, in the order in which they are tried."""
    path = expand_user(Path(named), where)
    return [path] if path.is_absolute() else [Path(folder, path).absolute() for folder in (*search_folders(), "")]


def describe_places(named: str, where: str = "path") -> str:
    """Return where a path was looked for, as `neither /a/b nor /c/b exists`."""
    places = list(dict.fromkeys(map(str, list_places(named, where))))
    return f"{places[0]} does not exist" if len(places) == 1 else f"neither {' nor '.join(places)} exists"
