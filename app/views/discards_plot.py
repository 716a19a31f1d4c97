"""`headrace discards --plot`: how long, how good and how old trained and discarded groups are, as a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.infra.errors import UsageError
from headrace.ops.discards import Binned, Discarded, Discards, TrainedGroups

AXES = (("length", "mean tokens of a group, from"), ("reward", "mean reward, from"), ("age", "age in versions"))
MOST_REASONS = 6
"""Lines of one picture beside the trained groups; the most frequent."""
LARGEST, SMALLEST = 400.0, 4.0
"""Areas of dots, in square points: of the most groups at one place, and of any at all, so that it can be seen."""
APART = 0.08
"""Between the dots of two reasons at one place, in places: lines of equal shares would hide each other."""


def plot(found: Discards, file: Path) -> list[Path]:
    """Draw the picture into a file, whose suffix says the format (png, svg, pdf), and return the file.

    Raises UsageError for what cannot be written.
    """
    figure = figure_of(found)
    try:
        figure.savefig(file, dpi=120)
    except OSError as error:
        raise UsageError(f"--plot {file}: {error}") from error
    return [file]


def figure_of(found: Discards) -> Any:
    """Return three panels for every policy: shares of groups by length, reward and age, a line for each reason.

    A dot's area is as its number of groups: a share of few groups says little.
    """
    from matplotlib.figure import Figure

    policies = found.policies
    figure = Figure(figsize=(13, 3.6 * len(policies)), layout="constrained")
    panels = figure.subplots(len(policies), len(AXES), squeeze=False)
    for row, (policy, ledger) in zip(panels, policies.items(), strict=True):
        rows: dict[str, TrainedGroups | Discarded] = {"trained": ledger.trained}
        rows |= dict(list(ledger.discarded.items())[:MOST_REASONS])
        cells = {f"{name} ({one.groups:,})": one.cells for name, one in rows.items() if one.groups}
        for place, (panel, (_, label)) in enumerate(zip(row, AXES, strict=True)):
            _panel(panel, cells, place)
            panel.set_xlabel(label)
        row[0].set_ylabel(f"{policy}: share of groups")
        if row[0].lines:
            row[0].legend(fontsize="small")
    figure.suptitle(
        f"run {found.run}: trained and discarded groups (in brackets: how many)\nA dot's height is the share of its "
        "reason's groups that are there, its area their number (the fewest: specks); those at one place stand apart",
        fontsize="medium",
    )
    return figure


def _panel(panel: Any, cells: Mapping[str, Sequence[Binned]], place: int) -> None:
    """Draw the shares by one of a cell's three numbers, on a scale of the values that there are."""
    counts = {name: _counts(some, place) for name, some in cells.items()}
    values = sorted({value for some in counts.values() for value in some})
    most = max((count for some in counts.values() for count in some.values()), default=1)
    for number, (name, some) in enumerate(counts.items()):
        xs = [at + APART * (number - (len(counts) - 1) / 2) for at in range(len(values))]
        shares = [some[value] / max(some.total(), 1) for value in values]
        [line] = panel.plot(xs, shares, label=name, linewidth=2 if name.startswith("trained ") else 1, alpha=0.5)
        panel.scatter(xs, shares, areas([some[value] for value in values], most), color=line.get_color(), alpha=0.6)
    panel.set_xticks(range(len(values)), [f"{value:g}" for value in values], fontsize="small")
    panel.set_xlim(-0.5, max(len(values), 1) - 0.5)
    panel.margins(y=0.1)
    panel.set_ylim(bottom=0)


def areas(counts: Sequence[int], most: int) -> list[float]:
    """Return the areas of dots that stand for so many groups, where `most` is the most that any stands for."""
    return [max(SMALLEST, LARGEST * count / most) if count else 0.0 for count in counts]


def _counts(cells: Sequence[Binned], place: int) -> Counter[float]:
    counts: Counter[float] = Counter()
    for cell in cells:
        value = cell[place]
        if value is not None:
            counts[float(value)] += cell.groups
    return counts
