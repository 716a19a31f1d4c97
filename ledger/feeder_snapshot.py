"""The feeder's newest snapshot among the messages of a run, whole or cut into pieces. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.clients import Message
from headrace.infra.run.own_positions import OF_PART, OF_PIECE, is_cut, join_pieces
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.records import Snapshot
from headrace.schemas.topics import FEEDER

FEEDER_KEY = FEEDER.encode()
"""Key of the snapshot, and the beginning of the keys of its pieces and parts."""
_PIECE_PREFIX = f"{FEEDER}{OF_PART}{OF_PIECE}".encode()

NO_SNAPSHOT = (ValueError, KeyError, TypeError, AttributeError, OverflowError)
"""Errors that JSON and look-ups raise for a body that is not a snapshot."""
MOST_NUMBERS = 1 << 32
"""Largest number of tasks in a stream that an audit accepts: fifty days of a thousand groups a second."""


class FeederSnapshot:
    """Keeps the newest messages of the snapshot as they come; they are decoded on demand, as there are many long ones.

    In its JSON, `next` is the next training number of every stream, and `revisions` gives the first number of every
    recipe revision.
    """

    def __init__(self) -> None:
        self.message: Message | None = None
        """The newest message of the snapshot itself; None before the first."""
        self._pieces: dict[bytes, Message] = {}
        self._pieces_of_newest: dict[bytes, Message] = {}

    def fold_message(self, message: Message) -> bool:
        """Take in a message of the topic `state`; return whether it is of the feeder's snapshot."""
        if message.key == FEEDER_KEY:  # its pieces are before it: later ones are of the next snapshot
            self.message, self._pieces_of_newest = message, self._pieces.copy()
            return True
        if not message.key.startswith(_PIECE_PREFIX):
            return False
        if message.is_null:
            self._pieces.pop(message.key, None)
        else:
            self._pieces[message.key] = message
        return True

    def messages(self) -> list[Message]:
        """Return the messages that make this state again when they are taken in in this order."""
        newest = [] if self.message is None else [self.message]
        return [*self._pieces_of_newest.values(), *newest, *self._pieces.values()]

    def decode(self) -> Snapshot | None:
        """Return the newest snapshot; None before the first. Raises ValueError if it or a piece cannot be read."""
        if self.message is None:
            return None
        snapshot = codec.decode(self.message.value, Snapshot)
        if not is_cut(snapshot):
            return snapshot
        pieces: dict[str, bytes] = {}
        for key, message in self._pieces_of_newest.items():
            with suppress(SchemaError):  # then it counts as missing, as for the feeder
                pieces[key.decode().partition(OF_PART)[2]] = codec.decode(message.value, Snapshot).body
        try:
            return join_pieces(snapshot, pieces)
        except HeadraceError as error:
            raise ValueError(str(error)) from error


def read_issued(state: Any) -> dict[str, int]:
    """Return the next training number of every stream from the feeder's state."""
    return read_next_numbers(state["next"])


def read_begins(state: Any) -> dict[str, list[list[int]]]:
    """Return stream to (revision, the first number issued under it) from the feeder's state."""
    return {
        stream: [[int(revision), int(first)] for revision, first in begins]
        for stream, begins in state.get("revisions", {}).items()
    }


def read_next_numbers(numbers: Mapping[str, Any]) -> dict[str, int]:
    """Return next numbers as integers. Raises ValueError for a number that no run can reach."""
    found = {stream: int(number) for stream, number in numbers.items()}
    if odd := {stream: number for stream, number in found.items() if not 0 <= number <= MOST_NUMBERS}:
        given = ", ".join(f"{number} for {stream}" for stream, number in odd.items())
        raise ValueError(f"the number of a stream's next task must be from 0 to {MOST_NUMBERS}, but it is {given}")
    return found


def describe_unusable(error: Exception) -> str:
    """Return in words why the feeder's state cannot be used, for an error of NO_SNAPSHOT."""
    if isinstance(error, ValueError):
        return str(error)
    return f"its JSON does not have the form that the feeder writes ({type(error).__name__}: {error})"
