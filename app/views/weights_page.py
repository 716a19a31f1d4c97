"""The page of `headrace weights`: the published versions of a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from headrace.app.views.chart import by_version, chart
from headrace.app.views.columns import make_columns, make_facts
from headrace.app.views.safe_text import Text
from headrace.infra.inflection import inflect
from headrace.infra.weights.paths import ANCHOR, DELTA, WHOLE

if TYPE_CHECKING:
    from headrace.ops.figures.weights_figures import WeightsFigures
    from headrace.ops.figures.weights_history import VersionWeights, WeightsHistory

VERSION_ROWS = 20
"""Number of versions in the table; the chart and `--json` have all."""
WIDTH, HEIGHT = 60, 6
ACTIVITIES = ("fetch", "verify", "apply", "pause")
"""Activities of a worker while it takes a version."""
TELLING_RATIO = 1.5
"""Smallest ratio of whole weights to a delta that the page shows; for an adapter it is about 1, and not shown."""
BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")


def weights_page(found: WeightsHistory) -> RenderableType:
    """Return what `headrace weights` shows."""
    versions = found.versions
    title = Text.assemble((f"policy {found.policy}", "bold"), f"  run {found.run}")
    if not versions:
        return Group(title, Text("No version is published yet."))
    names = ("version", "as", "bytes", "1/full", "changed", "encode", "upload")
    table = make_columns(*names, right=slice(2, None), pad_edge=True)
    for one in versions[-VERSION_ROWS:]:
        kind = "whole" if one.kind == "anchor" else f"delta on {one.base_version}"
        ratio = f"{one.ratio:.1f}" if one.ratio else ""
        changed = f"{one.density:.2%}" if one.density is not None and one.kind != "anchor" else ""
        seconds = ("" if spent is None else f"{spent:.2f} s" for spent in (one.encode_s, one.upload_s))
        table.add_row(str(one.version), kind, format_bytes(one.bytes), ratio, changed, *seconds)
    facts = make_facts()
    spent = found.bytes
    again = f", {format_bytes(spent[WHOLE])} published whole again, to replace lost objects" * bool(spent[WHOLE])
    facts.add_row("in all", f"{format_bytes(spent[ANCHOR])} whole, {format_bytes(spent[DELTA])} as deltas{again}")
    facts.add_row("to join", _describe_join(found))
    if found.left_out:
        count = len(found.left_out)
        facts.add_row(
            "left out", f"{count} {inflect(count, 'version')}, made while the previous version was being published"
        )
    if retired := sum(one.retired for one in versions):
        facts.add_row(
            "retired", f"{retired} {inflect(retired, 'version')} by `headrace gc`, which deleted their objects"
        )
    newest = versions[-1].version
    for worker, version in found.served.items():
        behind = f", {newest - version} behind" if version < newest else ""
        facts.add_row("serves", Text(f"{worker} version {version}{behind}"))
    deltas = [(one.version, 100 * one.density) for one in versions if one.density is not None and one.kind != ANCHOR]
    curve = chart(by_version(deltas), WIDTH, HEIGHT)
    named = Text("share of the values that changed, in percent, by version", "dim")
    return Group(title, facts, Text(), named, *map(Text, curve), table, *_build_report_tables(versions[-VERSION_ROWS:]))


def _build_report_tables(versions: Sequence[VersionWeights]) -> list[RenderableType]:
    """Return the workers' reports of versions; nothing if there are none."""
    table = make_columns("version", "workers", *ACTIVITIES, right=slice(1, None), pad_edge=True)
    for one in versions:
        if one.workers:
            table.add_row(str(one.version), str(one.workers), *map(format_seconds, _seconds_by_activity(one).values()))
    named = Text("median times of the workers; engines stop generating only for the time under `pause`", "dim")
    return [Text(), named, table] if table.row_count else []


def describe_weights(figures: WeightsFigures) -> str:
    """Return how a policy's versions get to the workers, in one line."""
    words = [f"{figures.published} published"]
    if figures.ratio is not None and figures.ratio >= TELLING_RATIO:
        words.append(f"deltas 1/{figures.ratio:.0f} of the whole")
    if figures.density is not None:
        words.append(f"{figures.density:.2%} changed")
    spent = {"encode": figures.encode_s, "upload": figures.upload_s, **_seconds_by_activity(figures)}
    words += [f"{activity} {format_seconds(value)}" for activity, value in spent.items() if value is not None]
    if figures.behind:
        words.append(f"the slowest worker is {figures.behind} {inflect(figures.behind, 'version')} behind")
    apart = f"workers {figures.skew} {inflect(figures.skew, 'version')} apart (at most {figures.greatest_skew} so far)"
    return ", ".join([*words, apart])


def _seconds_by_activity(one: WeightsFigures | VersionWeights) -> dict[str, float | None]:
    """Return how long each activity of a worker that takes a version took."""
    return dict(zip(ACTIVITIES, (one.fetch_s, one.verify_s, one.apply_s, one.pause_s), strict=True))


def format_seconds(value: float | None) -> str:
    """Return seconds with at least two significant digits; nothing if unknown."""
    if value is None:
        return ""
    return f"{value:.1f} s" if value >= 1 else f"{1000 * value:.0f} ms" if value >= 0.01 else f"{1000 * value:.1f} ms"


def _describe_join(found: WeightsHistory) -> str:
    """Return what a worker without weights fetches to get to the newest version, in words."""
    way, full = found.join, found.versions[-1].full_bytes
    if not way.objects:
        return (
            "not possible now, because the published objects do not lead to the newest version; a worker can join "
            "again after the next anchor (whole weights), if the run makes one"
        )
    compared = f", {way.bytes / full:.2f} times the whole weights" if full else ""
    return f"{format_bytes(way.bytes)} in {way.objects} {inflect(way.objects, 'object')}{compared}"


def format_bytes(count: float) -> str:
    """Return bytes in the largest unit in which they are at least 1."""
    unit = 0
    while count >= 1000 and unit < len(BYTE_UNITS) - 1:
        count, unit = count / 1000, unit + 1
    return f"{count:.0f} {BYTE_UNITS[unit]}" if unit == 0 else f"{count:.1f} {BYTE_UNITS[unit]}"
