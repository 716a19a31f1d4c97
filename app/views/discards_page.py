"""Pages of the groups that were not trained on: tables and a picture."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from headrace.app.views.columns import make_columns
from headrace.app.views.safe_text import Text
from headrace.app.views.tables import MOST_ERRORS
from headrace.infra.errors import UsageError
from headrace.ops.discards import BIAS_MATTERS, Bias, Binned, Discarded, Discards, PolicyDiscards, TrainedGroups

NUMBERS = ("groups", "share", "tokens", "of trained", "95 %", "reward", "age")
MOST_DIGITS = 6
"""Largest number of digits after the point of a ratio. An interval too narrow for them is shown with equal ends."""


def discards_page(found: Discards) -> RenderableType:
    """Return what `headrace discards` shows."""
    parts: list[RenderableType] = []
    for policy, ledger in found.policies.items():
        parts += [Text.assemble((f"policy {policy}", "bold"), f"  run {found.run}"), *_show_policy(ledger), Text()]
    return Group(*parts[:-1])


def _show_policy(ledger: PolicyDiscards) -> list[RenderableType]:
    trained, discarded, alone = ledger.trained, ledger.discarded, ledger.trajectories
    gone = sum(row.groups for row in discarded.values())
    total = trained.groups + gone
    if not total:
        return [Text("No group has concluded yet.")]
    table = _build_table("groups")
    _add_row(table, "trained", trained, total)
    for reason, row in discarded.items():
        _add_row(table, reason, row, total)
    parts: list[RenderableType] = [table, Text(describe_bias(ledger.bias, gone))]
    if alone:
        left_out = _build_table("trajectories left out of kept groups")
        for reason, row in alone.items():
            _add_row(left_out, reason, row, None)
        parts += [Text(), left_out]
    parts += [Text(error.sentence, style="red") for error in ledger.errors[:MOST_ERRORS]]
    if ledger.waiting:
        parts.append(Text(f"Kept groups that are not yet trained or discarded: {ledger.waiting}.", style="dim"))
    return parts


def describe_bias(bias: Bias | None, discarded: int) -> str:
    """Return the sentence about the length bias of discarded groups.

    There is a bias if the whole interval lies more than 5 % (`headrace.ops.discards.BIAS_MATTERS`) above or below 1.
    """
    if not discarded:
        return "Nothing was discarded."
    if bias is None:
        return "Too few groups, or too short groups, to compare the lengths of discarded and trained groups."
    ratio, low, high = _format_bias(bias)
    ratio_in_words = f"Discarded groups are {ratio} times as long as trained ones (95 %: {low} to {high})"
    least, most = 1 - BIAS_MATTERS, 1 + BIAS_MATTERS
    if bias.low > most:
        return f"{ratio_in_words}: training sees too few long answers."
    if bias.high < least:
        return f"{ratio_in_words}: training sees too few short answers."
    if least <= bias.low and bias.high <= most:
        return f"{ratio_in_words}: within {BIAS_MATTERS * 100:.0f} %, no relevant bias."
    return f"{ratio_in_words}: no bias of more than {BIAS_MATTERS * 100:.0f} % can be seen."


def _format_bias(bias: Bias) -> list[str]:
    """Return ratio, low and high with two digits after the point, or with more where the interval is narrower."""
    width = bias.high - bias.low
    digits = min(max(2, -math.floor(math.log10(width))), MOST_DIGITS) if width > 0 else 2
    return [f"{value:.{digits}f}" for value in (bias.ratio, bias.low, bias.high)]


def _build_table(title: str) -> Table:
    return make_columns(title, *NUMBERS, right=slice(1, None), pad_edge=True)


def _add_row(table: Table, name: str, row: TrainedGroups | Discarded, total: int | None) -> None:
    bias = row.bias if isinstance(row, Discarded) else None
    ratio, low, high = _format_bias(bias) if bias else ("", "", "")
    table.add_row(
        Text(name),
        f"{row.groups:,}",
        "" if total is None else f"{row.groups / total:.1%}",
        _format_number(row.length, 1),
        f"x {ratio}" if bias else "",
        f"{low} to {high}" if bias else "",
        _format_number(row.reward, 2),
        _format_number(row.age, 1),
    )


def _format_number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


PICTURE_AXES = (
    ("length", "mean tokens per trajectory of a group (start of each bin)"),
    ("reward", "mean reward of a group (start of each bin)"),
    ("age", "age in versions"),
)
MOST_REASONS_SHOWN = 6
"""Largest number of reasons in one picture; the most frequent are shown."""
LARGEST, SMALLEST = 400.0, 4.0
"""Largest and smallest area of a dot, in square points: the smallest can still be seen."""
APART = 0.08
"""Distance between two reasons' dots at one value; values are 1 apart. Lines of equal shares would hide each other."""


