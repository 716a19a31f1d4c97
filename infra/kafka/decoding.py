"""From the bytes of a message to a record of this run, or to the reason why the message is a dead letter.

Every worker reads through here. What only one worker refuses, it refuses by raising the same `MessageRefused`.
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
"""A version this far ahead of the newest known one is invalid: no trainer can have come to it."""
LONGEST_NAME = 1000
"""Characters of a stream, task id, tier or reason: every record that follows repeats them. Of a trajectory's id no more
are repeated."""
MOST_EPISODES = 4096
"""Largest number of episodes of a task, and so of trajectories of a group."""


class OfRun(Protocol):
    """A record that names its run."""

    @property
    def run_id(self) -> str:
        """Whose it is."""


R = TypeVar("R", bound=OfRun)
T = TypeVar("T")


class Refusal(NamedTuple):
    """Why a message is not used."""

    reason: str
    """One of `dead_letters.REASONS`, where it is a dead letter."""
    detail: str
    """What is wrong with the message, in one sentence."""


class MessageRefused(Exception):
    """A message that cannot be used; the arguments are those of its `Refusal`, which says why."""

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
    """Return the record in some bytes, of whatever run. Raises MessageRefused as `undecodable`."""
    try:
        return codec.decode(value, kind)
    except SchemaError as error:
        raise MessageRefused("undecodable", str(error)) from error


def decode_own(value: bytes, kind: type[R], run_id: str, describe: Callable[[R], str] | None = None) -> R:
    """Return the record of a message.

    Args:
        value: The message's value.
        kind: Class of the record.
        run_id: The run that it has to belong to.
        describe: Returns the detail for a record of another run; left out, it names both runs.

    Raises MessageRefused as `undecodable` or `other_run`.
    """
    record = decode_record(value, kind)
    if record.run_id != run_id:
        detail = describe(record) if describe else f"the record has run id {record.run_id!r}, this run has {run_id!r}"
        raise MessageRefused("other_run", detail)
    return record


def stamp_own(message: Message, run_id: str) -> Stamp:
    """Return the headers of a message, read. Raises MessageRefused as `undecodable` or `other_run`."""
    try:
        stamp = Stamp.from_headers(message.headers)
    except HeaderError as error:
        raise MessageRefused("undecodable", str(error)) from error
    if stamp.run_id != run_id:
        raise MessageRefused("other_run", f"a process of run id {stamp.run_id} wrote to a topic of run id {run_id}")
    return stamp


def read_record(message: Message, kind: type[T]) -> T | None:
    """Return the record that a component wrote for itself; None, and a warning, for anything else."""
    try:
        return codec.decode(message.value, kind)
    except SchemaError as error:
        log.warning("message.unreadable", topic=message.topic, offset=message.offset, detail=str(error))
        return None


def read_own(message: Message, kind: type[R], run_id: str) -> R | None:
    """Return an event of this run; None, and a warning, for anything else. It writes no dead letter."""
    record = read_record(message, kind)
    if record is not None and record.run_id != run_id:
        log.warning("message.other_run", topic=message.topic, offset=message.offset, run_id=record.run_id)
        return None
    return record
