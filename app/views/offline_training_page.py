"""What came of training over an archive, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.ops.offline.offline_run import OfflineSummary

if TYPE_CHECKING:  # the tool needs torch, and its page does not
    from headrace.ops.offline.offline_trainer import TrainedOffline
    from headrace.ops.offline.offline_versions import MadeVersion

MOST_ROWS = 20
COLUMNS = {
    "reward_mean": ("reward", "{:.2f}"),
    "loss": ("loss", "{:.4f}"),
    "kl_k3": ("KL", "{:.4f}"),
    "ess_share": ("alike", "{:.0%}"),
    "grad_norm_mean": ("grad norm", "{:.2f}"),
}
"""What a metric is called here, and its form."""


def offline_training_page(trained: TrainedOffline) -> RenderableType:
    """Return what `headrace train --from` shows."""
    versions = trained.versions
    title = Text.assemble(("trained", "bold"), f"  {trained.policy} over {trained.archive}, into {trained.out}")
    parts: list[RenderableType] = [title, Text(f"Begun at {trained.start}; batches {trained.batches}.")]
    parts += [Text(f"  {line}") for line in trained.settings]
    parts.append(_table(_some(versions)))
    if len(versions) > MOST_ROWS:
        parts.append(Text(f"{len(versions)} versions in all; every one stands in batches.jsonl.", style="dim"))
    parts += [*_verdict(trained), *_counts(trained), Text(f"{trained.weights_hash} weights", style="dim")]
    return Group(*parts)


def _some(versions: Sequence[MadeVersion]) -> Sequence[MadeVersion]:
    """Return versions that stand evenly apart, the first and the last among them."""
    if len(versions) <= MOST_ROWS:
        return versions
    return [versions[row * (len(versions) - 1) // (MOST_ROWS - 1)] for row in range(MOST_ROWS)]


def _table(versions: Sequence[MadeVersion]) -> Table:
    columns = {name: shape for name, shape in COLUMNS.items() if any(name in one.metrics for one in versions)}
    table = Table("version", "groups", *(title for title, _ in columns.values()), box=None, header_style="dim")
    for column in table.columns:
        column.justify = "right"
    for one in versions:
        told = (shape.format(one.metrics[name]) if name in one.metrics else "" for name, (_, shape) in columns.items())
        table.add_row(str(one.version), str(one.groups), *told)
    return table


def _verdict(trained: TrainedOffline) -> list[Text]:
    compared = [one for one in trained.versions if one.equal is not None]
    if not compared:
        return []
    differ = [one.version for one in compared if not one.equal]
    if not differ:
        return [Text(f"All {len(compared)} versions came out as in the run, bit for bit.", style="green")]
    return [
        Text(
            f"{len(differ)} of {len(compared)} versions differ from the run's, the first is {differ[0]}: other "
            "settings, another start or another machine.",
            style="yellow",
        )
    ]


def _counts(trained: TrainedOffline) -> list[Text]:
    counts = trained.counts
    if counts is None:
        return []
    gone = {**counts.evicted, **counts.unusable, "left over": counts.left}
    said = ", ".join(f"{count:,} {why}" for why, count in gone.items() if count)
    words = f"{counts.read:,} records read, {trained.trained:,} groups trained on"
    parts = [Text(f"{words}{', ' + said if said else ''}; {counts.unread:,} records not read.")]
    if counts.evicted.get("expired"):
        parts.append(
            Text(
                "What expired was too old by the clock of the log before a batch was full: allow more by "
                "--set trainer.max_staleness=N, or take smaller batches.",
                style="yellow",
            )
        )
    return parts


def run_page(summary: OfflineSummary) -> RenderableType:
    """Return what `headrace up --from` shows."""
    [(policy, block)] = summary.policies.items()
    groups, data = block.groups, summary.data
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in groups.discarded.items()) or "none"
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_row("run", f"[bold]{summary.run}[/] over {data.archive}, nothing played")
    table.add_row("policy", f"{policy}, {len(block.progress) - 1} versions, to version {block.versions}")
    table.add_row("groups", f"{groups.issued:,} read, {groups.trained:,} trained, {groups.replayed:,} replayed")
    table.add_row("dropped", dropped)
    for version, reward in block.eval_curve:
        table.add_row("held out", f"{reward:.2f} at version {version}")
    for line in summary.ignored:
        table.add_row("ignored", Text(line, style="yellow"))
    table.add_row("data", f"{data.folder}: curated, trained")
    return table
