"""The numbers that `headrace scale` asks of a running `headrace up`: in the data folder, a file for each pool.

A pool is a set of equal components, such as `rollout-sums`, the workers of workflow `sums`. Each pool has a file of its
own, so that two commands at once cannot undo each other. The files outlive `up`, which reads them again when the run
is resumed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from headrace.infra.atomic_files import write_atomically
from headrace.infra.embedded.data_folder import DataFolder


@dataclass(frozen=True, slots=True)
class AskedCount:
    """How many processes a pool should have."""

    run_id: str
    count: int
    in_recipe: int
    """The recipe's number when this was asked; if the recipe has another one later, that one holds."""


def ask_for(folder: DataFolder, pool: str, asked: AskedCount) -> None:
    """Ask for a number of processes. Raises OSError."""
    folder.scale.mkdir(exist_ok=True)
    write_atomically(folder.scale / f"{pool}.json", json.dumps(asdict(asked)).encode(), durable=True)


def read_counts(folder: DataFolder, run_id: str, in_recipe: Mapping[str, int]) -> dict[str, int]:
    """Return the number of processes of every pool: the recipe's, or what was asked since. Raises OSError, ValueError.

    Args:
        folder: Data folder of the run.
        run_id: The run; what another run in the same folder was asked does not count.
        in_recipe: Pool to its number in the recipe.
    """
    counts = dict(in_recipe)
    for pool, number in in_recipe.items():
        path = folder.scale / f"{pool}.json"
        if not path.exists():
            continue
        try:
            asked = AskedCount(**json.loads(path.read_bytes()))
        except TypeError as error:
            raise ValueError(f"{path}: {error}") from error
        if (asked.run_id, asked.in_recipe) == (run_id, number):
            counts[pool] = asked.count
    return counts


def forget_outdated(folder: DataFolder, run_id: str, in_recipe: Mapping[str, int]) -> None:
    """Remove what was asked while the recipe had another number. Raises OSError."""
    counts = read_counts(folder, run_id, in_recipe)
    for path in folder.scale.glob("*.json"):
        if counts.get(path.stem) == in_recipe.get(path.stem):
            path.unlink(missing_ok=True)
