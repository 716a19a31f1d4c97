"""A user's own functions and classes, by `package.module:Name`: where they are looked for, and what went wrong.

A module is looked for among all that can be imported already, then in the folders of the recipe, then in the folder
where the command runs. These folders are at the end of `sys.path`: what is in them hides neither Python's own
modules nor an installed package, and what a plug-in imports itself is found in the same way.
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
"""Until 0.1 these were imported by their own names, and recipes on the log name what they hold so."""
SELECTOR_MODULES = ("contract", "dots", "filter_solved", "greso", "pools", "registry", "tiers")
MOVED_MODULES = {
    "envs.single_turn": "envs.workflows.single_turn",
    "envs.solver_verifier": "envs.workflows.solver_verifier",
    **{f"producers.selectors.{name}": f"producers.feed.selectors.{name}" for name in SELECTOR_MODULES},
}
"""What a recipe of 0.1 may name and where it is now."""
NOT_THEIRS = frozenset({"headrace", "reasoning_gym"})
"""Ours; and a dependency, whose data sets are named as `reasoning_gym:NAME`."""

_beside: list[str] = []
"""Folders of the recipes that this process has read."""


def look_in(folders: Iterable[Path]) -> None:
    """Look for plug-ins in a recipe's folders too."""
    _beside.extend(str(folder) for folder in folders if str(folder) not in _beside)


def search_folders() -> tuple[str, ...]:
    """Return the folders where plug-ins are looked for after all that can be imported already, in order.

    The components that `headrace up` starts are handed those of its own.
    """
    folders = [*read_environment(PLUG_INS_VARIABLE).split(os.pathsep), *_beside]
    with suppress(OSError):  # the folder where the command runs may be gone
        folders.append(str(Path.cwd()))
    return tuple(dict.fromkeys(filter(None, folders)))


def load_plug_in(where: str, name: str) -> Callable[..., Any]:
    """Return the function or class called `package.module:Name`; `where` begins the sentence of an error.

    Raises UsageError with all folders where its module was looked for, with file and line where its import failed, or
    for a module that has no such function or class.
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
    """Import a module that a recipe names; one of ours also by the name that it had until 0.1.

    Raises ImportError, and what the module raises. A module of the user's own comes first: their folder may hold
    packages of our rooms' names.
    """
    _open_folders()
    return importlib.import_module(_name_of_today(name) if is_of_0_1(name) else name)


def is_own(name: str) -> bool:
    """Return whether what a recipe names is the user's own, and nothing that is shipped."""
    module, _, attribute = name.partition(":")
    return bool(module and attribute) and module.partition(".")[0] not in NOT_THEIRS and not is_of_0_1(module)


def is_of_0_1(name: str) -> bool:
    """Return whether a module is one of ours by the name that it had until 0.1, and none of the user's own."""
    if name.partition(".")[0] not in ROOMS_OF_0_1:
        return False
    _open_folders()
    try:
        ours, found = _file_of(_name_of_today(name)), _file_of(name)
    except Exception:  # noqa: BLE001 - the user's own package of that name fails, as they learn when it is imported
        return False
    # In a checkout both names lead to one file, which must not become two modules.
    return ours is not None and (found is None or Path(ours).samefile(found))


def _name_of_today(name: str) -> str:
    return f"headrace.{MOVED_MODULES.get(name, name)}"


def source_paths_of(top: str) -> tuple[Path, ...]:
    """Return the file of a top-level module, or the folders of a package, with nothing imported; empty for none."""
    _open_folders()
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return ()
    if spec is None:
        return ()
    if spec.submodule_search_locations is not None:
        return tuple(Path(folder) for folder in spec.submodule_search_locations)
    return (Path(spec.origin),) if spec.has_location and spec.origin else ()


def _open_folders() -> None:
    sys.path += [folder for folder in search_folders() if folder not in sys.path]
    importlib.invalidate_caches()  # a run lives long, and `headrace swap` may name a file that was just written


def _file_of(module: str) -> str | None:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    return spec.origin if spec is not None else None


def _explain_failure(module: str, error: BaseException) -> str:
    """Return why a module could not be imported: it is nowhere, or it fails by itself."""
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
    """Return file and line where a plug-in fails: the innermost that is its own, or else the innermost of all."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    own = source_paths_of(module.partition(".")[0])
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    of_plug_in = [frame for frame in frames if any(Path(frame.filename).is_relative_to(folder) for folder in own)]
    last = (of_plug_in or frames)[-1]
    return f"{last.filename}, line {last.lineno}"


def _find_hidden(module: str) -> str:
    """Return which module of the user's own an installed one of the same name hides; nothing for none."""
    top = module.partition(".")[0]
    taken = source_paths_of(top)
    for folder in search_folders():
        spec = PathFinder.find_spec(top, [folder])
        folders = list(spec.submodule_search_locations or ()) if spec is not None else []
        found = Path(folders[0] if folders else (spec.origin or "")) if spec is not None else None
        if found is not None and found not in taken:
            return f"; it hides your {found}, because modules installed or on PYTHONPATH come first: rename yours"
    return ""
