"""Avro schemas and converters derived from record classes, so that each record is defined once.

| Python                          | Avro                                  |
|---------------------------------|---------------------------------------|
| str, int, float, bool, bytes    | string, long, double, boolean, bytes  |
| Annotated[ndarray, Dtype(name)] | bytes, with the property `dtype`      |
| tuple[X, ...]                   | array of X                            |
| dict[str, X]                    | map of X                              |
| X or None                       | union of null and X, default null     |
| a record class                  | record                                |
"""

from __future__ import annotations

import dataclasses
import operator
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

RECORD_NAMESPACE = "headrace"
SCALARS = {str: "string", int: "long", float: "double", bool: "boolean", bytes: "bytes"}

Convert = Callable[[Any], Any]
Plain = dict[str, Any]


class SchemaError(ValueError):
    """Bytes or a record do not fit a schema; the message names the value and the field."""


@dataclass(frozen=True, slots=True)
class Dtype:
    """Element type of a tensor that is encoded as bytes, by its numpy name."""

    name: str

    @property
    def little_endian(self) -> np.dtype[Any]:
        """The element type in encoded form."""
        return np.dtype(self.name).newbyteorder("<")


def schema_of(record: type, docs: Mapping[str, Mapping[str, str]] | None = None) -> Plain:
    """Return the Avro schema of a record class; `docs` maps class name to field name (or "") to text."""
    schema: Plain = _build_record_schema(record, docs or {}, set())
    return schema


def _build_record_schema(record: type, docs: Mapping[str, Mapping[str, str]], named: set[str]) -> Any:
    name = record.__name__
    if name in named:
        return f"{RECORD_NAMESPACE}.{name}"
    named.add(name)
    hints = typing.get_type_hints(record, include_extras=True)
    texts = docs.get(name, {})
    fields = []
    for f in dataclasses.fields(record):
        column: Plain = {
            "name": f.name,
            "type": _build_type_schema(hints[f.name], docs, named),
            "default": _encode_default(f),
        }
        if f.name in texts:
            column["doc"] = texts[f.name]
        fields.append(column)
    schema: Plain = {"type": "record", "name": name, "namespace": RECORD_NAMESPACE, "fields": fields}
    if "" in texts:
        schema["doc"] = texts[""]
    return schema


def _build_type_schema(hint: Any, docs: Mapping[str, Mapping[str, str]], named: set[str]) -> Any:
    if hint in SCALARS:
        return SCALARS[hint]
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _build_record_schema(hint, docs, named)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return {"type": "bytes", "dtype": arguments[1].name}
    if origin is tuple:
        return {"type": "array", "items": _build_type_schema(arguments[0], docs, named)}
    if origin is dict:
        return {"type": "map", "values": _build_type_schema(arguments[1], docs, named)}
    if origin in (types.UnionType, typing.Union) and arguments[1] is type(None):
        return ["null", _build_type_schema(arguments[0], docs, named)]
    raise SchemaError(f"no Avro type for {hint}: use those of the table in {__name__}")


def _encode_default(f: dataclasses.Field[Any]) -> Any:
    """Return a field's default in Avro's JSON form."""
    value = f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
    if value is dataclasses.MISSING:
        raise SchemaError(f"field {f.name} of a record must have a default")
    if isinstance(value, np.ndarray | bytes):
        return ""
    return list(value) if isinstance(value, tuple) else value


def encoder_of(record: type) -> Convert:
    """Return a function from a record of this class to the dict that fastavro writes; it checks every value."""
    return _find_converters(record, outward=True)


def decoder_of(record: type) -> Convert:
    """Return a function from the dict that fastavro reads to a record of this class; tensors become views."""
    return _find_converters(record, outward=False)


