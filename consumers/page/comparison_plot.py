"""`headrace compare --plot`: reward against versions, trajectories and wall time, as PNG and as a page beside it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from consumers.comparison import AXES, TRAILING
from consumers.page.comparison_page import comparison_html, policies_of
from infra.errors import UsageError

LABELS = {"version": "version", "trajectories": "trajectories rolled out", "seconds": "wall time, s"}
ROWS = {"reward": f"training reward, {TRAILING['reward']} versions", "held_out": "held-out reward"}


def check_plot(file: Path) -> None:
    """Raise UsageError, before hours of runs, where no picture could be drawn into the file."""
    try:
        import_module("matplotlib")
    except ImportError as error:
        raise UsageError("--plot needs matplotlib: pip install 'headrace[plots]'") from error
    if file.suffix != ".png":
        raise UsageError(f"--plot {file}: name a .png; a page of the same name, .html, is written beside it")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"--plot {file}: there is no folder {file.absolute().parent}")


def plot(found: Mapping[str, Any], file: Path) -> None:
    """Write the picture, and beside it a page that holds table and picture.

    Raises UsageError for what cannot be written.
    """
    picture = drawn(found)
    try:
        file.write_bytes(picture)
        file.with_suffix(".html").write_text(comparison_html(found, picture), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--plot {file}: {error}") from error


def drawn(found: Mapping[str, Any]) -> bytes:
    """Return a PNG: for every policy a row of training and one of held-out reward; lines are means, bands intervals."""
    from matplotlib.figure import Figure

    policies = policies_of(found) or [""]
    figure = Figure(figsize=(15, 7.2 * len(policies)), layout="constrained")
    panels = figure.subplots(2 * len(policies), len(AXES), squeeze=False, sharey="row")
    rows = [(policy, what) for policy in policies for what in ROWS]
    for row, (policy, what) in zip(panels, rows, strict=True):
        for panel, axis in zip(row, AXES, strict=True):
            for place, (name, variant) in enumerate(found["variants"].items()):
                if policy in variant["policies"]:
                    _line(panel, variant["policies"][policy]["curves"][what][axis], name, place)
            panel.set_xlabel(LABELS[axis])
            panel.grid(alpha=0.3)
        row[0].set_ylabel(f"{policy}: {ROWS[what]}")
        row[0].set_ylim(_limits(found, policy, what))
    handles, names = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", fontsize="small")
    figure.suptitle(f"sweep {found['sweep']}: means over seeds, bands of 95 %")
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=100)
    return out.getvalue()


def _limits(found: Mapping[str, Any], policy: str, what: str) -> tuple[float, float] | None:
    """Return a scale on which the means fill the panel: a band of two seeds may be wider than all rewards there are."""
    variants = (variant["policies"].get(policy) for variant in found["variants"].values())
    means = [mean for block in variants if block for curve in block["curves"][what].values() for mean in curve["mean"]]
    if not means:
        return None
    room = max(0.15 * (max(means) - min(means)), 0.01)
    return min(means) - room, max(means) + room


def _line(panel: Any, curve: Mapping[str, list[Any]], name: str, place: int) -> None:
    color = f"C{place % 10}"
    panel.plot(curve["x"], curve["mean"], color=color, label=name, linestyle="-" if place < 10 else "--")
    if curve["x"] and curve["low"][0] is not None:
        panel.fill_between(curve["x"], curve["low"], curve["high"], color=color, alpha=0.12, linewidth=0)
