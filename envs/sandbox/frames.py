"""What a box and its owner say to each other over a socket. Nothing that comes out of a box is trusted."""

from __future__ import annotations

import marshal
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

REQUEST = struct.Struct(">IQ")
"""From the owner: lengths of a table (as `marshal` writes it, which needs no import) and of the bytes after it."""
FRAME = struct.Struct(">BI")
"""From the box: kind, and length of what follows."""
STDOUT, STDERR, END = 1, 2, 3
LARGEST_FRAME = 1 << 16
ENDED = struct.Struct(">i???")
"""Of a command: return code, whether its time was over, whether stdout and stderr were cut."""


def encode_request(said: dict[str, Any], data: bytes = b"") -> bytes:
    """Return a request as bytes."""
    text = marshal.dumps(said)
    return REQUEST.pack(len(text), len(data)) + text + data


def encode_frame(kind: int, data: bytes) -> bytes:
    """Return a frame as bytes."""
    return FRAME.pack(kind, len(data)) + data
