"""`headrace scale`: asks the `headrace up` of a run for other numbers of workers and curators, by its data folder."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.infra.embedded.data_folder import HOME, UP, DataFolder, find_only_folder
from headrace.infra.embedded.scale_files import AskedCount, ask_for, read_counts
from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.kafka.run_address import parse_run
from headrace.infra.recipe.pools import ROLLOUT, count_pools, describe_change, parse_numbers
from headrace.infra.run.run import RunEnded
from headrace.infra.run.up_lease import find_holders
from headrace.ops.opened_run import open_run
from headrace.producers.engines.registry import check_engine


class NotRunning(HeadraceError):
    """No `headrace up` on this machine runs the run."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """What `headrace up` was asked for."""

    run: str
    pid: int
    """Process id of `headrace up`."""
    before: Mapping[str, int]
    """Pool, such as `rollout-sums`, to the number of processes that was asked before."""
    counts: Mapping[str, int]
    """Pool to the number that is asked now."""
    sentences: tuple[str, ...]


def find_folder(address: str | None, data: Path | None) -> DataFolder:
    """Return the data folder of a run: the given or only one, or that of a running `headrace up` at an address.

    Raises UsageError; NotRunning with the places that were searched; KafkaAway and KafkaRefused.
    """
    if address and data:
        raise UsageError("give either --run with an address, or --data with a folder")
    if not address:
        return DataFolder(data) if data else find_only_folder()
    run = parse_run(address)
    for path in sorted(HOME.glob("*/run.json")):
        folder = DataFolder(path.parent)
        if (notes := folder.read()) and notes.address == str(run) and folder.find_holder():
            return folder
    holders = find_holders(run)
    if here := [one.folder for one in holders if one.host == socket.gethostname()]:
        return DataFolder(Path(here[0]))
    if holders:
        there = " and ".join(f"on {one.host}, with the data folder {one.folder}" for one in holders)
        raise NotRunning(f"`headrace up` runs run {run.run} {there}: give the command on that machine, with --data")
    raise NotRunning(
        f"no running `headrace up` of {run} is found, neither among the data folders in {HOME.absolute()} nor on the "
        "cluster. If it runs on this machine, name its data folder by --data; otherwise start it by `headrace up "
        f"RECIPE`. For workers without `up`, use `headrace rollout --run {run}`"
    )


def scale(folder: DataFolder, words: Sequence[str], workflow: str | None) -> Scaled:
    """Ask the `headrace up` of a folder for the numbers in `rollout=N` and `curate=N`; it takes them within a second.

    Raises NotRunning; RunEnded; UsageError for words that cannot be used, or for an engine that cannot serve so many
    workers; and what `open_run` raises.
    """
    notes, holder = folder.require_notes(), folder.find_holder()
    if holder is None or holder[1] != UP:
        other = f": process {holder[0]} runs {holder[1]} on it" if holder else ""
        raise NotRunning(
            f"no `headrace up` runs the run in {folder.root} now{other}. Only a running one can be scaled: start it by "
            "`headrace up RECIPE`, and give the command again. Or set launch.workers or launch.curators in the recipe. "
            f"For workers without `up`, use `headrace rollout --run {notes.address}`"
        )
    with open_run(None, folder.root) as opened:
        run, recipe = opened.run, opened.run.recipe
    if run.ended:
        raise RunEnded(f"run {run.address.run} has ended ({run.ended}), so no further worker or curator has work")
    in_recipe, counts = count_pools(recipe), parse_numbers(recipe, words, workflow)
    if most := max((count for pool, count in counts.items() if pool.startswith(ROLLOUT)), default=0):
        check_engine(recipe, most)
    try:
        before = read_counts(folder, run.run_id, in_recipe)
    except ValueError:  # a damaged file, which is written anew
        before = in_recipe
    for pool, count in counts.items():
        ask_for(folder, pool, AskedCount(run.run_id, count, in_recipe[pool]))
    sentences = (describe_change(recipe, pool, before[pool], count) for pool, count in counts.items())
    return Scaled(run.address.run, holder[0], {pool: before[pool] for pool in counts}, counts, tuple(sentences))
