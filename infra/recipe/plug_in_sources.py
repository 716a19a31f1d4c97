"""Hashes of plug-in sources: the `recipe` topic records them, and each process that joins the run compares.

The source of a plug-in is the file of its module, or all `.py` files below the top package. Shipped code has no hash,
because the build is recorded elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from blake3 import blake3

from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.plug_ins import is_own, source_paths_of
from headrace.infra.recipe.settings import Recipe, TrainerSettings
from headrace.infra.recipe.table import Named
from headrace.schemas.records import RecipeRevision

SHOWN_DIGITS = 12
"""Shown digits of a hash."""

log = structlog.get_logger()


class OtherSource(UsageError):
    """A plug-in on this machine has another source than the run's."""


class SourceChanged(HeadraceError):
    """A plug-in's file now has the run's source, but this process loaded it before: the process must restart."""

    exit_code = os.EX_TEMPFAIL


@dataclass(frozen=True, slots=True)
class PlugInSource:
    """Path and hash of a plug-in's source."""

    path: Path
    hash: str


_loaded: dict[str, PlugInSource] = {}
"""Sources by top-level module, as of the first request in this process."""


def top_module_of(name: str) -> str:
    """Return the top-level module of `package.module:Name`."""
    return name.partition(":")[0].partition(".")[0]


def read_source_on_disk(top: str) -> PlugInSource | None:
    """Return the current source of a top-level module; None if this machine has none. Raises OSError."""
    located = source_paths_of(top)
    if not located or not all(path.exists() for path in located):
        return None
    digest = blake3()
    for name, path in _list_files(located):
        content = path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return PlugInSource(located[0], digest.hexdigest())


def find_loaded_source(top: str) -> PlugInSource | None:
    """Return the source of a top-level module as loaded in this process. Raises OSError."""
    if top not in _loaded and (found := read_source_on_disk(top)) is not None:
        _loaded[top] = found
    return _loaded.get(top)


def find_loaded_hashes(names: Iterable[str]) -> dict[str, str]:
    """Return the hash of the loaded source of every plug-in, by top-level module. Raises OSError."""
    found = {top: find_loaded_source(top) for top in map(top_module_of, names)}
    return {top: source.hash for top, source in found.items() if source is not None}


def _list_files(located: Iterable[Path]) -> list[tuple[str, Path]]:
    """Return name and path of every file of a source, in name order, without hidden files of editors."""
    found: list[tuple[str, Path]] = []
    for root in located:
        if root.is_file():
            found.append((root.name, root))
            continue
        for folder, below, names in os.walk(root):
            below[:] = [name for name in below if not name.startswith(".")]
            paths = [Path(folder, name) for name in names if name.endswith(".py") and not name.startswith(".")]
            found += [(path.relative_to(root).as_posix(), path) for path in paths]
    return sorted(found)


# ------------------------------------------------------------------------------------------ what names them in a recipe


def rollout_plug_ins(recipe: Recipe, workflow: str, kind: str = "") -> tuple[str, ...]:
    """Return the plug-ins that a rollout worker loads: environment, workflow, engine; none for another recipe."""
    wanted = recipe.workflows.get(workflow)
    if wanted is None:
        return ()
    return _keep_own([*_find_mixed(wanted.env), wanted.workflow.use, recipe.rollout_of(kind).engine.use])


def feeder_plug_ins(recipe: Recipe) -> tuple[str, ...]:
    """Return the plug-ins that the feeder loads: environments and selectors."""
    environments = [name for workflow in recipe.workflows.values() for name in _find_mixed(workflow.env)]
    return _keep_own([*environments, *(selector.use for selector in recipe.feed.selector)])


def curator_plug_ins(recipe: Recipe, policy_variant: str) -> tuple[str, ...]:
    """Return the plug-ins that a curator of a policy or shadow loads: its data algorithms."""
    known = policy_variant in recipe.policy_variants
    return _keep_own([algorithm.use for algorithm in recipe.chain_of(policy_variant)] if known else [])


def trainer_plug_ins(settings: TrainerSettings) -> tuple[str, ...]:
    """Return the plug-ins that a trainer loads: its advantage, and the parts of its loss."""
    several = (settings.advantage, settings.loss, settings.aggregation, settings.kl, *settings.correction)
    return _keep_own([one.use for one in several if one is not None])


