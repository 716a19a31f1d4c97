"""A comparison of variants for people: a table in the terminal, and the same table with its picture as HTML."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

COLUMNS = (
    *("runs", "reward", "held-out", "skipped", "trajectories", "trained", "discarded", "length bias", "replayed"),
    *("wall s", "reward over the first", "held-out over the first", "groups discarded"),
)
TABLES = (
    ("runs", "reward", "held-out", "trajectories", "wall s"),
    ("skipped", "trained", "discarded", "length bias", "replayed"),
    ("reward over the first", "held-out over the first"),
    ("groups discarded",),
)
"""Columns of one table of a terminal, so that each fits 80 characters."""
NOTHING = ("", "0", "0 ± 0")
NOTE = (
    "Means over seeds ± half of their 95 % interval (Student's t). reward: training reward of the last 5 versions, of "
    "all tasks that the variant chose to ask; held-out: the last evaluation, whose tasks are the same for all; "
    "skipped: tasks that the selector did not ask; trained: share of all groups; discarded: share before the "
    "run's end; length bias: mean length of these over that of trained ones; over the first: difference to the first "
    "variant's run of the same seed."
)


def comparison_page(found: Mapping[str, Any]) -> RenderableType:
    """Return what `headrace compare` shows."""
    title = Text.assemble((f"sweep {found['sweep']}", "bold"), f"  {found['about']}".rstrip())
    parts: list[RenderableType] = [title]
    for policy in policies_of(found):
        columns, rows = _told(found, policy)
        for names in TABLES:
            shown = [at for at, name in enumerate(columns, 1) if name in names]
            if shown:
                parts += [Text(), _table((policy, *columns), rows, shown)]
    parts += [Text(), Text(NOTE, style="dim")]
    return Group(*parts, *(Text(line, style="red") for line in warnings_of(found)))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], shown: Sequence[int]) -> Table:
    table = Table(header[0], box=None, header_style="dim", pad_edge=False)
    table.columns[0].no_wrap = True
    for at in shown:
        table.add_column(header[at], justify="left" if header[at] == COLUMNS[-1] else "right")
    for row in rows:
        table.add_row(*(Text(row[at]) for at in (0, *shown)))
    return table


def comparison_html(found: Mapping[str, Any], picture: bytes) -> str:
    """Return a page that needs no other file.

    Args:
        found: What `headrace.ops.compare.comparison.compared` returned.
        picture: PNG.
    """
    title = f"sweep {escape(found['sweep'])}"
    tables = "\n".join(_html_table(found, policy) for policy in policies_of(found))
    notes = "\n".join(f"<p>{escape(line)}</p>" for line in (NOTE, *warnings_of(found)))
    image = base64.b64encode(picture).decode()
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 15px/1.4 sans-serif; margin: 2em auto; max-width: 1300px; padding: 0 1em }}
table {{ border-collapse: collapse; margin: 1em 0 }}
td, th {{ padding: .2em .8em; text-align: right; border-bottom: 1px solid #ddd }}
td:first-child, th:first-child, td:last-child, th:last-child {{ text-align: left }}
img {{ max-width: 100% }}
</style></head><body>
<h1>{title}</h1>
<p>{escape(found["about"])}</p>
{tables}
{notes}
<img alt="reward and held-out reward by version, trajectories and wall time" src="data:image/png;base64,{image}">
</body></html>
"""


def policies_of(found: Mapping[str, Any]) -> list[str]:
    """Return the policies of all variants."""
    return list(dict.fromkeys(policy for variant in found["variants"].values() for policy in variant["policies"]))


def warnings_of(found: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with single runs, a line each."""
    failed = [f"run {name} failed: {run['failed']}" for name, run in found["runs"].items() if run["summary"] is None]
    summaries = {name: run["summary"] for name, run in found["runs"].items() if run["summary"] is not None}
    return failed + [
        f"the audit of run {name} does not close: {proof['lost']} lost, {proof['doubled']} doubled"
        for name, proof in ((name, summary["audit"]) for name, summary in summaries.items())
        if proof is not None and not proof["ok"]
    ]


def _html_table(found: Mapping[str, Any], policy: str) -> str:
    def line(cells: tuple[str, ...], kind: str) -> str:
        return "<tr>" + "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in cells) + "</tr>"

    columns, rows = _told(found, policy)
    lines = [line((policy, *columns), "th"), *(line(row, "td") for row in rows)]
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def _told(found: Mapping[str, Any], policy: str) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return columns and rows, without columns of which no variant has anything to tell."""
    rows = list(_rows(found, policy))
    shown = [0, *(at for at in range(1, len(COLUMNS) + 1) if any(row[at] not in NOTHING for row in rows))]
    return [COLUMNS[at - 1] for at in shown[1:]], [tuple(row[at] for at in shown) for row in rows]


def _rows(found: Mapping[str, Any], policy: str) -> Iterator[tuple[str, ...]]:
    for name, variant in found["variants"].items():
        block = variant["policies"].get(policy)
        if block is None:
            yield (name, str(variant["runs"]), *[""] * (len(COLUMNS) - 1))
            continue
        discarded = ", ".join(f"{one['mean']:,.0f} {reason}" for reason, one in block["discarded"].items())
        yield (
            name,
            str(variant["runs"]),
            in_words(block["reward"], "{:.3f}"),
            in_words(block["held_out"], "{:.3f}"),
            in_words(variant["skipped"], "{:,.0f}"),
            in_words(block["trajectories"], "{:,.0f}"),
            in_words(block["trained_share"], "{:.1%}"),
            in_words(block["discarded_share"], "{:.1%}"),
            in_words(block["length_bias"], "{:.2f}"),
            in_words(block["replayed"], "{:,.0f}"),
            in_words(variant["wall_s"], "{:.0f}"),
            in_words(block["over_first"]["reward"], "{:+.3f}"),
            in_words(block["over_first"]["held_out"], "{:+.3f}"),
            discarded or "none",
        )


def in_words(one: Mapping[str, Any], form: str) -> str:
    """Return a mean and half of its interval; nothing where none is known."""
    if one["mean"] is None:
        return ""
    half = "" if one["low"] is None else f" ± {form.replace('+', '').format(one['high'] - one['mean'])}"
    return form.format(one["mean"]) + half
