"""What a re-training came to, for people."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:  # the tools need torch, and their page does not
    from headrace.ops.offline.experiment import Experiment
    from headrace.ops.offline.retrain import Retrained

METRICS = {
    "loss": ("loss", "{:.4f}"),
    "kl_k3": ("KL", "{:.4f}"),
    "clip_fraction": ("clipped", "{:.1%}"),
    "ratio_mean": ("ratio", "{:.4f}"),
    "entropy": ("entropy", "{:.3f}"),
    "grad_norm_mean": ("grad norm", "{:.2f}"),
    "grad_norm_max": ("grad norm max", "{:.2f}"),
    "learning_rate": ("learning rate", "{:.2g}"),
}
"""What a metric is called here, and its form."""


def retrain_page(retrained: Retrained | Experiment, program: str, where: str) -> RenderableType:
    """Return what `headrace retrain` shows.

    Args:
        retrained: The versions that were made.
        program: How this user calls `headrace`.
        where: The options that name an experiment.
    """
    from headrace.ops.offline.retrain import Retrained

    if isinstance(retrained, Retrained):
        return Group(_hashes(retrained), _verdict(retrained))
    look = f"{program} inspect --step {retrained.to} {where}"
    return Group(*_experiment(retrained), Text(f"Look at it:\n  {look}", style="bold"))


def _hashes(retrained: Retrained) -> Table:
    """Return versions and hashes; versions alike share a row."""
    table = Table("versions", "epoch", "", "expected at the last", "came out", box=None)
    for (epoch, equal), group in groupby(retrained.versions, key=lambda one: (one.epoch, one.equal)):
        alike = list(group)
        first, last = alike[0].version, alike[-1]
        table.add_row(
            str(first) if first == last.version else f"{first}-{last.version}",
            str(epoch),
            {True: "[green]equal[/]", False: "[red]differ[/]", None: "[yellow]not comparable here[/]"}[equal],
            last.expected[:16],
            (last.got or "")[:16],
        )
    return table


def _verdict(retrained: Retrained) -> Text:
    versions, from_ = retrained.versions, retrained.from_
    if differ := [one.version for one in versions if one.equal is False]:
        return Text(f"{len(differ)} of {len(versions)} versions differ, the first is {differ[0]}.", style="bold red")
    if not retrained.comparable:
        why = "\n".join(f"  {part}" for part in retrained.differing)
        return Text(f"Not comparable here: the numerics fingerprint differs (then -> here).\n{why}", style="yellow")
    return Text(f"All {len(versions)} versions after checkpoint {from_} came out the same, bit for bit.", style="green")


def _experiment(retrained: Experiment) -> list[RenderableType]:
    """Return what came of other settings beside what had come of the run's own."""
    run, into, versions = retrained.run, retrained.into, retrained.versions
    changed = sum(not one.equal for one in versions)
    made = f"Run {into} holds versions {versions[0].version} to {versions[-1].version}, made of the batches of "
    parts: list[RenderableType] = [Text(f"{made}{run}; {changed} have other weights.", style="green")]
    parts += [Text(f"  {line}") for line in retrained.settings]
    table = Table("", f"{run}, mean", "at the last", f"{into}, mean", "at the last", box=None, header_style="dim")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, told in retrained.metrics.items():
        label, form = METRICS[name]
        sides = (told.source_mean, told.source_last, told.into_mean, told.into_last)
        table.add_row(label, *(form.format(value) for value in sides))
    why = (
        "Nothing was played again, so rewards are those of the same groups. KL, clipped and ratio say how far the "
        "policy went from the weights that had played them; whether it plays better, only rollouts can tell."
    )
    return [*parts, Text(), table, Text(), Text(why, style="dim"), Text()]
