"""`headrace dead-letters`: unreadable records, the reason, their origin, and whether they were sent back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from headrace.infra.errors import UsageError
from headrace.infra.kafka.dead_letters import REASONS, REDRIVEN
from headrace.infra.kafka.topic_reader import read_offsets
from headrace.infra.run.run import Run
from headrace.ledger.follow import ask_ledger
from headrace.ledger.ledger import Ledger
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.records import DeadLetter

SHOWN_BYTES = 256
"""Bytes of a value that are shown in hex."""
SHOWN_ITEMS, SHOWN_LENGTH = 8, 200
"""Items of a decoded list, and characters of a decoded text, that are shown."""

_DEAD_LETTERS = f"""
    SELECT topic, min_version, CASE WHEN reason = '{REDRIVEN}' THEN redrives END, offset, created_ms, component, reason,
        detail, topic, source_partition, source_offset, policy, stream, number, value_bytes, cut_bytes
    FROM dead_letter ORDER BY id
"""

LetterSource = tuple[str, int, int]
"""(topic, partition, offset) of the record that a dead letter is about."""


@dataclass(frozen=True, slots=True)
class ListedDeadLetter:
    """A dead letter without the bytes of its record: the bytes of all dead letters may not fit into memory."""

    offset: int
    """Offset of the dead letter."""
    created_ms: int
    component: str
    reason: str
    detail: str
    topic: str
    """This and the next two: position of the record that it is about; with reason `redriven`, its new position."""
    partition: int
    source_offset: int
    policy: str
    stream: str
    number: int
    value_bytes: int
    cut_bytes: int = 0
    """Bytes of the message that the dead letter lacks."""
    is_counted: bool = False
    """True for a group of an evaluation, which has counted the group as unanswered."""
    redriven: int | None = None
    """Offset of the dead letter of reason `redriven` that says that the message was sent back."""
    failed_again: int | None = None
    """Offset of the newer dead letter about the message, which was sent back and could not be read again."""
    copy_of: int | None = None
    """Offset of the older dead letter whose message was sent back and could not be read again: this one followed."""
    redrives: int | None = None
    """With reason `redriven`, offset of the dead letter whose message was sent back; else None."""

    @property
    def source(self) -> LetterSource:
        """The record that it is about. A killed worker may have written two dead letters about the same record."""
        return self.topic, self.partition, self.source_offset


@dataclass(frozen=True, slots=True)
class DecodedRecord:
    """The readable part of a value that was written with one of the schemas."""

    record: str
    """Its name."""
    fields: dict[str, object]
    """The first of its fields; long values are cut."""


@dataclass(frozen=True, slots=True)
class DecodedText:
    """The readable part of any other value."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterDetail(ListedDeadLetter):
    """A dead letter with the record that it is about."""

    key: str
    headers: dict[str, str]
    hex: str
    """The value's beginning."""
    decoded: DecodedRecord | DecodedText


def find_dead_letters(ledger: Ledger) -> list[ListedDeadLetter]:
    """Return all dead letters, oldest first, also those of reason `redriven`.

    If one of a record was sent back, all of that record were. The evaluator counts a lost group whose headers name a
    version as unanswered.
    """
    every = [
        replace(
            ListedDeadLetter(*facts),
            is_counted=kind_of(topic) == "eval-groups" and min_version >= 0,
            redrives=redrives,
        )
        for topic, min_version, redrives, *facts in ledger.query(_DEAD_LETTERS)
    ]
    letters = [one for one in every if one.redrives is None]
    notices = {one.redrives: one for one in every if one.redrives is not None}
    sent = [(one, notices[one.offset]) for one in letters if one.offset in notices]
    by_source = {one.source: notice for one, notice in sent}
    copies = {notice.source: one.offset for one, notice in reversed(sent)}
    earliest = {one.source: one.offset for one in reversed(letters)}

    def link(one: ListedDeadLetter) -> ListedDeadLetter:
        if one.redrives is not None:
            return replace(one, failed_again=earliest.get(one.source))
        linked = replace(one, copy_of=copies.get(one.source))
        if (notice := by_source.get(one.source)) is None:
            return linked
        return replace(linked, redriven=notice.offset, failed_again=earliest.get(notice.source))

    return [link(one) for one in every]


