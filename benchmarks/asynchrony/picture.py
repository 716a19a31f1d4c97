"""The picture of the benchmark: what asynchrony is worth by spread and staleness, and what it costs per sample."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def draw(figures: Mapping[str, Any], file: Path, samples_per_version: int) -> None:
    """Write a PNG with a panel of the grid, and one of held-out reward for every policy.

    Args:
        figures: Of `build_figures`.
        file: The file to write.
        samples_per_version: Episodes of one policy that a version of the learning part is trained on.
    """
    from matplotlib.figure import Figure

    policies = list(dict.fromkeys(policy for side in figures["learning"].values() for policy in side))
    figure = Figure(figsize=(5 * (1 + len(policies)), 4.2), layout="constrained")
    first, *others = figure.subplots(1, 1 + len(policies), squeeze=False)[0]
    _draw_grid(first, figures["grid"])
    for panel, policy in zip(others, policies, strict=True):
        for index, (side, curves) in enumerate(figures["learning"].items()):
            _draw_curve(panel, curves.get(policy, []), side, f"C{index}", samples_per_version)
        panel.set_title(f"{policy}: held-out reward")
        panel.set_xlabel("episodes trained on")
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small")
    figure.savefig(file, dpi=100)


def _draw_grid(panel: Any, grid: list[Mapping[str, Any]]) -> None:
    for index, spread in enumerate(dict.fromkeys(one["spread"] for one in grid)):
        points = [one for one in grid if one["spread"] == spread and one["ratio"] is not None]
        ages, ratios = [one["max_staleness"] for one in points], [one["ratio"] for one in points]
        panel.plot(ages, ratios, marker="o", color=f"C{index}", label=f"sigma of lengths {spread:g}")
    panel.axhline(1, color="grey", linewidth=0.8)
    panel.set_title("versions/s over those of a barrier")
    panel.set_xlabel("max_staleness, versions")
    panel.set_xticks(sorted({one["max_staleness"] for one in grid}))
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
    if grid:
        panel.legend(fontsize="small")


def _draw_curve(panel: Any, curve: list[Mapping[str, Any]], side: str, color: str, samples: int) -> None:
    at = [samples * point["version"] for point in curve]
    panel.plot(at, [point["mean"] for point in curve], marker="o", color=color, label=side)
    if curve and all(point["low"] is not None for point in curve):
        low, high = ([point[end] for point in curve] for end in ("low", "high"))
        panel.fill_between(at, low, high, color=color, alpha=0.12, linewidth=0)
