"""What the cells say, as tables and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from benchmarks.asynchrony.cells import Cell, Results, find_workload
from benchmarks.asynchrony.sides import BARRIER, CLOSES, HEADRACE, NO_LOG, ONE_OFF, Result
from benchmarks.asynchrony.workloads import GOALS
from headrace.ops.compare.comparison import compute_interval


def compute_ratios(cells: Sequence[Cell], results: Results, ours: Cell, side: str = BARRIER) -> list[float]:
    """Return versions per second of a cell over those of a side on its workload, for each seed that both have."""
    some = results.select(cells, part=ours.part, workload=ours.workload)
    others = {cell.seed: result.versions_per_s for cell, result in some.items() if cell.side == side}
    own = {cell.seed: one for cell, one in some.items() if (cell.side, cell.staleness) == (ours.side, ours.staleness)}
    return [one.versions_per_s / others[seed] for seed, one in own.items() if seed in others]


def build_figures(cells: Sequence[Cell], results: Results) -> dict[str, Any]:
    """Return all that the tables and the picture show."""
    of_headline, of_grid = (
        [cell for cell in cells if cell.part == part and cell.side == HEADRACE] for part in ("headline", "grid")
    )
    headline = {
        cell.workload: {side: compute_ratios(cells, results, cell, side) for side in (BARRIER, ONE_OFF)}
        for cell in of_headline
    }
    grid = [
        {
            "spread": find_workload(cell.workload).spreads[0],
            "max_staleness": cell.staleness,
            "ratio": next(iter(compute_ratios(cells, results, cell)), None),
        }
        for cell in of_grid
    ]
    done = results.select(cells)
    return {
        "headline": headline,
        "grid": grid,
        "learning": _build_curves(results.select(cells, part="learning")),
        "runs": [{**asdict(cell), **asdict(result)} for cell, result in done.items()],
    }


def _build_curves(done: Mapping[Cell, Result]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return side to policy to the mean held-out reward over seeds, by version that was evaluated with every seed."""
    found: dict[str, dict[str, dict[int, list[float]]]] = {}
    for cell, result in done.items():
        for policy, curve in result.held_out.items():
            for version, reward in curve:
                by_version = found.setdefault(cell.side, {}).setdefault(policy, {})
                by_version.setdefault(int(version), []).append(reward)
    runs = Counter(cell.side for cell in done)
    return {
        side: {
            policy: [
                {"version": at, **asdict(compute_interval(values))}
                for at, values in sorted(by_version.items())
                if len(values) == runs[side]
            ]
            for policy, by_version in policies.items()
        }
        for side, policies in found.items()
    }


def show(console: Console, cells: Sequence[Cell], results: Results) -> bool:
    """Print the tables; return whether the audit of every run with a log closes."""
    figures = build_figures(cells, results)
    _show_runs(console, results.select(cells))
    for name, by_side in figures["headline"].items():
        for side, ratios in by_side.items():
            if ratios:
                console.print(f"{name}: {_describe_ratios(ratios, side, GOALS[name])}")
    if figures["grid"]:
        _show_grid(console, figures["grid"])
    for side, policies in figures["learning"].items():
        for policy, curve in policies.items():
            first, last = _describe(curve[0]), _describe(curve[-1])
            console.print(f"{side}, {policy}: held-out reward {first} at version 0, {last} at {curve[-1]['version']}")
    return all(one.audit in (CLOSES, NO_LOG) for one in results.select(cells).values())


def _describe_ratios(ratios: Sequence[float], side: str, goal: float) -> str:
    verdict = f"; goal {goal}: {'reached' if fmean(ratios) >= goal else 'missed'}" if side == BARRIER else ""
    return f"{fmean(ratios):.2f} times the versions/s of {side} ({min(ratios):.2f} to {max(ratios):.2f}){verdict}"


def _show_runs(console: Console, done: Mapping[Cell, Result]) -> None:
    table = Table(Column("run", no_wrap=True), title="All runs", box=None, padding=(0, 1), collapse_padding=True)
    for name in ("versions/s", "expected", "play s", "train s", "lost", "audit"):
        table.add_column(name, justify="right")
    for cell, one in done.items():
        has_log = cell.side == HEADRACE
        phases = ("", "") if has_log else (f"{one.play_s:.2f}", f"{one.train_s:.2f}")
        lost = f"{one.discarded:.1%}" if has_log else ""
        rate = "" if cell.part == "learning" else f"{one.versions_per_s:.3f}"  # the loops wait for evaluations there
        table.add_row(cell.name, rate, _expect(cell), *phases, lost, one.audit)
    console.print(table)
    console.print("expected: if only the engine took time; play, train: seconds per version; lost: share of the groups")


def _expect(cell: Cell) -> str:
    """Return the versions per second of a scripted run if only the engine took time."""
    if cell.part == "learning":
        return ""
    return f"{1 / find_workload(cell.workload).expect_version_s(cell.side):.3f}"


def _show_grid(console: Console, grid: Sequence[Mapping[str, Any]]) -> None:
    ages = list(dict.fromkeys(one["max_staleness"] for one in grid))
    table = Table("spread", *(f"max_staleness {age}" for age in ages), title="Versions/s over those of the barrier")
    for spread in dict.fromkeys(one["spread"] for one in grid):
        ratios = {one["max_staleness"]: one["ratio"] for one in grid if one["spread"] == spread}
        table.add_row(f"{spread:g}", *("" if ratios[age] is None else f"{ratios[age]:.2f}" for age in ages))
    console.print(table)


def _describe(point: Mapping[str, Any]) -> str:
    half = "" if point["high"] is None else f" ± {point['high'] - point['mean']:.3f}"
    return f"{point['mean']:.3f}{half}"
