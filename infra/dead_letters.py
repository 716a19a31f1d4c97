"""Bytes that could not be read become a record that says so; nothing is lost, and nothing stands still."""

from __future__ import annotations

import time

import structlog

from infra.kafka import Message, Outgoing
from schemas import codec
from schemas.headers import HeaderError, Stamp
from schemas.records import DeadLetter
from schemas.topics import Topics

log = structlog.get_logger()


def dead_letter(topics: Topics, run_id: str, component: str, message: Message, why: tuple[str, str]) -> Outgoing:
    """Return the dead letter of a message; `why` is (reason, detail).

    When the headers still name a task of this run, its number goes into the record and so concludes it as dead.
    """
    policy, stream, number = "", "", -1
    try:
        stamp = Stamp.from_headers(message.headers)
        if stamp.run_id == run_id:
            policy, stream, number = stamp.policy, stamp.stream, stamp.number
    except HeaderError:
        pass
    reason, detail = why
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
        key=message.key,
        headers=dict(message.headers),
        value=message.value,
        created_ms=time.time_ns() // 1_000_000,
    )
    return Outgoing(topics.dead_letters, codec.encode(letter), message.key)
