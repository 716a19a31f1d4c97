"""Rows of a JSON lines file. Only the begin of each line is stored: 8 bytes per line."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from weakref import finalize

from headrace.envs.data.rows import Row, TaskFileError, Written
from headrace.infra.git_lfs import describe_pointer

JSONL_REMEDY = "a data file holds one JSON object per line (to convert a JSON array: `jq -c '.[]' FILE`)"
SEPARATORS = {".csv": ",", ".tsv": "\\t"}
"""Suffix of a table as text to its separator."""
_CSV_REMEDY = (
    'write it as JSON lines, for example by `python -c "import csv, json, sys; [print(json.dumps(row)) for row in '
    "csv.DictReader(open(sys.argv[1], newline=''), delimiter='{1}')]\" {0} > {2}.jsonl`"
)
MARK = b"\xef\xbb\xbf"
"""The byte order mark that Windows programs put before a text."""
JSONL_CHUNK_BYTES = 1 << 20


class JsonlRows:
    """The objects of a JSONL file, one per line; empty lines are skipped. A `.gz` file is unpacked to a temporary file.

    Raises TaskFileError for a file that cannot be read.
    """

    unit = "line"

    def __init__(self, path: Path) -> None:
        if why := describe_pointer(path):
            raise TaskFileError(why)
        if path.suffix in SEPARATORS:
            remedy = _CSV_REMEDY.format(path, SEPARATORS[path.suffix], path.stem)
            raise TaskFileError(f"{path} is a {path.suffix[1:].upper()} file: {remedy}")
        self._path = path
        self._file = _open_plain(path)
        finalize(self, self._file.close)
        self._starts = array("q")
        self._hash = hashlib.sha256()

    def scan(self) -> Iterator[Row]:
        """Yield the object of every line. Raises TaskFileError, with the number, for a line without an object."""
        self._starts, self._hash, offset = array("q"), hashlib.sha256(), 0
        self._file.seek(0)
        for number, line in enumerate(self._file, start=1):
            self._hash.update(line)
            text = line.removeprefix(MARK) if number == 1 else line
            if text.strip():
                self._starts.append(offset)
                yield _parse_line(text, f"{self._path}:{number}")
            offset += len(line)
        self._starts.append(offset)

    def read(self, number: int) -> Row:
        """Return the object of a scanned line. Raises TaskFileError if the file has changed since the scan."""
        start, end = self._starts[number], self._starts[number + 1]
        line = os.pread(self._file.fileno(), end - start, start)
        return _parse_line(line.removeprefix(MARK) if start == 0 else line, str(self._path))

    def name_row(self, number: int) -> str:
        """Return `file:line`; lines are counted again, because only errors need their numbers."""
        left, line = self._starts[number], 1
        offset = 0
        while left > 0:
            chunk = os.pread(self._file.fileno(), min(left, JSONL_CHUNK_BYTES), offset)
            if not chunk:
                break
            line += chunk.count(b"\n")
            offset, left = offset + len(chunk), left - len(chunk)
        return f"{self._path}:{line}"

    def hash_content(self) -> str:
        """Return SHA-256 of the text."""
        return self._hash.hexdigest()


def _open_plain(path: Path) -> IO[bytes]:
    try:
        if path.suffix != ".gz":
            return path.open("rb", buffering=JSONL_CHUNK_BYTES)
        plain = tempfile.TemporaryFile(buffering=JSONL_CHUNK_BYTES)  # noqa: SIM115 - its rows close it
        try:
            with gzip.open(path) as packed:
                shutil.copyfileobj(packed, plain, JSONL_CHUNK_BYTES)
            plain.flush()
        except BaseException:
            plain.close()
            raise
    except (OSError, EOFError) as error:
        why = getattr(error, "strerror", None) or error
        raise TaskFileError(f"cannot read tasks from {path}: {why}") from error
    return plain


class _NotANumber(ValueError):
    """NaN or an infinity."""


def _refuse_constant(name: str) -> None:
    raise _NotANumber(name)


class _Doubled(ValueError):
    """A key that an object has twice."""


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Doubled(next(name for name in names if names.count(name) > 1))
    return found


_DECODER = json.JSONDecoder(
    parse_float=Written, parse_int=Written, parse_constant=_refuse_constant, object_pairs_hook=_build_object
)


def _explain_bytes(line: bytes) -> str:
    """Describe the likely encoding of a line that is not UTF-8, and the remedy."""
    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
        return ": the file is UTF-16; convert it by `iconv -f UTF-16 -t UTF-8`"
    if line.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")):
        return ": the file is compressed; unpack it, or name a gzip file *.jsonl.gz"
    return ": convert the file to UTF-8, for example by `iconv -f LATIN1 -t UTF-8`"


def _parse_line(line: bytes, where: str) -> Row:
    try:
        found = _DECODER.decode(line.decode())
    except UnicodeDecodeError as error:
        raise TaskFileError(
            f"{where}: not UTF-8 ({error.reason} at byte {error.start}){_explain_bytes(line)}"
        ) from error
    except json.JSONDecodeError as error:
        raise TaskFileError(f"{where}: not JSON ({error.msg} at column {error.colno}); {JSONL_REMEDY}") from error
    except _NotANumber as error:
        raise TaskFileError(f"{where}: {error} is not JSON: write a number, a text or null in its place") from error
    except _Doubled as error:
        raise TaskFileError(
            f"{where}: the key {str(error)!r:.60} occurs more than once in an object: write it only once"
        ) from error
    except RecursionError as error:
        raise TaskFileError(f"{where}: the JSON cannot be read: it is nested too deeply") from error
    if not isinstance(found, dict):
        kind = "a number" if isinstance(found, Written) else type(found).__name__
        raise TaskFileError(f"{where}: expected a JSON object, got {kind}; {JSONL_REMEDY}")
    return found
