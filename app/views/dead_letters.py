"""Pages of dead letters and of a redrive."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from headrace.app.views.columns import PLAIN, fold_text, make_columns, make_facts
from headrace.app.views.safe_text import Text
from headrace.infra.inflection import inflect
from headrace.infra.utc import format_utc

if TYPE_CHECKING:
    from headrace.ops.dead_letters.listing import DeadLetterDetail, ListedDeadLetter
    from headrace.ops.dead_letters.redrive import Redriven, SentBack

NONE = Text("No dead letters: everything that was written could be read.", style="green")
MOST_ROWS, MOST_WHYS = 200, 8
"""Newest dead letters that the table shows, and most frequent first lines of their details below it."""


def dead_letters_table(dead_letters: Sequence[ListedDeadLetter], reason: str | None) -> RenderableType:
    """Return the page of `headrace dead-letters`."""
    if not dead_letters:
        return Text(f"No dead letters of reason {reason}.") if reason else NONE
    to_be_copied = map(fold_text, ("reason", "from", "number", "sent back"))
    table = make_columns("offset", "when (UTC)", *to_be_copied, titles=PLAIN, pad_edge=True)
    for dead_letter in dead_letters[-MOST_ROWS:]:
        table.add_row(
            str(dead_letter.offset),
            _format_time(dead_letter.created_ms),
            Text(dead_letter.reason),
            Text(_describe_source(dead_letter)),
            Text(_describe_number(dead_letter)),
            Text("; ".join(filter(None, [_describe_copy(dead_letter), _describe_redrive(dead_letter)]))),
        )
    reasons = Counter(dead_letter.reason for dead_letter in dead_letters)
    by_reason = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    older = f"; the newest {MOST_ROWS} are shown" if len(dead_letters) > MOST_ROWS else ""
    whys = Counter(_describe_reason(one) for one in dead_letters if one.detail)
    frequent = [Text(f"{count} x {why}", style="yellow") for why, count in whys.most_common(MOST_WHYS)]
    return Group(table, *frequent, Text(f"{_describe_count(len(dead_letters))}: {by_reason}{older}", style="dim"))


def describe_unnumbered(reasons: Mapping[str, int]) -> str:
    """Describe the dead letters not tied to a task, by reason; empty if there are none."""
    if not reasons:
        return ""
    by_reason = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    return f"{_describe_count(sum(reasons.values()))} not tied to a task ({by_reason}): see `headrace dead-letters`"


def dead_letter_view(dead_letter: DeadLetterDetail) -> RenderableType:
    """Return the page of one dead letter with its record."""
    from headrace.ops.dead_letters.listing import DecodedText

    table = make_facts(fold=True)
    headers = "\n".join(f"{name}: {value}" for name, value in dead_letter.headers.items())
    decoded = dead_letter.decoded
    if isinstance(decoded, DecodedText):
        read = decoded.text
    else:
        read = f"{decoded.record} {json.dumps(decoded.fields, indent=1, ensure_ascii=False)}"
    is_notice = dead_letter.redrives is not None
    about = (
        ("copy of", _describe_copy(dead_letter).removeprefix("copy of ")),
        ("key", dead_letter.key),
        ("headers", headers),
        ("value", f"{dead_letter.value_bytes} bytes"),
        (
            "left out",
            f"{dead_letter.cut_bytes} bytes of the record, so it cannot be sent back"
            if dead_letter.cut_bytes
            else "nothing",
        ),
        ("hex", dead_letter.hex),
        ("as read", read),
    )
    for name, value in (
        ("dead letter", f"{dead_letter.offset}, of {_format_time(dead_letter.created_ms)} UTC"),
        ("now at" if is_notice else "from", _describe_source(dead_letter)),
        ("component", dead_letter.component),
        ("reason", dead_letter.reason),
        ("detail", dead_letter.detail),
        ("number", _describe_number(dead_letter)),
        ("sent back", _describe_redrive(dead_letter) or "no"),
        *(() if is_notice else about),
    ):
        table.add_row(name, Text(str(value) or "none"))
    return table


def redrive_table(done: Redriven) -> RenderableType:
    """Return what `headrace redrive` shows."""
    parts: list[RenderableType] = []
    verb = "would be sent back" if done.dry_run else "sent back"
    for one in done.redriven:
        to = "" if one.stands_at is None else f", now at {one.stands_at}"
        dead_letters = ", ".join(map(str, one.offsets))
        parts.append(
            Text(f"{verb}: dead letter {dead_letters}, {_describe_number(one)}, from {_describe_source(one)}{to}")
        )
    parts += [Text(f"already sent back: dead letter {offset}", style="dim") for offset in done.already]
    parts += [Text(f"refused: dead letter {one.offset}: {one.why}", style="yellow") for one in done.refused]
    if not done.redriven:
        parts.append(Text("There is nothing to send back."))
    return Group(*parts)


def _format_time(ms: int) -> str:
    return format_utc(ms, "%Y-%m-%d %H:%M:%S")


def _describe_source(dead_letter: ListedDeadLetter | SentBack) -> str:
    return f"{dead_letter.topic}[{dead_letter.partition}]@{dead_letter.source_offset}"


def _describe_redrive(dead_letter: ListedDeadLetter) -> str:
    """Return the result of redriving a dead letter's message; empty if it was not sent back."""
    words = "" if dead_letter.redriven is None else f"yes, see {dead_letter.redriven}"
    words = words if dead_letter.redrives is None else f"dead letter {dead_letter.redrives}"
    return words if dead_letter.failed_again is None else f"{words}; failed again as {dead_letter.failed_again}"


def _describe_copy(dead_letter: ListedDeadLetter) -> str:
    return "" if dead_letter.copy_of is None else f"copy of {dead_letter.copy_of}"


def _describe_reason(dead_letter: ListedDeadLetter) -> str:
    first, _, _ = dead_letter.detail.strip().partition("\n")
    return f"{dead_letter.reason}: {first}"


def _describe_count(count: int) -> str:
    return f"{count} {inflect(count, 'dead letter')}"


def _describe_number(dead_letter: ListedDeadLetter | SentBack) -> str:
    """Return `stream:number`, or `no number` for a dead letter that names no task, and so concluded none."""
    return f"{dead_letter.stream}:{dead_letter.number}" if dead_letter.number >= 0 else "no number"
