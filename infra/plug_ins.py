"""Loads users' own functions and classes by `package.module:Name`, with explanations of failures.

A module is searched first on the normal import path, then in the folders of the recipe, then in the working folder.
These folders are at the end of `sys.path`, so they hide neither Python's modules nor installed packages. Imports within
a plug-in are found in the same way.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.infra.environment import PLUG_INS_VARIABLE, read_environment
from headrace.infra.errors import UsageError
from headrace.infra.own_frames import read_error_text

ROOMS_OF_0_1 = ("consumers", "envs", "producers", "trainers")
"""Packages that were top-level until 0.1; recipes on the log still use those names."""
SELECTOR_MODULES = ("contract", "dots", "filter_solved", "greso", "pools", "registry", "tiers")
MOVED_MODULES = {
    "envs.single_turn": "envs.workflows.single_turn",
    "envs.solver_verifier": "envs.workflows.solver_verifier",
    **{f"producers.selectors.{name}": f"producers.feed.selectors.{name}" for name in SELECTOR_MODULES},
}
"""Names in recipes of 0.1, and their current names."""
NOT_THEIRS = frozenset({"headrace", "reasoning_gym"})
"""Headrace, and a dependency whose data sets are named `reasoning_gym:NAME`."""

_beside: list[str] = []
"""Folders of the recipes that this process has read."""


def add_search_folders(folders: Iterable[Path]) -> None:
    """Add a recipe's folders to the search for plug-ins."""
    _beside.extend(str(folder) for folder in folders if str(folder) not in _beside)


def search_folders() -> tuple[str, ...]:
    """Return the folders that are searched for plug-ins after the normal import path, in order.

    `headrace up` passes its folders to the components that it starts.
    """
    folders = [*read_environment(PLUG_INS_VARIABLE).split(os.pathsep), *_beside]
    with suppress(OSError):  # the working folder may be deleted
        folders.append(str(Path.cwd()))
    return tuple(dict.fromkeys(filter(None, folders)))


def load_plug_in(where: str, name: str) -> Callable[..., Any]:
    """Return the function or class `package.module:Name`; `where` begins the error message.

    Raises UsageError: with the searched folders if the module is not found, with file and line if its import failed, or
    if the module lacks the function or class.
    """
    module, _, attribute = name.partition(":")
    if "/" in module or module.startswith(".") or module.endswith(".py"):
        bare = module.removesuffix(".py").strip("./").replace("/", ".")
        raise UsageError(f'{where}: {name!r} is a path; write the module\'s name, as in "{bare}:{attribute}"')
    try:
        found: Any = import_module_named(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"{where}: {_explain_failure(module, error)}") from error
    if not hasattr(found, attribute):
        file = getattr(found, "__file__", None) or "built into Python"
        raise UsageError(f"{where}: module {module} has no {attribute!r} ({file}){_find_hidden(module)}")
    named: Callable[..., Any] = getattr(found, attribute)
    if not callable(named):
        raise UsageError(f"{where}: {name!r} is neither a function nor a class but {named!r}")
    return named


def import_module_named(name: str) -> ModuleType:
    """Import a module named in a recipe; Headrace's modules also by their names until 0.1.

    Raises ImportError, and the module's own errors. A user's module comes first, because it may have a name that
    Headrace's packages once had.
    """
    _add_folders_to_path()
    return importlib.import_module(_name_of_today(name) if is_of_0_1(name) else name)


def is_own(name: str) -> bool:
    """Return whether a recipe's name means a user's own code, not shipped code."""
    module, _, attribute = name.partition(":")
    return bool(module and attribute) and module.partition(".")[0] not in NOT_THEIRS and not is_of_0_1(module)


def is_of_0_1(name: str) -> bool:
    """Return whether a name means a Headrace module by its name until 0.1, not a user's module."""
    if name.partition(".")[0] not in ROOMS_OF_0_1:
        return False
    _add_folders_to_path()
    try:
        ours, found = _file_of(_name_of_today(name)), _file_of(name)
    except Exception:  # noqa: BLE001 - the user's own package of that name fails, as they learn when it is imported
        return False
    # In a checkout both names lead to one file, which must not become two modules.
    return ours is not None and (found is None or Path(ours).samefile(found))


def _name_of_today(name: str) -> str:
    return f"headrace.{MOVED_MODULES.get(name, name)}"


def source_paths_of(top: str) -> tuple[Path, ...]:
    """Return the file of a top-level module or the folders of a package, without importing; empty if not found."""
    _add_folders_to_path()
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return ()
    if spec is None:
        return ()
    if spec.submodule_search_locations is not None:
        return tuple(Path(folder) for folder in spec.submodule_search_locations)
    return (Path(spec.origin),) if spec.has_location and spec.origin else ()


def _add_folders_to_path() -> None:
    sys.path += [folder for folder in search_folders() if folder not in sys.path]
    importlib.invalidate_caches()  # a run lives long, and `headrace swap` may name a file that was just written


def _file_of(module: str) -> str | None:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    return spec.origin if spec is not None else None


def _explain_failure(module: str, error: BaseException) -> str:
    """Return why a module could not be imported: it is missing, or its code fails."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is None or not f"{module}.".startswith(f"{missing}."):
        return (
            f"importing {module} fails in {_find_line(module, error)}: {type(error).__name__}: "
            f"{read_error_text(error)}; fix it, or install what it needs"
        )
    if missing != module.partition(".")[0]:
        package = missing.rpartition(".")[0]
        found = ", ".join(map(str, source_paths_of(package.partition(".")[0])))
        return f"there is no module {missing}: package {package} ({found}) does not hold it{_find_hidden(module)}"
    looked = "".join(f", not in {folder}" for folder in search_folders())
    return (
        f"there is no module {missing}: it is not installed, not on PYTHONPATH{looked}. Put it beside the recipe or "
        "into the folder where the command runs, or install it, on every machine of the run"
    )


def _find_line(module: str, error: BaseException) -> str:
    """Return file and line where a plug-in fails: the innermost line of its own code, else the innermost line."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    own = source_paths_of(module.partition(".")[0])
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    of_plug_in = [frame for frame in frames if any(Path(frame.filename).is_relative_to(folder) for folder in own)]
    last = (of_plug_in or frames)[-1]
    return f"{last.filename}, line {last.lineno}"


def _find_hidden(module: str) -> str:
    """Return the user's module that an installed module of the same name hides; empty if there is none."""
    top = module.partition(".")[0]
    taken = source_paths_of(top)
    for folder in search_folders():
        spec = PathFinder.find_spec(top, [folder])
        folders = list(spec.submodule_search_locations or ()) if spec is not None else []
        found = Path(folders[0] if folders else (spec.origin or "")) if spec is not None else None
        if found is not None and found not in taken:
            return f"; another {top} hides your {found}: modules installed or on PYTHONPATH come first, so rename yours"
    return ""
