"""What archiving, replaying, exporting and curating offline did, for people."""

from __future__ import annotations

from collections import Counter

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.app.views.weights_page import size
from headrace.ops.offline.archiver import Archived
from headrace.ops.offline.exporter import Table as Exported
from headrace.ops.offline.offline_curator import Curated
from headrace.ops.offline.replayer import Replayed


def archive_page(done: Archived) -> RenderableType:
    """Return what `headrace archive` shows."""
    table = _table("topic", "records", "bytes", "files", "new this time")
    for name, one in done.topics.items():
        new = f"{one.new_records:,}"
        table.add_row(name, f"{one.records:,}", size(one.bytes), f"{one.files:,}", new)
    objects = done.objects
    parts: list[RenderableType] = [_title("archived", done, done.archive), table]
    if objects.count:
        told = f"{objects.count:,} objects, {size(objects.bytes)}, {objects.new:,} of them new this time"
        parts.append(Text(told))
    parts += [Text(f"An object could not be had: {why}", style="yellow") for why in objects.missing.values()]
    if done.raw:
        parts.append(Text(f"{done.raw:,} values are no record of a known schema, and are kept as bytes."))
    gone = Counter[str]()
    for deleted in done.gone:
        gone[deleted.topic] += deleted.end - deleted.begin
    parts += [Text(_gone(topic, offsets), style="dim") for topic, offsets in gone.items()]
    return Group(*parts)


def _gone(topic: str, offsets: int) -> str:
    why = ", as tasks are that are done with" if topic.startswith(("tasks.", "eval-tasks.")) else ""
    return f"{topic}: what stood at {offsets:,} offsets had been deleted before it was archived{why}."


def replay_page(done: Replayed) -> RenderableType:
    """Return what `headrace replay` shows."""
    table = _table("topic", "records", "new this time")
    for name, one in done.topics.items():
        table.add_row(name, f"{one.records:,}", f"{one.new_records:,}")
    parts: list[RenderableType] = [_title("replayed", done, done.into), table]
    if done.objects:
        parts.append(Text(f"{done.objects:,} objects are in the store."))
    return Group(*parts)


def offline_page(done: Curated) -> RenderableType:
    """Return what `headrace curate --from` shows."""
    table = _table("policy", "read", "kept", "again", "dropped", "of those kept", "dead")
    for policy, one in done.policies.items():
        gone = (one.dropped, one.dropped_trajectories, one.dead)
        told = [", ".join(f"{n:,} {why}" for why, n in counts.items()) or "0" for counts in gone]
        table.add_row(policy, f"{one.read:,}", f"{one.kept:,}", f"{one.again:,}", *told)
    by = done.chain or "the run's own chain"
    title = Text.assemble(("curated", "bold"), f"  {done.archive} by {by}, into {done.out}")
    hashes = [Text(f"{one.sha256} {policy}", style="dim") for policy, one in done.policies.items()]
    return Group(title, table, *hashes)


def export_page(done: Exported) -> RenderableType:
    """Return what `headrace export` shows."""
    table = _table("outcome", "trajectories")
    for outcome, count in done.outcomes.items():
        table.add_row(outcome, f"{count:,}")
    what = f"  {done.topic} of {done.archive} into {done.file}"
    title = Text.assemble(("exported", "bold"), f"{what}: {done.rows:,} rows, {size(done.bytes)}")
    parts: list[RenderableType] = [title, table]
    if not done.texts:
        parts.append(Text("No texts: the archive holds no tokenizer, as one made with --with-weights does."))
    parts += [Text(f"{count:,} left out: {why}", style="yellow") for why, count in done.skipped.items()]
    return Group(*parts)


def _title(what: str, done: Archived | Replayed, where: str) -> Text:
    return Text.assemble((what, "bold"), f"  run {done.run} into {where}, {done.seconds:.1f} s")


def _table(first: str, *others: str) -> Table:
    table = Table(first, *others, box=None, header_style="dim")
    for column in table.columns[1:]:
        column.justify = "right"
    return table
