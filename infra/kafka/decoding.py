"""Decodes messages into records of this run, or into the reason for a dead letter.

All components read through this module. A component's own checks raise the same `MessageRefused`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import structlog

from headrace.infra.kafka.clients import Message
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.headers import HeaderError, Stamp

log = structlog.get_logger()

LARGEST_LEAP = 1000
"""A version this far ahead of the newest known one is invalid: no trainer can have reached it."""
MOST_EPISODES = 4096
"""Most episodes of a task, and so most trajectories of a group."""


class OfRun(Protocol):
    """A record that names its run."""

    @property
    def run_id(self) -> str:
        """Id of its run."""


R = TypeVar("R", bound=OfRun)
T = TypeVar("T")


class Refusal(NamedTuple):
    """Why a message is refused."""

    reason: str
    """One of `dead_letters.REASONS`, for a dead letter."""
    detail: str
    """What is wrong with the message, in one sentence."""


class MessageRefused(Exception):
    """A message cannot be used; the arguments are those of its `Refusal`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.refusal = Refusal(reason, detail)

    @property
    def reason(self) -> str:
        """Reason of the dead letter."""
        return self.refusal.reason

    @property
    def detail(self) -> str:
        """What is wrong with the message, in one sentence."""
        return self.refusal.detail


def decode_record(value: bytes, kind: type[T]) -> T:
    """Return the record in some bytes, of any run. Raises MessageRefused with reason `undecodable`."""
    try:
        return codec.decode(value, kind)
    except SchemaError as error:
        raise MessageRefused("undecodable", str(error)) from error


def decode_own(value: bytes, kind: type[R], run_id: str, describe: Callable[[R], str] | None = None) -> R:
    """Return the record of a message.

    Args:
        value: The message's value.
        kind: Class of the record.
        run_id: The run to which it must belong.
        describe: Returns the detail for a record of another run; by default it names both runs.

    Raises MessageRefused as `undecodable` or `other_run`.
    """
    record = decode_record(value, kind)
    if record.run_id != run_id:
        detail = describe(record) if describe else f"the record has run id {record.run_id!r}, this run has {run_id!r}"
        raise MessageRefused("other_run", detail)
    return record


def decode_own_stamp(message: Message, run_id: str) -> Stamp:
    """Return the stamp in a message's headers. Raises MessageRefused as `undecodable` or `other_run`."""
    try:
        stamp = Stamp.from_headers(message.headers)
    except HeaderError as error:
        raise MessageRefused("undecodable", str(error)) from error
    if stamp.run_id != run_id:
        raise MessageRefused("other_run", f"a process of run id {stamp.run_id} wrote to a topic of run id {run_id}")
    return stamp


def read_record(message: Message, kind: type[T]) -> T | None:
    """Return a component's own record; for anything else log a warning and return None."""
    try:
        return codec.decode(message.value, kind)
    except SchemaError as error:
        # A message could not be read and was skipped.
        log.warning("message.unreadable", topic=message.topic, offset=message.offset, detail=str(error))
        return None


def read_own(message: Message, kind: type[R], run_id: str) -> R | None:
    """Return an event of this run; for anything else log a warning and return None, without a dead letter."""
    record = read_record(message, kind)
    if record is not None and record.run_id != run_id:
        # A message of another run of the same name was skipped.
        log.warning("message.other_run", topic=message.topic, offset=message.offset, run_id=record.run_id)
        return None
    return record
