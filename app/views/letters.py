"""Dead letters, and what became of a redrive, for people."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.ops.dead_letters.listing import DecodedText, Letter, LetterShown
from headrace.ops.dead_letters.redrive import Redriven, SentBack

NONE = Text("No dead letters: everything that was written could be read.", style="green")
MOST_ROWS = 200
"""Newest letters that the table shows."""


def letters_table(letters: Sequence[Letter], reason: str | None) -> RenderableType:
    """Return what `headrace dead-letters` shows."""
    if not letters:
        return Text(f"No dead letters of reason {reason}.") if reason else NONE
    table = Table("offset", "when (UTC)", "reason", box=None)
    for column in ("from", "number", "sent back"):
        table.add_column(column, overflow="fold")  # to be copied whole
    for letter in letters[-MOST_ROWS:]:
        table.add_row(
            str(letter.offset),
            _when(letter.created_ms),
            Text(letter.reason),
            Text(_source(letter)),
            Text(_number(letter)),
            "; ".join(filter(None, [_copy(letter), _sent_back(letter)])),
        )
    reasons = Counter(letter.reason for letter in letters)
    told = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    older = f"; the newest {MOST_ROWS} are shown" if len(letters) > MOST_ROWS else ""
    return Group(table, Text(f"{_letters(len(letters))}: {told}{older}", style="dim"))


def unnumbered(reasons: Mapping[str, int]) -> str:
    """Return the word on letters that no count of numbers holds, by reason; empty when there are none."""
    if not reasons:
        return ""
    told = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    return f"{_letters(sum(reasons.values()))} of no training number ({told}): see `headrace dead-letters`"


def letter_view(letter: LetterShown) -> RenderableType:
    """Return one letter with what it is about."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    headers = "\n".join(f"{name}: {value}" for name, value in letter.headers.items())
    decoded = letter.decoded
    if isinstance(decoded, DecodedText):
        read = decoded.text
    else:
        read = f"{decoded.record} {json.dumps(decoded.fields, indent=1, ensure_ascii=False)}"
    is_notice = letter.redrives is not None
    about = (
        ("copy of", _copy(letter).removeprefix("copy of ")),
        ("key", letter.key),
        ("headers", headers),
        ("value", f"{letter.value_bytes} bytes"),
        ("left out", f"{letter.cut_bytes} bytes, so it cannot be sent back" if letter.cut_bytes else "nothing"),
        ("hex", letter.hex),
        ("as read", read),
    )
    for name, value in (
        ("letter", f"{letter.offset}, of {_when(letter.created_ms)} UTC"),
        ("stands at" if is_notice else "from", _source(letter)),
        ("component", letter.component),
        ("reason", letter.reason),
        ("detail", letter.detail),
        ("number", _number(letter)),
        ("sent back", _sent_back(letter) or "no"),
        *(() if is_notice else about),
    ):
        table.add_row(name, Text(str(value) or "none"))
    return table


def redrive_table(done: Redriven) -> RenderableType:
    """Return what `headrace redrive` shows."""
    parts: list[RenderableType] = []
    verb = "would be sent back" if done.dry_run else "sent back"
    for one in done.redriven:
        to = "" if one.stands_at is None else f", stands at {one.stands_at} now"
        letters = ", ".join(map(str, one.offsets))
        parts.append(Text(f"{verb}: letter {letters}, {_number(one)}, from {_source(one)}{to}"))
    parts += [Text(f"already sent back: letter {offset}", style="dim") for offset in done.already]
    parts += [Text(f"refused: letter {one.offset}: {one.why}", style="yellow") for one in done.refused]
    if not done.redriven:
        parts.append(Text("There is nothing to send back."))
    return Group(*parts)


def _when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _source(letter: Letter | SentBack) -> str:
    return f"{letter.topic}[{letter.partition}]@{letter.source_offset}"


def _sent_back(letter: Letter) -> str:
    """Return what became of a letter's message by a redrive; empty when it was not sent back."""
    words = "" if letter.redriven is None else f"yes, see {letter.redriven}"
    words = words if letter.redrives is None else f"letter {letter.redrives}"
    return words if letter.failed_again is None else f"{words}; failed again as {letter.failed_again}"


def _copy(letter: Letter) -> str:
    return "" if letter.copy_of is None else f"copy of {letter.copy_of}"


def _letters(count: int) -> str:
    return f"{count} dead letter{'' if count == 1 else 's'}"


def _number(letter: Letter | SentBack) -> str:
    """Return `stream:number`; a letter without one concluded nothing."""
    return f"{letter.stream}:{letter.number}" if letter.number >= 0 else "no number"
