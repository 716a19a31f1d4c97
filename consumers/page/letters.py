"""Dead letters, and what became of a redrive, for people."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

NONE = Text("No dead letters: everything that was written could be read.", style="green")
MOST_ROWS = 200
"""Newest letters that the table shows."""


def letters_table(letters: Sequence[Mapping[str, Any]], reason: str | None) -> RenderableType:
    """Return what `headrace dead-letters` shows; `letters` is what it prints as JSON."""
    if not letters:
        return Text(f"No dead letters of reason {reason}.") if reason else NONE
    table = Table("offset", "when (UTC)", "reason", box=None)
    for column in ("from", "number", "sent back"):
        table.add_column(column, overflow="fold")  # to be copied whole
    for letter in letters[-MOST_ROWS:]:
        table.add_row(
            str(letter["offset"]),
            _when(letter["created_ms"]),
            letter["reason"],
            Text(_source(letter)),
            Text(_number(letter)),
            "" if letter["redriven"] is None else f"yes, see {letter['redriven']}",
        )
    reasons = Counter(letter["reason"] for letter in letters)
    told = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    older = f"; the newest {MOST_ROWS} are shown" if len(letters) > MOST_ROWS else ""
    return Group(table, Text(f"{len(letters)} dead letters: {told}{older}", style="dim"))


def letter_view(letter: Mapping[str, Any]) -> RenderableType:
    """Return one letter with what it is about."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    headers = "\n".join(f"{name}: {value}" for name, value in letter["headers"].items())
    decoded = letter["decoded"]
    read = decoded.get("text") or f"{decoded['record']} {json.dumps(decoded['fields'], indent=1, ensure_ascii=False)}"
    for name, value in (
        ("letter", f"{letter['offset']}, of {_when(letter['created_ms'])} UTC"),
        ("from", _source(letter)),
        ("component", letter["component"]),
        ("reason", letter["reason"]),
        ("detail", letter["detail"]),
        ("number", _number(letter)),
        ("sent back", "no" if letter["redriven"] is None else f"yes, see letter {letter['redriven']}"),
        ("key", letter["key"]),
        ("headers", headers),
        ("value", f"{letter['value_bytes']} bytes{'' if letter['is_whole'] else ', the beginning of more'}"),
        ("hex", letter["hex"]),
        ("as read", read),
    ):
        table.add_row(name, Text(str(value) or "none"))
    return table


def redrive_table(done: Mapping[str, Any]) -> RenderableType:
    """Return what `headrace redrive` shows; `done` is what it prints as JSON."""
    parts: list[RenderableType] = []
    verb = "would be sent back" if done["dry_run"] else "sent back"
    for one in done["redriven"]:
        to = "" if one["stands_at"] is None else f", stands at {one['stands_at']} now"
        letters = ", ".join(map(str, one["offsets"]))
        parts.append(Text(f"{verb}: letter {letters}, {_number(one)}, from {_source(one)}{to}"))
    parts += [Text(f"already redriven: letter {offset}", style="dim") for offset in done["already"]]
    parts += [Text(f"refused: letter {one['offset']}: {one['why']}", style="yellow") for one in done["refused"]]
    return Group(*parts) if parts else Text("There is nothing to send back.")


def _when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _source(letter: Mapping[str, Any]) -> str:
    return f"{letter['topic']}[{letter['partition']}]@{letter['source_offset']}"


def _number(letter: Mapping[str, Any]) -> str:
    """Return `stream:number`; a letter without one concluded nothing."""
    return f"{letter['stream']}:{letter['number']}" if letter["number"] >= 0 else "no number"
