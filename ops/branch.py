"""`--branch`: begins a run with a version of another run: its weights, and its optimizer if a checkpoint is kept."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.infra.embedded.data_folder import DataFolder
from headrace.infra.errors import UsageError
from headrace.infra.kafka.run_address import is_run_address
from headrace.infra.recipe.settings import Policy, Recipe
from headrace.infra.run.run import Run
from headrace.infra.weights.files import ADAPTER_WEIGHTS
from headrace.infra.whole_folder import write_new_folder
from headrace.ops.opened_run import open_run
from headrace.ops.weights_export import choose_best, export
from headrace.schemas.records import WeightsPublished

BEGAN = "parent.json"
BEST = "best"


@dataclass(frozen=True, slots=True)
class BranchPoint:
    """The run and version that `--branch` names."""

    run: str
    """Address of a run, or its data folder."""
    version: int | None
    """None for the version with the highest held-out reward."""

    @classmethod
    def of(cls, text: str) -> BranchPoint:
        """Read `RUN@VERSION` or `RUN@best`. Raises UsageError."""
        run, at, version = text.rpartition("@")
        if not run or not at or not (version == BEST or (version.isascii() and version.isdigit())):
            raise UsageError(
                f"--branch {text}: give the data folder or the address of a run, then @ and a version, as in "
                ".headrace/arithmetic@40 or kafka://HOST:PORT/RUN@40; @best is the version with the highest held-out "
                "reward"
            )
        return cls(run, None if version == BEST else int(version))


@dataclass(frozen=True, slots=True)
class Branch:
    """A recipe whose policies begin with versions of another run."""

    recipe: Recipe
    parent: str
    """Run id of the other run, and the version of each policy: `arithmetic-1a2b3c4d solver@40`."""


def branch(recipe: Recipe, run_at_version: str, data: DataFolder) -> Branch:
    """Copy a version of another run into a data folder; return the recipe that begins with it.

    A second call for the same folder copies nothing, and does not need the other run. Nothing is ever removed: a folder
    of this name may be somebody's own.

    Args:
        recipe: Recipe of the run that is to begin.
        run_at_version: `RUN@VERSION`, or `RUN@best`; empty for the version that the run in the folder began with.
        data: Data folder of the run that is to begin.

    Raises:
        UsageError: There is no such run or version; the other run lacks a policy of the recipe, or trains an adapter;
            the run in the data folder began with something else; or the folder holds the copy of a start that became no
            run, and this start does not fit it.
    """
    folder, has_run = data.branch, data.read() is not None
    if not (folder / BEGAN).is_file():
        if not run_at_version:
            return Branch(recipe, "")
        point = BranchPoint.of(run_at_version)
        if has_run:
            raise UsageError(
                f"the run in {data.root} did not begin as a branch: leave out --branch to resume it, or begin a new "
                "run in another folder with --set name=NAME --data FOLDER"
            )
        _copy_branch(recipe, point, run_at_version, folder)
    began = json.loads((folder / BEGAN).read_text())
    if not has_run:
        _refuse_other_start(recipe, run_at_version, began["branch"], folder)
    if run_at_version and began["branch"] != run_at_version:
        raise UsageError(
            f"the run in {data.root} began with --branch {began['branch']}: give the same --branch to resume it, or "
            "begin a new run in another folder with --set name=NAME --data FOLDER"
        )
    return Branch(_set_policy_paths(recipe, folder), began["parent"])


def _refuse_other_start(recipe: Recipe, run_at_version: str, copied: str, folder: Path) -> None:
    """Raise UsageError if the copy of a start that became no run is not what this start asks for."""
    remedy = f"give --branch {copied} to begin with these weights, or remove {folder} to begin without them"
    if run_at_version != copied:
        raise UsageError(f"an earlier start with --branch {copied} copied weights, but no run began: {remedy}")
    if missing := [name for name in recipe.policies if not (folder / name).is_dir()]:
        raise UsageError(
            f"an earlier start with --branch {copied} copied no weights of policy {', '.join(missing)}: remove "
            f"{folder}, and give the same command again"
        )


def _copy_branch(recipe: Recipe, point: BranchPoint, text: str, folder: Path) -> None:
    is_address = is_run_address(point.run)
    with open_run(point.run if is_address else None, None if is_address else Path(point.run), store=True) as opened:
        run = opened.run
        if unknown := recipe.policies.keys() - run.recipe.policies.keys():
            raise UsageError(
                f"run {run.address.run} has no policy {', '.join(sorted(unknown))}: it has "
                f"{', '.join(run.recipe.policies)}; a branch can only have policies of the run that it begins from"
            )
        with write_new_folder(folder) as growing:
            versions = {
                name: _copy_policy(run, name, point.version, growing / name, is_whole=policy.lora is None)
                for name, policy in recipe.policies.items()
            }
            parent = " ".join([run.run_id, *(f"{policy}@{version}" for policy, version in versions.items())])
            (growing / BEGAN).write_text(json.dumps({"branch": text, "parent": parent}))


def _copy_policy(run: Run, policy: str, version: int | None, out: Path, *, is_whole: bool) -> int:
    """Copy weights, and the optimizer if it belongs to the same weights; never an optimizer of or for an adapter."""
    found = export(run, policy, choose_best(run, policy) if version is None else version, out)
    if (out / ADAPTER_WEIGHTS).exists():
        raise UsageError(
            f"policy {policy} of run {run.address.run} is an adapter, and a branch cannot begin from an adapter: merge "
            f"it into its base model as docs/lora.md shows, and set policies.{policy}.path to the merged folder"
        )
    if is_whole and run.recipe.policies[policy].lora is None:
        _copy_optimizer(run, policy, found, out)
    return found.version


def _copy_optimizer(run: Run, policy: str, event: WeightsPublished, out: Path) -> None:
    """Put the checkpoint of these weights beside them, if the run keeps one that is a single object."""
    from headrace.trainers.learner.checkpoint import CHECKPOINT_FILE, decode_checkpoint, encode_checkpoint
    from headrace.trainers.versions.history import read_history

    pointer = read_history(run, policy).checkpoints.get(event.version)
    if pointer is None or pointer.weights_hash != event.weights_hash or pointer.checkpoint is None or pointer.parts:
        return
    kept = decode_checkpoint(run.get(pointer.checkpoint))
    own = {name: tensor for name, tensor in kept.tensors.items() if not name.startswith("reference/")}
    begin = replace(kept, tensors=own, metadata={**kept.metadata, "version": 0})  # its reference is its own start
    with (out / CHECKPOINT_FILE).open("wb") as file:
        file.writelines(encode_checkpoint(begin))


def _set_policy_paths(recipe: Recipe, folder: Path) -> Recipe:
    """Return the recipe with policies that begin from folders. Its settings are checked again."""

    def from_folder(name: str, policy: Policy) -> Policy:
        settings = policy.model_dump(exclude={"model", "alphabet", "warm_start"})
        return Policy.model_validate({**settings, "path": str((folder / name).resolve())})

    policies = {name: from_folder(name, policy) for name, policy in recipe.policies.items()}
    return recipe.model_copy(update={"policies": policies})