def kind_of(topic: str) -> str:
    """Return the kind of a topic: the word after the run's name."""
    return topic.split(".")[1] if "." in topic else ""


def select_by_reason(dead_letters: list[ListedDeadLetter], reason: str | None) -> list[ListedDeadLetter]:
    """Return the dead letters of a reason, or all. Raises UsageError for an unknown reason."""
    chosen = [dead_letter for dead_letter in dead_letters if reason in (None, dead_letter.reason)]
    if reason is not None and not chosen and reason not in REASONS:
        raise UsageError(f"no dead letter has reason {reason!r}; the reasons are {', '.join(REASONS)}")
    return chosen


def listing(run: Run, reason: str | None = None, ledger: Path | None = None) -> list[ListedDeadLetter]:
    """Return all dead letters but the `redriven` ones, or those of a reason, oldest first.

    `ledger` is the file of the run's ledger; None to read its topics into memory. Raises UsageError for an unknown
    reason, KafkaAway or KafkaRefused.
    """
    found = [
        one for one in ask_ledger(run, ledger, find_dead_letters) if (one.reason == REDRIVEN) == (reason == REDRIVEN)
    ]
    return select_by_reason(found, reason)


def read_detail(run: Run, offset: int, ledger: Path | None = None) -> DeadLetterDetail:
    """Return one dead letter with its record: key, headers, and the beginning of the value, in hex and decoded.

    Raises UsageError if there is no dead letter at the offset.
    """
    by_offset = {one.offset: one for one in ask_ledger(run, ledger, find_dead_letters)}
    if offset not in by_offset:
        raise UsageError(f"there is no dead letter at offset {offset}: `headrace dead-letters` lists the offsets")
    [record] = read_full_records(run, {offset})
    return DeadLetterDetail(
        **{one.name: getattr(by_offset[offset], one.name) for one in fields(ListedDeadLetter)},
        key=_decode_text(record.key),
        headers={name: _decode_text(value) for name, value in record.headers.items()},
        hex=record.value[:SHOWN_BYTES].hex(" "),
        decoded=decode_value(record.value),
    )


def read_full_records(run: Run, offsets: set[int]) -> Iterator[DeadLetter]:
    """Yield dead letters with their bytes, in order, one at a time in memory."""
    for message in read_offsets(run.connection, run.topics.dead_letters, {0: offsets}):
        yield codec.decode(message.value, DeadLetter)


def decode_value(value: bytes) -> DecodedRecord | DecodedText:
    """Return the readable part of a value: the record's name and its first fields, else its text."""
    try:
        name, found = codec.decode_prefix(value)
    except SchemaError:
        return DecodedText(_decode_text(value[: 2 * SHOWN_LENGTH]))
    return DecodedRecord(name, {key: _shorten(one) for key, one in found.items()})


def _decode_text(value: bytes) -> str:
    """Return bytes as text, with escapes for unprintable characters."""
    return value.decode("utf-8", "backslashreplace").encode("unicode_escape").decode("ascii")[: 4 * SHOWN_LENGTH]


def _shorten(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, str) and len(value) > SHOWN_LENGTH:
        return value[:SHOWN_LENGTH] + "…"
    if isinstance(value, Mapping):
        return {key: _shorten(item) for key, item in list(value.items())[:SHOWN_ITEMS]}
    if isinstance(value, list):
        more = [f"… {len(value) - SHOWN_ITEMS} more"] if len(value) > SHOWN_ITEMS else []
        return [_shorten(item) for item in value[:SHOWN_ITEMS]] + more
    return value
