"""`headrace dead-letters`: unreadable records, the reason, their origin, and whether they were sent back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any

from headrace.consumers.evaluate.evaluation import read_lost_stamp
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.dead_letters import REASONS, REDRIVEN
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.run.run import Run
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.records import DeadLetter

SHOWN_BYTES = 256
"""Bytes of a value that are shown in hex."""
SHOWN_ITEMS, SHOWN_LENGTH = 8, 200
"""Items of a decoded list, and characters of a decoded text, that are shown."""

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


@dataclass(slots=True)
class DeadLetterList:
    """The dead letters of one run, folded from their topic in order."""

    run_id: str
    _found: dict[int, ListedDeadLetter] = field(default_factory=dict)
    _notices: dict[int, ListedDeadLetter] = field(default_factory=dict)
    """Dead letters of reason `redriven`: each says where the message of another dead letter was sent back to."""

    def fold_message(self, message: Message) -> None:
        """Take in a message; unreadable ones and those of other runs are skipped."""
        try:
            record = codec.decode(message.value, DeadLetter)
        except SchemaError:
            return
        if record.run_id != self.run_id:
            return
        dead_letter = _summarize(message.offset, record)
        if record.reason == REDRIVEN:
            self._notices[message.offset] = replace(dead_letter, redrives=record.redrives)
        else:
            self._found[message.offset] = dead_letter

    def list_all(self) -> list[ListedDeadLetter]:
        """Return the dead letters, oldest first. If one of a record was sent back, all of that record were."""
        notices = {notice.redrives: notice for notice in self._notices.values()}
        sent = [
            (dead_letter, notices[dead_letter.offset])
            for dead_letter in self._found.values()
            if dead_letter.offset in notices
        ]
        by_source = {dead_letter.source: notice for dead_letter, notice in sent}
        copies = {notice.source: dead_letter.offset for dead_letter, notice in reversed(sent)}
        again = self._index_earliest()
        return [
            replace(
                dead_letter,
                redriven=notice.offset if (notice := by_source.get(dead_letter.source)) else None,
                failed_again=again.get(notice.source) if notice else None,
                copy_of=copies.get(dead_letter.source),
            )
            for dead_letter in self._found.values()
        ]

    def notices(self) -> list[ListedDeadLetter]:
        """Return the dead letters of reason `redriven`, oldest first."""
        again = self._index_earliest()
        return [replace(notice, failed_again=again.get(notice.source)) for notice in self._notices.values()]

    def _index_earliest(self) -> dict[LetterSource, int]:
        """Return the first dead letter about each record."""
        return {dead_letter.source: dead_letter.offset for dead_letter in reversed(self._found.values())}


def _summarize(offset: int, record: DeadLetter) -> ListedDeadLetter:
    return ListedDeadLetter(
        offset=offset,
        created_ms=record.created_ms,
        component=record.component,
        reason=record.reason,
        detail=record.detail,
        topic=record.topic,
        partition=record.partition,
        source_offset=record.offset,
        policy=record.policy,
        stream=record.stream,
        number=record.number,
        value_bytes=len(record.value),
        cut_bytes=record.cut_bytes,
        is_counted=kind_of(record.topic) == "eval-groups"
        and read_lost_stamp(list(record.headers.items()), record.run_id) is not None,
    )


def kind_of(topic: str) -> str:
    """Return the kind of a topic: the word after the run's name."""
    return topic.split(".")[1] if "." in topic else ""


def _read(run: Run) -> DeadLetterList:
    found = DeadLetterList(run.run_id)
    for message in read_all(run.connection, [run.topics.dead_letters]):
        found.fold_message(message)
    return found


def read_dead_letters(run: Run) -> list[ListedDeadLetter]:
    """Return a run's dead letters up to the present end, oldest first. Raises KafkaAway or KafkaRefused.

    Dead letters of reason `redriven` are left out.
    """
    return _read(run).list_all()


def select_by_reason(dead_letters: list[ListedDeadLetter], reason: str | None) -> list[ListedDeadLetter]:
    """Return the dead letters of a reason, or all. Raises UsageError for an unknown reason."""
    chosen = [dead_letter for dead_letter in dead_letters if reason in (None, dead_letter.reason)]
    if reason is not None and not chosen and reason not in REASONS:
        raise UsageError(f"no dead letter has reason {reason!r}; the reasons are {', '.join(REASONS)}")
    return chosen


def listing(run: Run, reason: str | None = None) -> list[ListedDeadLetter]:
    """Return all dead letters but the `redriven` ones, or those of a reason, oldest first.

    Raises UsageError for an unknown reason.
    """
    found = _read(run)
    return select_by_reason(found.notices() if reason == REDRIVEN else found.list_all(), reason)


def read_detail(run: Run, offset: int) -> DeadLetterDetail:
    """Return one dead letter with its record: key, headers, and the beginning of the value, in hex and decoded.

    Raises UsageError if there is no dead letter at the offset.
    """
    found = _read(run)
    for dead_letter in chain(found.list_all(), found.notices()):
        if dead_letter.offset == offset:
            break
    else:
        raise UsageError(f"there is no dead letter at offset {offset}: `headrace dead-letters` lists the offsets")
    [record] = read_full_records(run, {offset}).values()
    return DeadLetterDetail(
        **{one.name: getattr(dead_letter, one.name) for one in fields(dead_letter)},
        key=_decode_text(record.key),
        headers={name: _decode_text(value) for name, value in record.headers.items()},
        hex=record.value[:SHOWN_BYTES].hex(" "),
        decoded=decode_value(record.value),
    )


def read_full_records(run: Run, offsets: set[int]) -> dict[int, DeadLetter]:
    """Return dead letters with their bytes, by offset."""
    return dict(iterate_full_records(run, offsets))


def iterate_full_records(run: Run, offsets: set[int]) -> Iterator[tuple[int, DeadLetter]]:
    """Yield dead letters with their bytes, in order, one at a time in memory."""
    for message in read_all(run.connection, [run.topics.dead_letters]):
        if message.offset in offsets:
            yield message.offset, codec.decode(message.value, DeadLetter)


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
