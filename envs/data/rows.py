"""Rows of a data set by number: the interface of all sources of `open_rows`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from headrace.schemas.records import ReadData

Row = Mapping[str, Any]
MEDIA = ("image", "images", "video", "videos", "audio", "audios")
"""Columns of data sets for multimodal models."""


class TaskFileError(ValueError):
    """A data set cannot be used; the message names file, line or row, and remedy."""


class Written(str):
    """A JSON number as written, because as a float 0.00001 would become 1e-05, and 5,000 digits would be lost."""

    __slots__ = ()


def explain_media(column: str) -> str:
    """Return why rows with a filled column of media that is not read are refused."""
    return f"`{column}` holds media, which no policy can read: leave out the rows with media, or remove the column"


class Rows(Protocol):
    """Rows that can be read in any order. One object may be used by any number of threads."""

    unit: str
    """Name of a row in errors: `line` or `row`."""

    def scan(self) -> Iterator[Row]:
        """Yield all rows in order. Call it before `read`. Raises TaskFileError."""

    def read(self, number: int) -> Row:
        """Return a row by its index in `scan`. Raises TaskFileError."""

    def name_row(self, number: int) -> str:
        """Return file and line or row, counted from 1."""

    def hash_content(self) -> str:
        """Return the SHA-256 of the scanned content, or the hub's revision; call it after `scan`."""


@runtime_checkable
class ReadsData(Protocol):
    """An environment that reads its problems from files at the first request."""

    def read_data(self) -> tuple[ReadData, ...]:
        """Read the files now, once. Raises TaskFileError."""


def read_data_of(environment: object) -> tuple[ReadData, ...]:
    """Let an environment read its data, if it has any; return the description of the data. Raises TaskFileError."""
    return environment.read_data() if isinstance(environment, ReadsData) else ()


@runtime_checkable
class LeavesRowsOut(Protocol):
    """An environment that gives no problem for some rows of its data."""

    def list_left_out(self) -> tuple[str, ...]:
        """Return which rows are left out, and why, a sentence for each source. Raises TaskFileError."""


def list_left_out_of(environment: object) -> tuple[str, ...]:
    """Return which rows of its data an environment leaves out, and why. Raises TaskFileError."""
    return environment.list_left_out() if isinstance(environment, LeavesRowsOut) else ()


def find_value(row: Row, column: str) -> Any:
    """Return the value of a column, or of a field within it (`reward_model.ground_truth`); None if it is missing."""
    if column in row:
        return row[column]
    found: Any = row
    for name in column.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return found


def fill_placeholders(text: str, values: Mapping[str, object]) -> str:
    """Replace each `{name}` in a text by its value; placeholders within values are not replaced."""
    values_of = {f"{{{name}}}": str(value) for name, value in values.items()}
    return re.sub("|".join(map(re.escape, values_of)), lambda found: values_of[found[0]], text)


def make_plain(value: Any) -> Any:
    """Return a value as plain JSON, with numbers as numbers. Raises ValueError for values that JSON lacks."""
    match value:
        case Written():
            return make_plain(json.loads(value))
        case Mapping():
            return {name: make_plain(one) for name, one in value.items()}
        case list() | tuple():
            return [make_plain(one) for one in value]
        case float() if not math.isfinite(value):
            raise ValueError(f"JSON has no number {value}")
        case str() | int() | float() | None:
            return value
    raise ValueError(f"JSON has no value of type {type(value).__name__}")
