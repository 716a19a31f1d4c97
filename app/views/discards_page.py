"""The groups that were never trained on, for people: what `headrace discards` shows."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.ops.discards import MATTERS, Bias, Discarded, Discards, Fates, TrainedGroups

NUMBERS = ("groups", "share", "tokens", "of trained", "95 %", "reward", "age")
MOST_DIGITS = 6
"""After the point of a ratio: an interval that is narrower still is that of equal lengths."""


def discards_page(found: Discards) -> RenderableType:
    """Return what `headrace discards` shows."""
    parts: list[RenderableType] = []
    for policy, ledger in found.policies.items():
        parts += [Text.assemble((f"policy {policy}", "bold"), f"  run {found.run}"), *_policy(ledger), Text()]
    return Group(*parts[:-1])


def _policy(ledger: Fates) -> list[RenderableType]:
    trained, discarded, alone = ledger.trained, ledger.discarded, ledger.trajectories
    gone = sum(row.groups for row in discarded.values())
    total = trained.groups + gone
    if not total:
        return [Text("The fate of no group is known yet.")]
    table = _table("groups")
    _add(table, "trained", trained, total)
    for reason, row in discarded.items():
        _add(table, reason, row, total)
    told: list[RenderableType] = [table, Text(verdict(ledger.bias, gone))]
    if alone:
        left_out = _table("trajectories left out of groups that went on")
        for reason, row in alone.items():
            _add(left_out, reason, row, None)
        told += [Text(), left_out]
    if ledger.waiting:
        told.append(Text(f"{ledger.waiting} more wait for their fate.", style="dim"))
    return told


def verdict(bias: Bias | None, discarded: int) -> str:
    """Return the sentence that names the bias of what was discarded.

    It is one where the whole interval is beyond 5 % (`headrace.ops.discards.MATTERS`) on one side of 1.
    """
    if not discarded:
        return "Nothing was discarded."
    if bias is None:
        return "Too few groups, or too short, to compare the lengths of the discarded with those of the trained."
    ratio, low, high = _in_words(bias)
    told = f"Discarded groups are {ratio} times as long as trained ones (95 %: {low} to {high})"
    least, most = 1 - MATTERS, 1 + MATTERS
    if bias.low > most:
        return f"{told}: training sees too few long answers."
    if bias.high < least:
        return f"{told}: training sees too few short answers."
    if least <= bias.low and bias.high <= most:
        return f"{told}: within {MATTERS * 100:.0f} %, no bias to speak of."
    return f"{told}: no bias of more than {MATTERS * 100:.0f} % can be told."


def _in_words(bias: Bias) -> list[str]:
    """Return ratio, low and high with two digits after the point, or with more where the interval is narrower."""
    width = bias.high - bias.low
    digits = min(max(2, -math.floor(math.log10(width))), MOST_DIGITS) if width > 0 else 2
    return [f"{value:.{digits}f}" for value in (bias.ratio, bias.low, bias.high)]


def _table(title: str) -> Table:
    table = Table(title, *NUMBERS, box=None, header_style="dim")
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _add(table: Table, name: str, row: TrainedGroups | Discarded, total: int | None) -> None:
    bias = row.bias if isinstance(row, Discarded) else None
    ratio, low, high = _in_words(bias) if bias else ("", "", "")
    table.add_row(
        Text(name),
        f"{row.groups:,}",
        "" if total is None else f"{row.groups / total:.1%}",
        _number(row.length, 1),
        f"x {ratio}" if bias else "",
        f"{low} to {high}" if bias else "",
        _number(row.reward, 2),
        _number(row.age, 1),
    )


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
