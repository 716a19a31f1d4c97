"""The page of a comparison of variants: a table in the terminal, a picture, and an HTML file with both."""

from __future__ import annotations

import base64
import io
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Column, Table

from headrace.app.views.columns import make_columns
from headrace.app.views.safe_text import Text
from headrace.infra.errors import UsageError
from headrace.ops.compare.comparison import (
    CURVE_AXES,
    TRAILING,
    Comparison,
    Interval,
    MeanCurve,
    Point,
    compute_mean_curve,
    list_seed_curves,
)

COMPARISON_COLUMNS = (
    *("runs", "reward", "held-out", "skipped", "trajectories", "trained", "discarded", "length bias", "replayed"),
    *("wall s", "held-out at the start", "reward over the first", "held-out over the first", "groups discarded"),
)
TABLES = (
    ("runs", "reward", "held-out", "trajectories", "wall s"),
    ("skipped", "trained", "discarded", "length bias", "replayed"),
    ("held-out at the start", "reward over the first", "held-out over the first"),
    ("groups discarded",),
)
"""Columns of one table of a terminal, so that each fits 80 characters."""
EMPTY_CELLS = ("", "0", "0 ± 0")
NOTE = (
    "Means over seeds ± half of their 95 % interval (Student's t). reward: training reward of the last 5 versions, on "
    "all tasks that the variant's selector took; held-out: reward of the last evaluation, on the same tasks for all "
    "variants; held-out at the start: that of the first evaluation; skipped: tasks that the selector did not take; "
    "trained: share of all groups; discarded: share of the groups that were concluded before the run's end; length "
    "bias: mean length of discarded groups over that of trained groups; over the first: difference from the run of the "
    "same seed of the first variant, or of the one that `over` names in the sweep."
)


def comparison_page(found: Comparison) -> RenderableType:
    """Return what `headrace compare` shows."""
    title = Text.assemble((f"sweep {found.sweep}", "bold"), f"  {found.about}".rstrip())
    parts: list[RenderableType] = [title]
    for policy in found.policies:
        columns, rows = _build_cells(found, policy)
        for names in TABLES:
            shown = [at for at, name in enumerate(columns, 1) if name in names]
            if shown:
                parts += [Text(), _build_table((policy, *columns), rows, shown)]
    parts += [Text(), Text(NOTE, style="dim")]
    return Group(*parts, *(Text(line, style="red") for line in found.warnings))


def _build_table(header: Sequence[str], rows: Sequence[Sequence[str]], shown: Sequence[int]) -> Table:
    others = (Column(header[at], justify="left" if header[at] == COMPARISON_COLUMNS[-1] else "right") for at in shown)
    table = make_columns(Column(header[0], no_wrap=True), *others)
    for row in rows:
        table.add_row(*(Text(row[at]) for at in (0, *shown)))
    return table


