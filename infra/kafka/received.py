"""Records as a poll returns them, without librdkafka's handles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as RawMessage

from headrace.infra.kafka.clients import AWAY_ERRORS, Message, translate_error
from headrace.infra.process.signals import MustRestart
from headrace.schemas.headers import Headers


def message_of(raw: RawMessage) -> Message:
    """Return a record without librdkafka's handle."""
    value = raw.value()
    return Message(
        topic=raw.topic() or "",
        partition=raw.partition() or 0,
        offset=raw.offset() or 0,
        key=raw.key() or b"",
        value=value or b"",
        headers=_headers_of(raw),
        timestamp_ms=raw.timestamp()[1],
        is_null=value is None,
    )


def _headers_of(raw: RawMessage) -> Headers:
    """Return a record's headers; none if a name is not UTF-8, which the client cannot decode."""
    try:
        found = cast(Headers, raw.headers() or [])
    except (SystemError, UnicodeDecodeError):  # a second call would return a list with holes
        return []
    return [(name, value) for name, value in found if value is not None]


def take_good_messages(raw: Iterable[RawMessage], doing: str) -> list[Message]:
    """Return the records of a poll; ignore temporary errors, raise others."""
    found = []
    for item in raw:
        error = item.error()
        if error is None:
            found.append(message_of(item))
        elif error.code() not in AWAY_ERRORS and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001
            if error.code() == KafkaError._FATAL:  # noqa: SLF001
                raise MustRestart(f"{doing}: {error.str()}; the component goes on with a new client")
            raise translate_error(KafkaException(error), doing)
    return found
