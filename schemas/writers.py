"""Checks foreign schemas and large messages before the decoder reads them.

The decoder trusts its schema. A recursive schema overflows its stack; with items of zero bytes it would build 2^60
items; items of a few bytes take a hundred times as much memory. So a foreign schema may have only the types of
Headrace's schemas, where every value takes at least one byte. A large message is walked once before it is decoded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.schemas.avro import SCALARS, Plain, SchemaError

MOST_SCHEMA_CHARACTERS = 1 << 18
DEEPEST_TYPE = 32
"""Deepest nesting of types."""
LARGE_BYTES = 1 << 18
"""A smaller message is harmless: its values take at most some 30 MB."""
MOST_VALUES = 1_000_000
"""Most values in one message; they take some 200 MB. A tensor is one value."""

Named = dict[str, Any]


def parse_foreign_schema(text: str) -> Plain:
    """Return the schema in a text of another program.

    Raises SchemaError unless it is a record of the types in `schemas.avro`'s table, not recursive, and each of its
    values takes at least one byte.
    """
    if len(text) > MOST_SCHEMA_CHARACTERS:
        raise SchemaError(f"a schema must have at most {MOST_SCHEMA_CHARACTERS} characters; got {len(text)}")
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"a schema is not JSON: {type(error).__name__}: {error}") from error
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise SchemaError(f"a schema must be a record; got {text[:80]!r}")
    _check(schema, {}, ())
    return schema


def _check(schema: Any, named: Named, above: tuple[str, ...]) -> None:
    if len(above) > DEEPEST_TYPE:
        raise SchemaError(f"a schema must not nest types more than {DEEPEST_TYPE} deep")
    if isinstance(schema, list):
        if len(schema) != 2 or schema[0] != "null":
            raise SchemaError(f"a union in a schema must be of two types, the first of them null; got {schema!r:.80}")
        _check(schema[1], named, (*above, "union"))
    elif isinstance(schema, dict):
        if "logicalType" in schema or any(key.startswith("__") for key in schema):
            raise SchemaError(
                f"a schema must not have a logical type or a key that begins with '__'; got {sorted(schema)!r:.80}"
            )
        _check_object(schema, named, above)
    elif not isinstance(schema, str) or schema not in {*SCALARS.values(), *named}:
        raise SchemaError(f"a type in a schema is not known, or a record holds itself: {schema!r:.80}")


def _check_object(schema: Mapping[str, Any], named: Named, above: tuple[str, ...]) -> None:
    kind = schema.get("type")
    if kind in ("array", "map"):
        _check(schema.get("items" if kind == "array" else "values"), named, (*above, kind))
    elif kind == "record":
        name, fields = schema.get("name"), schema.get("fields")
        if not isinstance(name, str) or not isinstance(fields, list) or not fields:
            raise SchemaError(f"a record in a schema must have a name and fields; got {schema!r:.80}")
        for field in fields:
            if not isinstance(field, dict) or not isinstance(field.get("name"), str):
                raise SchemaError(f"a field of {name!r:.60} is malformed: {field!r:.80}")
            _check(field.get("type"), named, (*above, name))
        named[_find_full_name(schema)] = schema
    else:
        _check(kind, named, (*above, "object"))


def _find_full_name(schema: Mapping[str, Any]) -> str:
    name, namespace = str(schema["name"]), schema.get("namespace", "")
    return name if "." in name or not namespace else f"{namespace}.{name}"


# ---------------------------------------------------------------------------------------------------------------- bytes


def refuse_oversized_body(schema: Plain, body: memoryview) -> None:
    """Walk a large body by its writer's schema, without building values.

    Raises SchemaError for more than MOST_VALUES values, and for lengths that pass the end.
    """
    if len(body) > LARGE_BYTES:
        _Scale(body).walk(schema)


class _Scale:
    """One walk over a body; `_at` is its position."""

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._at = 0
        self._left = MOST_VALUES
        self._named: Named = {}

    def walk(self, schema: Any) -> None:
        if isinstance(schema, list):
            index = self._read_long()
            if not 0 <= index < len(schema):
                raise SchemaError(f"the message names branch {index} of a union of {len(schema)} types")
            self.walk(schema[index])
        elif isinstance(schema, dict):
            self._walk_object(schema)
        elif schema in self._named:
            self._walk_record(self._named[schema])
        elif schema != "null":
            self._walk_scalar(schema)

    def _walk_object(self, schema: Plain) -> None:
        kind = schema["type"]
        if kind == "record":
            self._named[_find_full_name(schema)] = schema
            self._walk_record(schema)
        elif kind in ("array", "map"):
            self._walk_items(schema)
        else:
            self.walk(kind)

    def _walk_record(self, schema: Plain) -> None:
        self._count_values(len(schema["fields"]))
        for field in schema["fields"]:
            self.walk(field["type"])

    def _walk_items(self, schema: Plain) -> None:
        is_map = schema["type"] == "map"
        items = schema["values" if is_map else "items"]
        while count := self._read_long():
            if count < 0:
                count = -count
                self._read_long()  # the block's length in bytes
            self._count_values(count)
            for _ in range(count):
                if is_map:
                    self._skip(self._read_long())
                self.walk(items)

    def _walk_scalar(self, kind: str) -> None:
        if kind in ("bytes", "string"):
            self._skip(self._read_long())
        elif kind == "double":
            self._skip(8)
        elif kind == "boolean":
            self._skip(1)
        else:
            self._read_long()

    def _count_values(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise SchemaError(f"the message holds more than {MOST_VALUES} values")

    def _skip(self, length: int) -> None:
        if not 0 <= length <= len(self._body) - self._at:
            raise SchemaError(
                f"a length in a message must be from 0 to the {len(self._body) - self._at} bytes left; got {length}"
            )
        self._at += length

    def _read_long(self) -> int:
        number = shift = 0
        try:
            while True:
                byte = self._body[self._at]
                self._at += 1
                number |= (byte & 0x7F) << shift
                if byte < 0x80:
                    return (number >> 1) ^ -(number & 1)
                shift += 7
                if shift > 63:
                    raise SchemaError(
                        "the bytes do not fit the Avro schema: an integer takes more than ten bytes, the most in Avro"
                    )
        except IndexError:
            raise SchemaError("the message is cut short") from None
