"""Files as one stream of bytes, into and out of a box: names, contents, and whether a file is executable.

There is nothing in it that a reader could be tricked by: no links, no devices, no absolute names, no compression.
"""

from __future__ import annotations

import os
import stat
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:  # a box imports this at its start
    from collections.abc import Iterator

FOLDER, FILE, PROGRAM, LEFT_OUT = 1, 2, 3, 4
HEADER = struct.Struct(">BHQ")
LONGEST_NAME = 4096
CHUNK = 1 << 16


class BadStream(ValueError):
    """A stream of files is not one, or names what it must not."""


class TooLarge(ValueError):
    """Files are more, or larger, than allowed."""


Entry = tuple[int, str, bytes]
"""Kind, name below the copied folder (empty for the copied file itself), and content."""


def encode_entry(entry: Entry) -> bytes:
    """Return an entry as bytes."""
    kind, name, content = entry
    raw = os.fsencode(name)
    return HEADER.pack(kind, len(raw), len(content)) + raw + content


def read_entries(stream: bytes | memoryview, most_files: int) -> Iterator[Entry]:
    """Yield the entries of a stream that may come from anyone. Raises BadStream or TooLarge."""
    view, at, count = memoryview(stream), 0, 0
    while at < len(view):
        count += 1
        if count > most_files:
            raise TooLarge(f"more than {most_files} files")
        if len(view) - at < HEADER.size:
            raise BadStream("it ends within a header")
        kind, name_length, size = HEADER.unpack_from(view, at)
        begin = at + HEADER.size
        at = begin + name_length + size
        if at > len(view) or kind not in (FOLDER, FILE, PROGRAM, LEFT_OUT) or name_length > LONGEST_NAME:
            raise BadStream(f"it has a wrong header for entry {count}")
        name = os.fsdecode(bytes(view[begin : begin + name_length]))
        check_name(name, may_be_empty=kind != LEFT_OUT)
        yield kind, name, bytes(view[begin + name_length : at])


def check_name(name: str, *, may_be_empty: bool = True) -> None:
    """Raise BadStream for a name that leads out of the folder that it is put into."""
    parts = name.split("/")
    if (not name and may_be_empty) or not ("\0" in name or {"", ".", ".."} & set(parts)):
        return
    raise BadStream(f"it has the name {name!r}")


def pack(source: str, most_bytes: int, most_files: int) -> Iterator[bytes]:
    """Yield a file or the content of a folder as chunks of a stream. Raises OSError or TooLarge.

    Links to files are followed. Everything else that is neither file nor folder is named as left out.
    """
    budget = [most_bytes, most_files]
    if stat.S_ISDIR(os.stat(source).st_mode):
        yield from _pack_folder(source, "", budget)
    else:
        yield from _pack_file(source, "", budget)


def _pack_folder(path: str, name: str, budget: list[int]) -> Iterator[bytes]:
    yield from _spend(encode_entry((FOLDER, name, b"")), budget)
    with os.scandir(path) as found:
        inside = sorted(found, key=lambda entry: entry.name)
    for entry in inside:
        below = f"{name}/{entry.name}" if name else entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _pack_folder(entry.path, below, budget)
        else:
            yield from _pack_file(entry.path, below, budget)


def _pack_file(path: str, name: str, budget: list[int]) -> Iterator[bytes]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)  # a pipe must not wait
    except OSError:
        if not name:
            raise
        yield from _spend(encode_entry((LEFT_OUT, name, b"")), budget)
        return
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            yield from _spend(encode_entry((LEFT_OUT, name or path.strip("/"), b"")), budget)
            return
        if found.st_size > budget[0]:
            raise TooLarge(f"{name or path} has {found.st_size} bytes")
        raw, kind = os.fsencode(name), PROGRAM if found.st_mode & 0o100 else FILE
        yield from _spend(HEADER.pack(kind, len(raw), found.st_size) + raw, budget)
        left = found.st_size
        while left:
            chunk = os.read(descriptor, min(left, CHUNK)) or bytes(min(left, CHUNK))  # it may become shorter meanwhile
            left -= len(chunk)
            budget[0] -= len(chunk)
            yield chunk
    finally:
        os.close(descriptor)


def _spend(header: bytes, budget: list[int]) -> Iterator[bytes]:
    budget[0] -= len(header)
    budget[1] -= 1
    if budget[0] < 0 or budget[1] < 0:
        raise TooLarge("too many files")
    yield header


def unpack(entries: Iterator[Entry], target: str) -> list[str]:
    """Write entries to a path, as a file or a folder; return the names that are left out. Raises OSError."""
    left_out = []
    for kind, name, content in entries:
        path = f"{target}/{name}" if name else target
        if kind == LEFT_OUT:
            left_out.append(name)
        elif kind == FOLDER:
            os.makedirs(path, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(path) or "/", exist_ok=True)
            mode = 0o755 if kind == PROGRAM else 0o644
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
            with open(descriptor, "wb") as file:
                file.write(content)
                os.fchmod(descriptor, mode)
    return left_out
