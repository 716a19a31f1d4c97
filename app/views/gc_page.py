"""The page of `headrace gc`: what it deleted or would delete."""

from __future__ import annotations

from rich.console import Group, RenderableType

from headrace.app.views.columns import make_columns
from headrace.app.views.safe_text import Text
from headrace.app.views.weights_page import format_bytes
from headrace.infra.inflection import inflect
from headrace.ops.retention.collector import Collected, RetiredVersions

WHY_KEPT = {
    "named": "needed",
    "young": "younger than {age}: records that need these objects may not be written yet",
    "foreign": "keys that no run writes: not deleted",
}


def gc_page(done: Collected) -> RenderableType:
    """Return what `headrace gc` shows."""
    title = Text.assemble(("objects", "bold"), f"  run {done.run}, {done.records:,} records read")
    table = make_columns("", "kind", "objects", "bytes", "why", right=slice(2, 4), pad_edge=True)
    verb = "would be deleted" if done.dry_run else "deleted"
    for row in done.collected:
        table.add_row(Text(verb, "yellow"), row.kind, f"{row.objects:,}", format_bytes(row.bytes), Text(row.why))
    for name, counted in done.kept.items():
        if counted.objects:
            why = WHY_KEPT[name].format(age=_format_age(done.older_than_s))
            table.add_row("stays", "", f"{counted.objects:,}", format_bytes(counted.bytes), why)
    parts: list[RenderableType] = [title, table]
    parts += [Text(_describe_retired(one, dry_run=done.dry_run)) for one in done.retired]
    if done.spared:
        were = inflect(done.spared, "was", "were")
        words = f"{done.spared} of these objects {were} written again meanwhile, and {were} kept."
        parts.append(Text(words, style="yellow"))
    if not done.collected:
        parts.append(Text("There is nothing to delete.", style="green"))
    return Group(*parts)


def _describe_retired(one: RetiredVersions, *, dry_run: bool) -> str:
    ranges = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in one.versions)
    versions = "version" if ranges.isdecimal() else "versions"
    marked = "would be marked as retired" if dry_run else "marked as retired"
    return f"{one.what} of {one.policy}, {versions} {ranges}: {marked}, so that the audit does not miss the objects"


def _format_age(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"
