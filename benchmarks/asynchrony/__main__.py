"""What asynchrony is worth: `python -m benchmarks.asynchrony [--parts P ...] [--plot docs/asynchrony.png] [--json F]`.

The sides are Headrace, a synchronous loop with a version barrier (barrier_loop.py says why it is a fair opponent), and
the same loop one step off. workloads.py has the latencies, which were fixed beforehand.

headline: versions per second in the steady state, over those of the two loops, with two policies whose time is latency,
and with long-tailed conversations of many turns. grid: those over the barrier's, for three spreads of lengths and three
values of `max_staleness`. learning: held-out reward per sample of real policies (recipe math-multi-agent) on all sides.

Every run is a cell. Results of cells are kept in `--folder`, so the same command goes on where it was stopped; after a
change of the code, name another folder. With one minute per cell the whole takes an hour on two cores. `--smoke` runs
small cells of the headline and of learning in some two minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.asynchrony.cells import LEARNING, PARTS, Cell, Plan, Results, run_cells
from benchmarks.asynchrony.picture import draw
from benchmarks.asynchrony.tables import build_figures, show
from benchmarks.asynchrony.workloads import HEADLINE
from headrace.infra.recipe.recipe_file import load_recipe

SMOKE = Plan(minutes=0.05, rounds=(1,), headline=HEADLINE[:1], spreads=(), seeds=(1,), steps=2)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.asynchrony",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="only these parts")
    parser.add_argument("--minutes-per-cell", type=float, default=1.0, help="of headline and grid")
    parser.add_argument("--smoke", action="store_true", help="a few small cells")
    parser.add_argument("--dry-run", action="store_true", help="list the cells, and run none")
    parser.add_argument("--folder", type=Path, default=Path(".headrace/asynchrony"), help="keeps the results")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="also draw grid and learning curves")
    given = parser.parse_args()
    plan = SMOKE if given.smoke else Plan(minutes=given.minutes_per_cell)
    plan, console = replace(plan, parts=given.parts), Console()
    cells = plan.list_cells()
    folder = given.folder.absolute() / ("smoke" if given.smoke else "")
    folder.mkdir(parents=True, exist_ok=True)
    results = Results(folder / "cells.jsonl")
    failed: Mapping[Cell, str] = {}
    if given.dry_run:
        for cell in cells:
            console.print(f"{cell.name}: {cell.steps} versions{', done' if cell in results.by_cell else ''}")
    else:
        failed = run_cells(cells, results, folder, plan.minutes, lambda words: console.print(words, highlight=False))
    closes = show(console, cells, results)
    figures = build_figures(cells, results)
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1) + "\n")
    if given.plot:
        trained = load_recipe(LEARNING)
        draw(figures, given.plot, trained.trainer.groups_per_batch * trained.rollout.group_size)
    sys.exit(1 if failed or not closes else 0)


if __name__ == "__main__":
    main()