def all_plug_ins(recipe: Recipe) -> tuple[str, ...]:
    """Return every plug-in that a recipe names, each once."""
    by_workflow = (
        name
        for workflow in recipe.workflows
        for kind in ("", *recipe.kinds)
        for name in rollout_plug_ins(recipe, workflow, kind)
    )
    by_variant = (
        name
        for one in recipe.policy_variants
        for name in (*curator_plug_ins(recipe, one), *trainer_plug_ins(recipe.trainer_of(one)))
    )
    return tuple(dict.fromkeys([*feeder_plug_ins(recipe), *by_workflow, *by_variant]))


def _keep_own(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if is_own(name)))


def _find_mixed(env: Named) -> Iterator[str]:
    """Yield the name of an environment, and of environments that it mixes."""
    yield env.use
    yield from _find_named(env.settings)


def _find_named(settings: Any) -> Iterator[str]:
    inner: Iterable[Any] = ()
    match settings:
        case {"use": str(name), **others}:
            yield name
            inner = others.values()
        case dict():
            inner = settings.values()
        case list() | tuple():
            inner = settings
    if isinstance(settings, dict):
        yield from _find_scorers(settings)
    for one in inner:
        yield from _find_named(one)


def _find_scorers(settings: dict[str, Any]) -> Iterator[str]:
    """Yield the scorers of a `dataset` that are given only by name."""
    several = settings.get("scorers")
    for one in (settings.get("scorer"), *(several.values() if isinstance(several, dict) else ())):
        if isinstance(one, str):
            yield one


# ------------------------------------------------------------------------------------------- what the run goes by


def newest_sources(revisions: Iterable[RecipeRevision]) -> dict[str, str]:
    """Return the newest hash of each top-level module, from revisions in order; old runs have none."""
    return {top: recorded for revision in revisions for top, recorded in revision.plug_ins.items()}


def sources_of(names: Iterable[str]) -> dict[str, PlugInSource]:
    """Return the current source of every plug-in on this machine, by top-level module. Raises OSError."""
    found = {top: read_source_on_disk(top) for top in dict.fromkeys(map(top_module_of, names))}
    return {top: source for top, source in found.items() if source is not None}


def hash_sources(names: Iterable[str]) -> dict[str, str]:
    """Return the source hashes for a revision. Raises OSError."""
    return {top: source.hash for top, source in sources_of(names).items()}


def find_source_differences(recorded: Mapping[str, str], here: Mapping[str, PlugInSource]) -> list[str]:
    """Return `plug-in NAME (PATH): source OLD -> NEW` for every source that differs from the recorded one."""
    return [
        f"plug-in {top} ({source.path}): source {recorded[top][:SHOWN_DIGITS]} -> {source.hash[:SHOWN_DIGITS]}"
        for top, source in here.items()
        if recorded.get(top, source.hash) != source.hash
    ]


def check_sources(recorded: Mapping[str, str], names: Iterable[str]) -> None:
    """Compare the plug-ins of this process with the run's; a plug-in without a record is accepted.

    Raises OtherSource, with both hashes; or SourceChanged if a new process would load the right source.
    """
    for name, source in _find_differing(recorded, names):
        top = top_module_of(name)
        now = read_source_on_disk(top)
        hashes = f"has source hash {source.hash[:SHOWN_DIGITS]}, but the run uses {recorded[top][:SHOWN_DIGITS]}"
        if now is not None and now.hash == recorded[top]:
            raise SourceChanged(
                f"plug-in {name}, as this process loaded it from {source.path}, {hashes}. The disk now has the run's "
                "source: start this process again"
            )
        raise OtherSource(
            f"plug-in {name} in {source.path} {hashes}: bring the run's source here; or, to use this source, stop the "
            "run and repeat the command that began it, with --new-recipe"
        )


def warn_of_differing_sources(recorded: Mapping[str, str], names: Iterable[str]) -> None:
    """Warn of plug-ins that differ from the run's, in commands that do not write to the run."""
    for name, source in _find_differing(recorded, names):
        ours, theirs = source.hash[:SHOWN_DIGITS], recorded[top_module_of(name)][:SHOWN_DIGITS]
        why = f"{name} in {source.path} has source hash {ours}, but the run used {theirs}"
        # The source of a plug-in differs from the one with which the run began.
        log.warning("plug_in.differs", why=why)


def _find_differing(recorded: Mapping[str, str], names: Iterable[str]) -> Iterator[tuple[str, PlugInSource]]:
    for name in names:
        source = find_loaded_source(top_module_of(name))
        if source is not None and recorded.get(top_module_of(name), source.hash) != source.hash:
            yield name, source
