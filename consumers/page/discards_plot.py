"""`headrace discards --plot`: how long, how good and how old trained and discarded groups are, as a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.errors import UsageError

AXES = (("length", "mean tokens of a group, from"), ("reward", "mean reward, from"), ("age", "age in versions"))
MOST_REASONS = 6
"""Lines of one picture beside the trained groups; the most frequent."""


def plot(found: Mapping[str, Any], file: Path) -> None:
    """Draw a row of three panels for every policy: shares of groups by length, reward and age, a line for each reason.

    The file's suffix says the format: png, svg, pdf. Raises UsageError without matplotlib, for a format that it does
    not know, and for a folder that cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("--plot needs matplotlib: pip install 'headrace[plots]'") from error
    policies = found["policies"]
    figure = Figure(figsize=(13, 3.6 * len(policies)), layout="constrained")
    panels = figure.subplots(len(policies), len(AXES), squeeze=False)
    for row, (policy, ledger) in zip(panels, policies.items(), strict=True):
        rows = {"trained": ledger["trained"], **dict(list(ledger["discarded"].items())[:MOST_REASONS])}
        for place, (panel, (_, label)) in enumerate(zip(row, AXES, strict=True)):
            _panel(panel, {name: one["cells"] for name, one in rows.items() if one["groups"]}, place)
            panel.set_xlabel(label)
        row[0].set_ylabel(f"{policy}: share of groups")
        if row[0].lines:
            row[0].legend(fontsize="small")
    figure.suptitle(f"run {found['run']}: trained and discarded groups")
    try:
        figure.savefig(file, dpi=120)
    except (OSError, ValueError) as error:
        raise UsageError(f"--plot {file}: {error}") from error


def _panel(panel: Any, cells: Mapping[str, Sequence[Sequence[Any]]], place: int) -> None:
    """Draw the shares by one of a cell's three numbers, on a scale of the values that there are."""
    counts = {name: _counts(some, place) for name, some in cells.items()}
    values = sorted({value for some in counts.values() for value in some})
    for name, some in counts.items():
        shares = [some[value] / max(some.total(), 1) for value in values]
        panel.plot(range(len(values)), shares, marker="o", label=name, linewidth=2.5 if name == "trained" else 1.2)
    panel.set_xticks(range(len(values)), [f"{value:g}" for value in values], fontsize="small")
    panel.set_ylim(bottom=0)


def _counts(cells: Sequence[Sequence[Any]], place: int) -> Counter[float]:
    counts: Counter[float] = Counter()
    for cell in cells:
        if cell[place] is not None:
            counts[float(cell[place])] += cell[-1]
    return counts
