"""The cells of the benchmark: which runs there are, and a file of results from which an interrupted one goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.asynchrony.sides import BARRIER, HEADRACE, ONE_OFF, Result, RunFailed, run_side
from benchmarks.asynchrony.workloads import GRID_STALENESS, HEADLINE, SPREADS, STALENESS, Workload, list_grid
from headrace.infra.atomic_files import write_atomically

PARTS = ("headline", "grid", "learning")
SIDES = ((HEADRACE, STALENESS), (BARRIER, 0), (ONE_OFF, 1))
"""With their `max_staleness`."""
ROUNDS = (1, 2)
"""Seeds of the headline."""
LEARNING_SEEDS = (1, 2, 3, 4, 5)
LEARNING_STEPS = 36
START_S = 240.0
"""Seconds that a run may take beside its minutes: start, warm start, evaluations, end."""
LEARNING = "math-multi-agent"
LEARNING_RECIPE = """
extends = "{name}"
name = "asynchrony-learning"
seed = {seed}
curate.chain = ["validate", "max_staleness"]     # each side trains on all that it plays
feed = {{ pace = "all", solved_share = 1.0 }}
trainer = {{ steps = {steps}, max_staleness = {staleness}, checkpoint_every = 1000000 }}
evaluate = {{ every = {every}, problems = 128, samples = 2 }}
kafka.partitions = 2
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    part: str
    workload: str
    side: str
    staleness: int
    """The recipe's `max_staleness`; 0 with a barrier."""
    seed: int
    steps: int

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.part}-{self.workload}-{self.side}-{self.staleness}-{self.seed}"


@dataclass(frozen=True, slots=True)
class Plan:
    """How large the benchmark is."""

    parts: Sequence[str] = PARTS
    minutes: float = 1.0
    """Of a cell of the headline and of the grid in the steady state, if only the engine took time."""
    rounds: Sequence[int] = ROUNDS
    headline: Sequence[Workload] = HEADLINE
    spreads: Sequence[float] = SPREADS
    staleness: Sequence[int] = GRID_STALENESS
    seeds: Sequence[int] = LEARNING_SEEDS
    steps: int = LEARNING_STEPS

    def list_cells(self) -> list[Cell]:
        """Return all runs, the headline's first."""
        found = []
        if "headline" in self.parts:
            found += [cell for seed in self.rounds for one in self.headline for cell in self._list_headline(one, seed)]
        if "grid" in self.parts:
            found += [cell for one in list_grid(self.spreads) for cell in self._list_grid_row(one)]
        if "learning" in self.parts:
            found += [cell for seed in self.seeds for cell in self._list_learning(seed)]
        return found

    def _list_headline(self, workload: Workload, seed: int) -> Iterator[Cell]:
        for side, staleness in SIDES:
            yield Cell("headline", workload.name, side, staleness, seed, self._count_steps(workload, side, staleness))

    def _list_grid_row(self, workload: Workload) -> Iterator[Cell]:
        yield Cell("grid", workload.name, BARRIER, 0, 1, self._count_steps(workload, BARRIER, 0))
        for staleness in self.staleness:
            steps = self._count_steps(workload, HEADRACE, staleness)
            yield Cell("grid", workload.name, HEADRACE, staleness, 1, steps)

    def _list_learning(self, seed: int) -> Iterator[Cell]:
        for side, staleness in SIDES:
            yield Cell("learning", "sums", side, staleness, seed, self.steps)

    def _count_steps(self, workload: Workload, side: str, staleness: int) -> int:
        steady = self.minutes * 60 / workload.expect_version_s(side)
        return max(2, round(steady) + (staleness + 2 if self.minutes >= 0.5 else 2))


def find_workload(name: str) -> Workload:
    """Return a workload of the headline or of the grid."""
    return next(one for one in (*HEADLINE, *list_grid()) if one.name == name)


class Results:
    """The results by cell, in a file of JSON lines that has each as soon as it is there."""

    def __init__(self, file: Path) -> None:
        self._file = file
        lines = file.read_text().splitlines() if file.exists() else []
        self.by_cell: dict[Cell, Result] = {}
        for line in lines:
            read = json.loads(line)
            self.by_cell[Cell(**read["cell"])] = Result(**read["result"])

    def add(self, cell: Cell, result: Result) -> None:
        """Take in a result."""
        self.by_cell[cell] = result
        lines = (json.dumps({"cell": asdict(one), "result": asdict(found)}) for one, found in self.by_cell.items())
        write_atomically(self._file, "".join(f"{line}\n" for line in lines).encode())

    def select(self, cells: Sequence[Cell], **wanted: Any) -> dict[Cell, Result]:
        """Return the results of those of some cells whose fields have these values."""
        return {
            cell: self.by_cell[cell]
            for cell in cells
            if cell in self.by_cell and all(getattr(cell, name) == value for name, value in wanted.items())
        }


def run_cells(
    cells: Sequence[Cell], results: Results, folder: Path, minutes: float, say: Callable[[str], None]
) -> Mapping[Cell, str]:
    """Run the cells that have no result; return why others failed, so that the same command tries them again."""
    missing, failed = [cell for cell in cells if cell not in results.by_cell], dict[Cell, str]()
    for at, cell in enumerate(missing, len(cells) - len(missing) + 1):
        own = folder / cell.name
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir(parents=True)
        say(f"{at}/{len(cells)} {cell.name}: {cell.steps} versions")
        try:
            result = run_side(cell.side, write_recipe(cell, own), own, minutes * 180 + START_S)
        except RunFailed as error:
            failed[cell] = str(error)
            say(f"failed: {error}")
            continue
        results.add(cell, result)
        shutil.rmtree(own, ignore_errors=True)
    return failed


def write_recipe(cell: Cell, folder: Path) -> Path:
    """Write the recipe of a cell."""
    if cell.part != "learning":
        workload = find_workload(cell.workload)
        return workload.write_recipe(folder, steps=cell.steps, staleness=cell.staleness, seed=cell.seed)
    text = LEARNING_RECIPE.format(
        name=LEARNING, seed=cell.seed, steps=cell.steps, staleness=cell.staleness, every=max(1, cell.steps // 4)
    )
    path = folder / "recipe.toml"
    path.write_text(text)
    return path
