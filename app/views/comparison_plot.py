"""`headrace compare --plot`: reward against versions, trajectories and wall time, as PNG and as a page beside it."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headrace.app.views.comparison_page import comparison_html, policies_of
from headrace.infra.errors import UsageError
from headrace.ops.compare.comparison import AXES, TRAILING, Point, mean_curve, seed_curves

LABELS = {"version": "version", "trajectories": "trajectories rolled out", "seconds": "wall time, s"}
LINE = 75
"""Letters of a line above a panel."""
ROWS = {"reward": f"training reward, {TRAILING['reward']} versions", "held_out": "held-out reward"}


def plot(found: Mapping[str, Any], file: Path) -> list[Path]:
    """Write the picture, and beside it a page that holds table and picture; return both files.

    Raises UsageError for what cannot be written.
    """
    picture, page = io.BytesIO(), file.with_suffix(".html")
    figure_of(found).savefig(picture, format="png", dpi=100)
    try:
        file.write_bytes(picture.getvalue())
        page.write_text(comparison_html(found, picture.getvalue()), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--plot {file}: {error}") from error
    return [file, page]


def figure_of(found: Mapping[str, Any]) -> Any:
    """Return a row of training and one of held-out reward for every policy; lines are means, bands intervals.

    A variant whose seeds have no stretch of an axis in common has no mean there: each seed is a thin line.
    """
    from matplotlib.figure import Figure

    policies = policies_of(found) or [""]
    figure = Figure(figsize=(15, 7.2 * len(policies)), layout="constrained")
    panels = figure.subplots(2 * len(policies), len(AXES), squeeze=False, sharey="row")
    rows = [(policy, what) for policy in policies for what in ROWS]
    for row, (policy, what) in zip(panels, rows, strict=True):
        curves = [_curves(found, policy, what, axis) for axis in AXES]
        for panel, axis, some in zip(row, AXES, curves, strict=True):
            for place, (name, curve) in enumerate(some.items()):
                _line(panel, curve, name, place)
            panel.set_title(_caption(some), fontsize="small")
            panel.set_xlabel(LABELS[axis])
            panel.grid(alpha=0.3)
        row[0].set_ylabel(f"{policy}: {ROWS[what]}")
        row[0].set_ylim(_limits([curve for some in curves for curve in some.values()]))
    handles, names = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", fontsize="small")
    figure.suptitle(f"sweep {found['sweep']}: means over seeds, bands of 95 %")
    return figure


class Curve(NamedTuple):
    """What is drawn of a variant against one axis."""

    mean: Mapping[str, list[Any]]
    """As `headrace.ops.compare.comparison.mean_curve` tells it."""
    seeds: Sequence[Sequence[Point]]
    """Of a variant that has no mean; empty with one."""


def _curves(found: Mapping[str, Any], policy: str, what: str, axis: str) -> dict[str, Curve]:
    """Return the curves of all variants; an empty one of a variant of which no run was done, for its colour's sake."""
    curves = {}
    for name, variant in found["variants"].items():
        block = variant["policies"].get(policy)
        mean = block["curves"][what][axis] if block else mean_curve([], axis)
        curves[name] = Curve(mean, () if mean["x"] else seed_curves(found, name, policy, what, axis))
    return curves


def _caption(curves: Mapping[str, Curve]) -> str:
    """Return what is to be said above a panel: that nothing is in it, or of which variants it shows single seeds."""
    if not any(curve.mean["x"] or curve.seeds for curve in curves.values()):
        return "empty: no run has measured it"
    apart = [name for name, curve in curves.items() if curve.seeds]
    told = f"thin: each seed of {', '.join(apart)} by itself, as they have no stretch in common"
    return textwrap.fill(told, LINE) if apart else ""


def _limits(curves: Iterable[Curve]) -> tuple[float, float] | None:
    """Return a scale on which the means fill the panel: a band of two seeds may be wider than all rewards there are."""
    lines = [[curve.mean["mean"], *([y for _, y in seed] for seed in curve.seeds)] for curve in curves]
    values = [value for some in lines for line in some for value in line]
    if not values:
        return None
    room = max(0.15 * (max(values) - min(values)), 0.01)
    return min(values) - room, max(values) + room


def _line(panel: Any, curve: Curve, name: str, place: int) -> None:
    """Draw a variant's mean and band, or its seeds; a line of one point is a dot."""
    look = {"color": f"C{place % 10}", "linestyle": "-" if place < 10 else "--"}
    mean = curve.mean
    panel.plot(mean["x"], mean["mean"], label=name, marker="o" if len(mean["x"]) == 1 else "", **look)
    if mean["x"] and mean["low"][0] is not None:
        panel.fill_between(mean["x"], mean["low"], mean["high"], color=look["color"], alpha=0.12, linewidth=0)
    for seed in curve.seeds:
        x, y = zip(*seed, strict=True)
        panel.plot(x, y, linewidth=0.8, marker="." if len(seed) == 1 else "", **look)
