"""Bytes that could not be read become a record that says so; nothing is lost, and nothing stands still.

`headrace redrive` sends them back to where they came from, with a header that names the letter, and writes a letter of
reason `redriven`: the number is open again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import structlog

from headrace.infra.kafka.clients import Message, Outgoing
from headrace.schemas import codec
from headrace.schemas.headers import HeaderError, Stamp
from headrace.schemas.ids import now_ms
from headrace.schemas.records import DeadLetter, Outcome
from headrace.schemas.topics import Topics, policy_of

log = structlog.get_logger()

REDRIVEN = "redriven"
"""Reason of a letter that says that another one's message was sent back."""
REASONS = (
    "undecodable",
    "other_run",
    "misrouted",
    "time_travel",
    "missing_object",
    "unknown_revision",
    "unusable",
    "poison",
    "forgotten",
    REDRIVEN,
)
"""Of this build; a letter of a newer one may have another."""
REDRIVE_HEADER = "redrive"
"""Header of a message that was sent back; its value is the offset of the letter."""
MOST_BYTES = 7 << 20
"""Key, headers and value of a letter; the letter must fit into a message itself, or its writer would stand still."""
MOST_KEY_BYTES = 1000
"""Key of the letter's own message."""
DETAIL_LENGTH = 1000


def was_sent_back(message: Message) -> bool:
    """Tell whether a message came by `headrace redrive`."""
    return any(name == REDRIVE_HEADER for name, _ in message.headers)


def dead_letter(topics: Topics, run_id: str, component: str, message: Message, why: tuple[str, str]) -> Outgoing:
    """Return the dead letter of a message; `why` is (reason, detail).

    When the headers still name a task of this run, its number goes into the record and so concludes it as dead; of a
    replay that use alone. What is too large for a letter is cut off; the whole is where topic, partition and offset
    say.
    """
    policy, stream, number, use = "", "", -1, 0
    try:
        stamp = Stamp.from_headers(message.headers)
        if stamp.run_id == run_id:
            policy, stream, number, use = stamp.policy, stamp.stream, stamp.number, stamp.use
    except HeaderError:
        pass
    detail = why[1][:DETAIL_LENGTH].encode(errors="backslashreplace").decode()
    reason, whole, message = why[0], message, _fitting(message)
    headers = dict(message.headers)  # of two of one name the last
    log.warning("message.dead", topic=message.topic, offset=message.offset, reason=reason, detail=detail)
    letter = DeadLetter(
        run_id=run_id,
        component=component,
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        reason=reason,
        detail=detail,
        policy=policy,
        stream=stream,
        number=number,
        use=use,
        key=message.key,
        headers=headers,
        value=message.value,
        cut_bytes=_size(whole.key, whole.headers, whole.value) - _size(message.key, headers.items(), message.value),
        created_ms=now_ms(),
    )
    return Outgoing(topics.dead_letters, codec.encode(letter), message.key[:MOST_KEY_BYTES])


def lost_to_shadow(run_id: str, line: str, message: Message, why: tuple[str, str]) -> Outcome | None:
    """Return the outcome of a message that a shadow cannot read; `why` is (reason, detail). It writes no letter.

    A letter concludes a number of the main variant, and can be sent back to it: the main curator writes that, where it
    cannot read the message either. None when the headers name no task of this run: it concludes nothing.
    """
    reason, detail = why
    said = detail[:DETAIL_LENGTH]
    log.warning("message.lost", line=line, topic=message.topic, offset=message.offset, reason=reason, detail=said)
    try:
        stamp = Stamp.from_headers(message.headers)
    except HeaderError:
        return None
    if (stamp.run_id, stamp.policy) != (run_id, policy_of(line)):
        return None
    return Outcome(
        run_id=run_id,
        stream=stamp.stream,
        number=stamp.number,
        use=stamp.use,
        policy=stamp.policy,
        verdict="dropped",
        reason=reason,
        revision=stamp.revision,
        min_version=stamp.min_version,
        max_version=stamp.max_version,
        head_version=stamp.head_version,
    )


def _fitting(message: Message) -> Message:
    """Return a message that fits into a letter: of one that is too large the beginning."""
    beside = _size(message.key, message.headers)
    if beside > MOST_BYTES:
        return replace(message, key=b"", headers=[], value=message.value[:MOST_BYTES])
    return replace(message, value=message.value[: MOST_BYTES - beside])


def _size(key: bytes, headers: Iterable[tuple[str, bytes]], value: bytes = b"") -> int:
    return len(key) + sum(len(name.encode()) + len(content) for name, content in headers) + len(value)