def comparison_html(found: Comparison, picture: bytes) -> str:
    """Return a page that needs no other file.

    Args:
        found: What was compared.
        picture: PNG.
    """
    title = f"sweep {escape(found.sweep)}"
    tables = "\n".join(_html_table(found, policy) for policy in found.policies)
    notes = "\n".join(f"<p>{escape(line)}</p>" for line in (NOTE, *found.warnings))
    image = base64.b64encode(picture).decode()
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 15px/1.4 sans-serif; margin: 2em auto; max-width: 1300px; padding: 0 1em }}
table {{ border-collapse: collapse; margin: 1em 0 }}
td, th {{ padding: .2em .8em; text-align: right; border-bottom: 1px solid #ddd }}
td:first-child, th:first-child, td:last-child, th:last-child {{ text-align: left }}
img {{ max-width: 100% }}
</style></head><body>
<h1>{title}</h1>
<p>{escape(found.about)}</p>
{tables}
{notes}
<img alt="reward and held-out reward by version, trajectories and wall time" src="data:image/png;base64,{image}">
</body></html>
"""


def _html_table(found: Comparison, policy: str) -> str:
    def line(cells: tuple[str, ...], kind: str) -> str:
        return "<tr>" + "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in cells) + "</tr>"

    columns, rows = _build_cells(found, policy)
    lines = [line((policy, *columns), "th"), *(line(row, "td") for row in rows)]
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def _build_cells(found: Comparison, policy: str) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return columns and rows, without columns that are empty for every variant."""
    rows = list(_build_rows(found, policy))
    shown = [
        0,
        *(at for at in range(1, len(COMPARISON_COLUMNS) + 1) if any(row[at] not in EMPTY_CELLS for row in rows)),
    ]
    return [COMPARISON_COLUMNS[at - 1] for at in shown[1:]], [tuple(row[at] for at in shown) for row in rows]


def _build_rows(found: Comparison, policy: str) -> Iterator[tuple[str, ...]]:
    for name, variant in found.variants.items():
        block = variant.policies.get(policy)
        if block is None:
            yield (name, str(variant.runs), *[""] * (len(COMPARISON_COLUMNS) - 1))
            continue
        discarded = ", ".join(f"{one.mean:,.0f} {reason}" for reason, one in block.discarded.items())
        yield (
            name,
            str(variant.runs),
            format_interval(block.reward, "{:.3f}"),
            format_interval(block.held_out, "{:.3f}"),
            format_interval(variant.skipped, "{:,.0f}"),
            format_interval(block.trajectories, "{:,.0f}"),
            format_interval(block.trained_share, "{:.1%}"),
            format_interval(block.discarded_share, "{:.1%}"),
            format_interval(block.length_bias, "{:.2f}"),
            format_interval(block.replayed, "{:,.0f}"),
            format_interval(variant.wall_s, "{:.0f}"),
            format_interval(block.held_out_first, "{:.3f}"),
            format_interval(block.over_first["reward"], "{:+.3f}"),
            format_interval(block.over_first["held_out"], "{:+.3f}"),
            discarded or "none",
        )


def format_interval(one: Interval, form: str) -> str:
    """Return a mean and half of its interval; empty if it is not known."""
    if one.mean is None:
        return ""
    half = "" if one.high is None else f" ± {form.replace('+', '').format(one.high - one.mean)}"
    return form.format(one.mean) + half


LABELS = {"version": "version", "trajectories": "trajectories rolled out", "seconds": "wall time, s"}
LINE = 75
"""Characters in a line of the note above a panel."""
REWARD_ROWS = {"reward": f"training reward, {TRAILING['reward']} versions", "held_out": "held-out reward"}


def plot(found: Comparison, file: Path) -> list[Path]:
    """Write the picture, and beside it a page that holds table and picture; return both files.

    Raises UsageError for what cannot be written.
    """
    picture, page = io.BytesIO(), file.with_suffix(".html")
    draw_figure(found).savefig(picture, format="png", dpi=100)
    try:
        file.write_bytes(picture.getvalue())
        page.write_text(comparison_html(found, picture.getvalue()), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--plot {file}: {error}") from error
    return [file, page]


def draw_figure(found: Comparison) -> Any:
    """Return a figure with a row of training reward and one of held-out reward for every policy.

    Lines are means, bands are intervals. If the seeds of a variant share no part of an axis, each seed is a thin line.
    """
    from matplotlib.figure import Figure

    policies = found.policies or [""]
    figure = Figure(figsize=(15, 7.2 * len(policies)), layout="constrained")
    panels = figure.subplots(2 * len(policies), len(CURVE_AXES), squeeze=False, sharey="row")
    rows = [(policy, what) for policy in policies for what in REWARD_ROWS]
    for row, (policy, what) in zip(panels, rows, strict=True):
        curves = [_collect_curves(found, policy, what, axis) for axis in CURVE_AXES]
        for panel, axis, some in zip(row, CURVE_AXES, curves, strict=True):
            for index, (name, curve) in enumerate(some.items()):
                _draw_curve(panel, curve, name, index)
            panel.set_title(_note_missing_means(some), fontsize="small")
            panel.set_xlabel(LABELS[axis])
            panel.grid(alpha=0.3)
        row[0].set_ylabel(f"{policy}: {REWARD_ROWS[what]}")
        row[0].set_ylim(_choose_limits([curve for some in curves for curve in some.values()]))
    handles, names = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", fontsize="small")
    figure.suptitle(f"sweep {found.sweep}: means over seeds, bands of 95 %")
    return figure


class Curve(NamedTuple):
    """The curves of a variant against one axis."""

    mean: MeanCurve
    seeds: Sequence[Sequence[Point]]
    """Curves of the seeds of a variant without a mean; empty if it has one."""


def _collect_curves(found: Comparison, policy: str, what: str, axis: str) -> dict[str, Curve]:
    """Return the curves of all variants. A variant without a finished run has an empty one, to keep its colour."""
    curves = {}
    for name, variant in found.variants.items():
        block = variant.policies.get(policy)
        mean = block.curves[what][axis] if block else compute_mean_curve([], axis)
        curves[name] = Curve(mean, () if mean.x else list_seed_curves(found, name, policy, what, axis))
    return curves


def _note_missing_means(curves: Mapping[str, Curve]) -> str:
    """Return the note above a panel: that it is empty, or for which variants it shows single seeds."""
    if not any(curve.mean.x or curve.seeds for curve in curves.values()):
        return "empty: no run has measured this reward"
    apart = [name for name, curve in curves.items() if curve.seeds]
    note = f"{', '.join(apart)}: a thin line for each seed and no mean, because the seeds share no part of the x axis"
    return textwrap.fill(note, LINE) if apart else ""


def _choose_limits(curves: Iterable[Curve]) -> tuple[float, float] | None:
    """Return a scale on which the means fill the panel: the band of two seeds may be much wider than all rewards."""
    some = list(curves)
    values = [value for curve in some for value in curve.mean.mean if value is not None]
    values += [y for curve in some for seed in curve.seeds for _, y in seed]
    if not values:
        return None
    room = max(0.15 * (max(values) - min(values)), 0.01)
    return min(values) - room, max(values) + room


def _draw_curve(panel: Any, curve: Curve, name: str, index: int) -> None:
    """Draw a variant's mean and band, or its seeds; a line of one point is a dot."""
    look = {"color": f"C{index % 10}", "linestyle": "-" if index < 10 else "--"}
    mean = curve.mean
    panel.plot(mean.x, mean.mean, label=name, marker="o" if len(mean.x) == 1 else "", **look)
    if mean.x and mean.low[0] is not None:
        panel.fill_between(mean.x, mean.low, mean.high, color=look["color"], alpha=0.12, linewidth=0)
    for seed in curve.seeds:
        x, y = zip(*seed, strict=True)
        panel.plot(x, y, linewidth=0.8, marker="." if len(seed) == 1 else "", **look)