def _find_converters(record: type, *, outward: bool) -> Convert:
    hints = typing.get_type_hints(record, include_extras=True)
    columns = [(f.name, _find_converter(hints[f.name], outward=outward)) for f in dataclasses.fields(record)]
    # Most fields need no conversion: a call for each of them would cost as much as all the rest.
    values_of = operator.itemgetter(*[name for name, _ in columns]) if len(columns) > 1 else None
    changed = [(index, convert) for index, (_, convert) in enumerate(columns) if convert is not _pass_through]

    def encode_record(value: Any) -> Plain:
        if type(value) is not record:
            raise SchemaError(f": expected {record.__name__}, got {type(value).__name__}")
        plain = {}
        for name, convert in columns:
            try:
                plain[name] = convert(getattr(value, name))
            except SchemaError as error:
                raise SchemaError(f".{name}{error}") from None
        return plain

    def decode_record(plain: Plain) -> Any:
        if values_of is None:
            return record(*[convert(plain[name]) for name, convert in columns])
        values = list(values_of(plain))
        for index, convert in changed:
            values[index] = convert(values[index])
        return record(*values)

    return encode_record if outward else decode_record


def _find_converter(hint: Any, *, outward: bool) -> Convert:
    if hint in SCALARS:
        return _build_checker(hint) if outward else _pass_through
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _find_converters(hint, outward=outward)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _build_tensor_encoder(arguments[1]) if outward else _build_tensor_decoder(arguments[1])
    inner = _find_converter(arguments[1] if origin is dict else arguments[0], outward=outward)
    if origin is tuple:
        return _build_items_encoder(inner) if outward else _build_items_decoder(inner)
    if origin is dict:
        return _build_map_encoder(inner) if outward else _build_map_decoder(inner)
    return inner if inner is _pass_through else (lambda value: None if value is None else inner(value))


def _pass_through(value: Any) -> Any:
    return value


def _build_checker(kind: type) -> Convert:
    def check(value: Any) -> Any:
        if type(value) is kind:
            return value
        raise SchemaError(f": expected {kind.__name__}, got {type(value).__name__} {value!r:.60}")

    def check_text(value: Any) -> Any:
        _refuse_half_characters(check(value))
        return value

    return check_text if kind is str else check


def _refuse_half_characters(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"{text[error.start]!r} at index {error.start}"
        raise SchemaError(f": text must not hold half a character (a surrogate, {half} of {text!r:.60})") from None


def _build_items_encoder(inner: Convert) -> Convert:
    def convert(values: Any) -> list[Any]:
        if not isinstance(values, tuple):
            raise SchemaError(f": expected tuple, got {type(values).__name__} {values!r:.60}")
        plain = []
        for i, value in enumerate(values):
            try:
                plain.append(inner(value))
            except SchemaError as error:
                raise SchemaError(f"[{i}]{error}") from None
        return plain

    return convert


def _build_items_decoder(inner: Convert) -> Convert:
    return tuple if inner is _pass_through else (lambda values: tuple([inner(v) for v in values]))


def _build_map_decoder(inner: Convert) -> Convert:
    return dict if inner is _pass_through else (lambda values: {k: inner(v) for k, v in values.items()})


def _build_map_encoder(inner: Convert) -> Convert:
    def convert(values: Any) -> Plain:
        if not isinstance(values, dict):
            raise SchemaError(f": expected dict, got {type(values).__name__} {values!r:.60}")
        plain = {}
        for key, value in values.items():
            if type(key) is not str:
                raise SchemaError(f": expected a str key, got {type(key).__name__} {key!r:.60}")
            _refuse_half_characters(key)
            try:
                plain[key] = inner(value)
            except SchemaError as error:
                raise SchemaError(f"[{key!r}]{error}") from None
        return plain

    return convert


def _build_tensor_encoder(dtype: Dtype) -> Convert:
    wire = dtype.little_endian

    def convert(array: Any) -> bytes:
        if not isinstance(array, np.ndarray) or array.dtype != wire or array.ndim != 1:
            got = f"{array.dtype}{array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
            raise SchemaError(f": expected a one-dimensional {dtype.name} array, got {got}")
        return array.tobytes()

    return convert


def _build_tensor_decoder(dtype: Dtype) -> Convert:
    wire = dtype.little_endian

    def convert(data: bytes) -> Any:
        if len(data) % wire.itemsize:
            raise SchemaError(f"{len(data)} bytes are not a multiple of the size of {dtype.name}")
        return np.frombuffer(data, wire)

    return convert
