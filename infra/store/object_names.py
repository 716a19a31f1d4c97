"""The names of objects, and the bytes that are to be stored."""

from __future__ import annotations

import io
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Kind = Literal["weights", "files", "checkpoints", "groups", "examples"]
"""Folder of an object; `policy.py` says who may read and write which."""

PROBE_FOLDER = "probe"
"""Folder of the one object that shows whether a bucket can be used."""

_SEGMENT = re.compile(r"(?!\.\.?$)[A-Za-z0-9._=+-]+")
"""Part of a key between slashes; never `.` or `..`."""

Content = bytes | memoryview | Sequence[bytes | memoryview]
"""Bytes of an object, or several pieces that follow each other, so that they need not be copied together."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object that is in the store: all that a record needs to name it."""

    key: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object as a listing shows it."""

    key: str
    size_bytes: int
    modified: datetime
    """When it was last written, in UTC by the store's clock."""


def is_key(key: str) -> bool:
    """Return whether a key could be an object's; no such key leads out of the folder that it is taken below."""
    return len(key) <= 1024 and all(_SEGMENT.fullmatch(part) for part in key.split("/"))


def pieces_of(data: Content) -> list[memoryview]:
    """Return the bytes of an object as views, in order; nothing is copied."""
    return [memoryview(piece).cast("B") for piece in ([data] if isinstance(data, bytes | memoryview) else data)]


class JoinedPieces(io.RawIOBase):
    """A readable stream over pieces of bytes, without a copy of them all."""

    def __init__(self, pieces: Sequence[memoryview]) -> None:
        self._rest = deque(piece for piece in pieces if piece.nbytes)

    def readable(self) -> bool:
        """Report that it can be read."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill the buffer from the next piece and return how many bytes that were; 0 at the end."""
        if not self._rest:
            return 0
        into, piece = memoryview(buffer), self._rest.popleft()
        size = min(len(into), len(piece))
        into[:size] = piece[:size]
        if size < len(piece):
            self._rest.appendleft(piece[size:])
        return size
