"""Encodes and decodes records in Avro's single-object encoding.

A message is `C3 01`, the CRC-64-AVRO fingerprint of its writer's schema (8 bytes, little-endian) and the Avro body, so
any reader that holds the schema can decode it with no registry. Sources: Avro 1.11 specification, "Single-object
encoding" and "Schema fingerprints".
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeVar

from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.schema import fingerprint, to_parsing_canonical_form

from headrace.schemas.avro import RECORD_NAMESPACE, Convert, Plain, SchemaError, decoder_of, encoder_of, schema_of
from headrace.schemas.reading import REFUSALS, Reader, build_reader
from headrace.schemas.records import RECORDS
from headrace.schemas.writers import parse_foreign_schema, refuse_oversized_body

AVRO_MAGIC = b"\xc3\x01"
AVRO_HEADER_BYTES = 10

R = TypeVar("R")


class UnknownSchema(SchemaError):
    """No schema with this fingerprint is known: the writer is newer, or not part of this run."""


@dataclass(frozen=True, slots=True)
class Form:
    """Current encoding of one record class."""

    record: type
    schema: Plain
    fingerprint: bytes
    encode: Convert
    decode: Convert
    """Makes a record from the dict that fastavro reads, whatever schema it was written in."""
    read: Reader
    """Reads a record from bytes of the current schema."""


def fingerprint_of(schema: Plain) -> bytes:
    """Return the 8 bytes that name a schema in a message, little-endian as fastavro gives them."""
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


def _form_of(record: type) -> Form:
    schema = schema_of(record)
    converts = encoder_of(record), decoder_of(record)
    return Form(record, _parse_schema(schema), fingerprint_of(schema), *converts, build_reader(record))


def _parse_schema(schema: Plain) -> Plain:
    parsed = parse_schema(schema)
    assert isinstance(parsed, dict)  # noqa: S101 - every message is a record, and a record's schema is an object
    return parsed


class Forms(dict[type, Form]):
    """Form by record class, built at its first use, because few processes read all records."""

    def __missing__(self, record: type) -> Form:
        if record not in RECORDS:
            raise KeyError(record)
        form = self[record] = _form_of(record)
        return form


FORMS = Forms()


@functools.cache
def _index_by_fingerprint() -> dict[bytes, Form]:
    return {FORMS[record].fingerprint: FORMS[record] for record in RECORDS}


@functools.cache
def _index_by_name() -> dict[str, Form]:
    return {record.__name__: FORMS[record] for record in RECORDS}


@functools.cache
def _load_past_schemas() -> dict[bytes, Plain]:
    """Schemas of earlier releases and of the run, by fingerprint; `learn` adds to it."""
    known: dict[bytes, Plain] = {}
    for release in resources.files("headrace.schemas").joinpath("past").iterdir():
        if release.is_dir():
            for file in release.iterdir():
                schema = json.loads(file.read_text())
                known[fingerprint_of(schema)] = _parse_schema(schema)
    return known


def learn(schemas: Mapping[str, str]) -> None:
    """Take in the writers' schemas that a run keeps on its recipe topic: record name to schema text.

    Raises SchemaError for the first text that is not a schema (`headrace.schemas.writers`); earlier texts are taken in.
    """
    for text in schemas.values():
        schema = parse_foreign_schema(text)
        try:
            _load_past_schemas()[fingerprint_of(schema)] = _parse_schema(schema)
        except Exception as error:  # fastavro raises many kinds on an invalid schema
            raise SchemaError(f"the schema {text[:80]!r} cannot be used: {type(error).__name__}: {error}") from error


def set_unknown_hook(find: Callable[[], object] | None) -> None:
    """Set a function that is called to `learn` new schemas before a fingerprint counts as unknown; None for none.

    One process works for one run, so the last call counts. A writer puts its schema on the recipe topic before it uses
    the schema. So a schema that is unknown at the end of that topic is unknown in every replay too.
    """
    _finders[:] = [find] if find else []


_finders: list[Callable[[], object]] = []


def schema_texts() -> dict[str, str]:
    """Return the current schemas of all records, as a run stores them."""
    return {record.__name__: json.dumps(schema_of(record)) for record in RECORDS}


def encode(record: Any) -> bytes:
    """Return the record's message.

    Raises SchemaError with the path of the field that does not fit; nothing is coerced.
    """
    form = FORMS[type(record)]
    out = io.BytesIO()
    out.write(AVRO_MAGIC + form.fingerprint)
    try:
        schemaless_writer(out, form.schema, form.encode(record))
    except SchemaError as error:
        raise SchemaError(f"{form.record.__name__}{error}") from None
    except (ValueError, TypeError, OverflowError, UnicodeError) as error:
        raise SchemaError(f"{form.record.__name__}: {error}") from error
    return out.getvalue()


def encode_like(record: Any, sample: bytes) -> bytes:
    """Return the record's message in the schema of the message `sample`, so that a reader of `sample` can read it.

    Fields that the older schema lacks are left out. Raises SchemaError like `encode` and `decode`.
    """
    form, schema = FORMS[type(record)], _find_writer_schema(sample)
    out = io.BytesIO()
    out.write(sample[:AVRO_HEADER_BYTES])
    schemaless_writer(out, schema, form.encode(record))
    return out.getvalue()


def decode(data: bytes, record: type[R]) -> R:
    """Return the message's record of the given class; tensors are read-only views of copied bytes.

    Raises SchemaError if the bytes are not a message, have an unknown schema or another record's, are cut short, or are
    followed by other bytes.
    """
    found = _read(data, FORMS[record])
    assert isinstance(found, record)  # noqa: S101 - the form's readers build exactly this class
    return found


def decode_plain(data: bytes, record: type) -> Plain:
    """Return the record as Avro's dict, with tensors as bytes.

    Raises SchemaError like `decode`.
    """
    return _read_plain(data, FORMS[record])


def decode_any(data: bytes) -> Any:
    """Return the message's record, of any current class. Raises SchemaError like `decode`."""
    form = _index_by_fingerprint().get(bytes(data[2:AVRO_HEADER_BYTES]))
    if form is None:
        name = _find_writer_schema(data)["name"].removeprefix(f"{RECORD_NAMESPACE}.")
        form = _index_by_name().get(name)
        if form is None:
            raise SchemaError(f"record {name} is not known to this version of Headrace")
    return _read(data, form)


