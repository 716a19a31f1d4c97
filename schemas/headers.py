"""Key and headers of a group's records: its identity, readable without decoding the value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.schemas.records import Outcome, Task

Headers = list[tuple[str, bytes]]

_INT = re.compile(rb"-?[0-9]{1,19}")
_INT64 = range(-(2**63), 2**63)
_MOST_BYTES = 1000


class HeaderError(ValueError):
    """A message lacks a header that every group's record needs, or a header is malformed."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Identity of a group's record. Version fields are -1 if no token was generated."""

    run_id: str
    stream: str
    number: int
    attempt: int = 0
    use: int = 0
    purpose: str = "train"
    revision: int = 0
    policy: str = ""
    min_version: int = -1
    max_version: int = -1
    head_version: int = -1

    @property
    def key(self) -> bytes:
        """Message key: `stream:number`."""
        return task_key(self.stream, self.number)

    def to_headers(self) -> Headers:
        """Return the message's headers, in plain text."""
        return [(f.name, str(getattr(self, f.name)).encode()) for f in fields(self)]

    @classmethod
    def from_headers(cls, headers: Sequence[tuple[str, bytes]] | None) -> Stamp:
        """Read a message's headers; skip headers of other tools. Raises HeaderError.

        Numbers must fit Avro's long, and texts 1,000 bytes, because these values are stored in state and keys.
        """
        found = dict(headers or ())
        values: dict[str, str | int] = {}
        for f in fields(cls):
            if f.name not in found:
                raise HeaderError(f"header {f.name!r} is missing")
            value = _parse_int(found[f.name]) if f.type == "int" else _decode_text(found[f.name])
            if value is None:
                raise HeaderError(f"header {f.name!r} is malformed: {found[f.name][:40]!r}")
            values[f.name] = value
        return cls(**values)  # type: ignore[arg-type]  # int fields were made ints above


def _parse_int(text: bytes) -> int | None:
    number = int(text) if _INT.fullmatch(text) else None
    return number if number is not None and number in _INT64 else None


def _decode_text(text: bytes) -> str | None:
    try:
        return text.decode() if len(text) <= _MOST_BYTES else None
    except UnicodeDecodeError:
        return None


def task_key(stream: str, number: int) -> bytes:
    """Return the key of every message about this task."""
    return f"{stream}:{number}".encode()


def outcome_stamp(outcome: Outcome) -> Stamp:
    """Return the stamp of an outcome's own message."""
    return Stamp(
        run_id=outcome.run_id,
        stream=outcome.stream,
        number=outcome.number,
        use=outcome.use,
        revision=outcome.revision,
        policy=outcome.policy,
        min_version=outcome.min_version,
        max_version=outcome.max_version,
        head_version=outcome.head_version,
    )


def task_stamp(task: Task, policy: str = "") -> Stamp:
    """Return the stamp of a task's own message, or of a group made from it."""
    return Stamp(
        run_id=task.run_id,
        stream=task.stream,
        number=task.number,
        attempt=task.attempt,
        purpose=task.purpose,
        revision=task.revision,
        policy=policy,
    )