def plot(found: Discards, file: Path) -> list[Path]:
    """Draw the picture into a file in the format of its suffix (png, svg, pdf), and return the file.

    Raises UsageError for what cannot be written.
    """
    figure = draw_figure(found)
    try:
        figure.savefig(file, dpi=120)
    except OSError as error:
        raise UsageError(f"--plot {file}: {error}") from error
    return [file]


def draw_figure(found: Discards) -> Any:
    """Return three panels for every policy: shares of groups by length, reward and age, a line for each reason.

    A dot's area shows its number of groups, because a share of few groups says little.
    """
    from matplotlib.figure import Figure

    policies = found.policies
    figure = Figure(figsize=(13, 3.6 * len(policies)), layout="constrained")
    panels = figure.subplots(len(policies), len(PICTURE_AXES), squeeze=False)
    for row, (policy, ledger) in zip(panels, policies.items(), strict=True):
        rows: dict[str, TrainedGroups | Discarded] = {"trained": ledger.trained}
        rows |= dict(list(ledger.discarded.items())[:MOST_REASONS_SHOWN])
        cells = {f"{name} ({one.groups:,})": one.cells for name, one in rows.items() if one.groups}
        for axis, (panel, (_, label)) in enumerate(zip(row, PICTURE_AXES, strict=True)):
            _draw_panel(panel, cells, axis)
            panel.set_xlabel(label)
        row[0].set_ylabel(f"{policy}: share of groups")
        if row[0].lines:
            row[0].legend(fontsize="small")
    figure.suptitle(
        f"run {found.run}: trained and discarded groups (in brackets: how many)\nHeight of a dot: share of the groups "
        "of its reason at this value; area: their number. Dots at the same value are drawn side by side",
        fontsize="medium",
    )
    return figure


def _draw_panel(panel: Any, cells: Mapping[str, Sequence[Binned]], axis: int) -> None:
    """Draw the shares by one of a cell's three numbers, on a scale of the values that occur."""
    counts = {name: _count_by_value(some, axis) for name, some in cells.items()}
    values = sorted({value for some in counts.values() for value in some})
    most = max((count for some in counts.values() for count in some.values()), default=1)
    for number, (name, some) in enumerate(counts.items()):
        xs = [at + APART * (number - (len(counts) - 1) / 2) for at in range(len(values))]
        shares = [some[value] / max(some.total(), 1) for value in values]
        [line] = panel.plot(xs, shares, label=name, linewidth=2 if name.startswith("trained ") else 1, alpha=0.5)
        panel.scatter(
            xs, shares, compute_areas([some[value] for value in values], most), color=line.get_color(), alpha=0.6
        )
    panel.set_xticks(range(len(values)), [f"{value:g}" for value in values], fontsize="small")
    panel.set_xlim(-0.5, max(len(values), 1) - 0.5)
    panel.margins(y=0.1)
    panel.set_ylim(bottom=0)


def compute_areas(counts: Sequence[int], most: int) -> list[float]:
    """Return the dots' areas for these numbers of groups; `most` is the largest number of any dot."""
    return [max(SMALLEST, LARGEST * count / most) if count else 0.0 for count in counts]


def _count_by_value(cells: Sequence[Binned], axis: int) -> Counter[float]:
    counts: Counter[float] = Counter()
    for cell in cells:
        value = cell[axis]
        if value is not None:
            counts[float(value)] += cell.groups
    return counts