def decode_as_written(data: bytes) -> tuple[Plain, Plain]:
    """Return a message's writer schema, and the record as Avro's dict with the fields of that schema.

    Raises SchemaError like `decode`, but accepts any record whose schema is known.
    """
    schema = schema_in(data)
    return schema, _read_body(data, schema, None, str(schema["name"]).removeprefix(f"{RECORD_NAMESPACE}."))


def name_of(data: bytes) -> str:
    """Return the name of a message's record, from its first bytes.

    Raises UnknownSchema if its fingerprint is unknown, and SchemaError if the bytes are not a message.
    """
    return str(schema_in(data)["name"]).removeprefix(f"{RECORD_NAMESPACE}.")


def decode_prefix(data: bytes) -> tuple[str, Plain]:
    """Return the record's name and as many of its first fields as can be read, by name.

    Fields are plain Avro values. Raises SchemaError if the record's name is unknown.
    """
    name, schema = name_of(data), schema_in(data)
    plain = {key: value for key, value in schema.items() if not key.startswith("__")}
    for count in range(len(plain["fields"]), 0, -1):
        begin = _parse_schema({**plain, "fields": plain["fields"][:count]})
        body = io.BytesIO(data)
        body.seek(AVRO_HEADER_BYTES)
        try:
            found = schemaless_reader(body, begin, None)
        except Exception:  # noqa: BLE001, S112 - fastavro raises many kinds; a shorter beginning may be readable
            continue
        return name, dict(found)  # type: ignore[arg-type]  # a record is a dict
    return name, {}


def schema_in(data: bytes) -> Plain:
    """Return a message's writer schema. Raises SchemaError like `name_of`."""
    form = _index_by_fingerprint().get(bytes(data[2:AVRO_HEADER_BYTES])) if data[:2] == AVRO_MAGIC else None
    return form.schema if form is not None else _find_writer_schema(data)


def _find_writer_schema(data: bytes) -> Plain:
    if len(data) < AVRO_HEADER_BYTES or data[:2] != AVRO_MAGIC:
        raise SchemaError(
            f"not an Avro single-object message: it begins with {bytes(data[:AVRO_HEADER_BYTES]).hex() or 'nothing'}"
        )
    name = bytes(data[2:AVRO_HEADER_BYTES])
    known = _load_past_schemas()
    if name not in known:
        for find in _finders:
            find()
    if name not in known:
        raise UnknownSchema(
            f"unknown schema {name[::-1].hex()}: the message was written by a newer Headrace (upgrade this one), or by "
            "a program that is not part of this run"
        )
    return known[name]


def _read(data: bytes, form: Form) -> Any:
    if data[:AVRO_HEADER_BYTES] == AVRO_MAGIC + form.fingerprint:
        try:
            refuse_oversized_body(form.schema, memoryview(data)[AVRO_HEADER_BYTES:])
            found, end = form.read(data, AVRO_HEADER_BYTES)
        except REFUSALS:
            end = -1
        if end == len(data):
            return found
    plain = _read_plain(data, form)
    try:
        return form.decode(plain)
    except SchemaError as error:
        raise SchemaError(f"{form.record.__name__}: {error}") from None
    except Exception as error:  # bytes of a foreign schema may give values that no record accepts
        raise SchemaError(f"{form.record.__name__}: undecodable, {type(error).__name__}: {error}") from error


def _read_plain(data: bytes, form: Form) -> Plain:
    same = data[:AVRO_HEADER_BYTES] == AVRO_MAGIC + form.fingerprint
    writer = form.schema if same else _find_writer_schema(data)
    name = form.record.__name__
    if writer["name"].removeprefix(f"{RECORD_NAMESPACE}.") != name:
        raise SchemaError(f"expected a record {name}, but the message holds a record {writer['name']}")
    return _read_body(data, writer, None if same else form.schema, name)


def _read_body(data: bytes, writer: Plain, reader: Plain | None, name: str) -> Plain:
    body = io.BytesIO(data)
    body.seek(AVRO_HEADER_BYTES)
    try:
        refuse_oversized_body(writer, memoryview(data)[AVRO_HEADER_BYTES:])
        found: Any = schemaless_reader(body, writer, reader)
    except SchemaError as error:
        raise SchemaError(f"{name}: {error}") from None
    except Exception as error:  # fastavro raises many kinds on bytes cut short or altered
        raise SchemaError(f"{name}: undecodable, {type(error).__name__}: {error}") from error
    if body.tell() != len(data):
        raise SchemaError(f"{name}: {len(data) - body.tell()} bytes follow the record, where the message must end")
    plain: Plain = found
    return plain
