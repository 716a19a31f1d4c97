"""Stores messages in Avro object container files: any Avro tool can read them, and message bytes stay unchanged.

A file holds messages of one partition whose values have one schema. Each message is an envelope with offset, timestamp,
key, headers, length and value. The value is a union: null (no value), bytes (a value that is not a message of the
file's schema), or a record of that schema. A message in Avro's single-object encoding is stored as a record: its body
is copied unchanged, because encoding it again might give other bytes. Magic and fingerprint, equal for the whole file,
followed by `length` bytes of body, give the message again without decoding.

Source: Avro 1.11 specification, "Object Container Files", "Single-object encoding" and "Binary encoding of unions".
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from fastavro import block_reader, parse_schema, schemaless_reader, schemaless_writer
from fastavro.write import Writer

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.schemas.avro import Plain
from headrace.schemas.codec import AVRO_HEADER_BYTES, AVRO_MAGIC

ARCHIVE_NAMESPACE = "headrace.archive"
CODEC, LEVEL = "zstandard", 1
"""Compression level: a higher one takes five times as long for half a percent, as log-probabilities hardly shrink."""
BLOCK_BYTES = 1 << 20
TOPIC, PARTITION, FINGERPRINT = "headrace.topic", "headrace.partition", "headrace.fingerprint"
"""Metadata keys of a file; the last is the fingerprint of its values' schema in hex, empty if they are bytes."""

HEADER = {
    "type": "record",
    "name": "Header",
    "fields": [{"name": "name", "type": "string"}, {"name": "value", "type": "bytes"}],
}
BEFORE_VALUE = [
    {"name": "offset", "type": "long", "doc": "In the partition that it was archived from."},
    {"name": "timestamp_ms", "type": "long", "doc": "Milliseconds since 1970, as its producer or broker set them."},
    {"name": "key", "type": ["null", "bytes"]},
    {"name": "headers", "type": {"type": "array", "items": HEADER}},
    {"name": "length", "type": "long", "doc": "Bytes of the value as a message."},
]
_BEFORE_VALUE = parse_schema({"type": "record", "name": "M", "namespace": ARCHIVE_NAMESPACE, "fields": BEFORE_VALUE})
NULL, BYTES, RECORD = b"\x00", b"\x02", b"\x04"
"""Index of each branch of the value's union, as Avro writes it."""


def build_envelope(schema: Plain | None) -> Plain:
    """Return the schema of a file for values of this schema; None for values that are bytes."""
    value = ["null", "bytes"] if schema is None else ["null", "bytes", _write_schema_text(schema)]
    fields = [*BEFORE_VALUE, {"name": "value", "type": value}]
    return {"type": "record", "name": "Message", "namespace": ARCHIVE_NAMESPACE, "fields": fields}


def _write_schema_text(schema: Plain) -> Plain:
    """Return a schema without the keys that fastavro adds when it parses."""
    return {key: value for key, value in schema.items() if not key.startswith("__")}


@dataclass(frozen=True, slots=True)
class _Block:
    """The parts of a block that `Writer.write_block` uses."""

    num_records: int
    bytes_: io.BytesIO


class _Hashed(io.RawIOBase):
    """A new file whose bytes are hashed while they are written. It is open only while bytes are added.

    A writer has one for each partition, and the number of open files of a process is limited.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._path.write_bytes(b"")
        self.sha256, self.size = hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:  # otherwise fastavro checks whether to append
        return False

    def write(self, data: Any, /) -> int:
        self.sha256.update(data)
        self.size += len(data)
        with self._path.open("ab") as file:
            return file.write(data)


class ContainerWriter:
    """Writes one new file.

    Args:
        path: Path of the growing file; it is complete when it is closed.
        partition_id: Topic and partition.
        schema: Schema of the values; None for values that are bytes.
        fingerprint: Fingerprint of that schema, 8 bytes; empty without a schema.
        sync_marker: 16 fixed bytes, so that the same records in the same order give the same file.
    """

    def __init__(
        self, path: Path, partition_id: PartitionId, schema: Plain | None, fingerprint: bytes, sync_marker: bytes
    ) -> None:
        self.path, self.schema, self.fingerprint = path, schema, fingerprint
        self.first_offset = self.last_offset = -1
        self.records = 0
        self._out = _Hashed(path)
        metadata = {TOPIC: partition_id[0], PARTITION: str(partition_id[1]), FINGERPRINT: fingerprint.hex()}
        self._avro = Writer(
            cast(BinaryIO, self._out),
            build_envelope(schema),
            CODEC,
            metadata=metadata,
            sync_marker=sync_marker,
            compression_level=LEVEL,
        )
        self._block, self._count = io.BytesIO(), 0

    @property
    def size(self) -> int:
        """Bytes so far, including those not yet compressed."""
        return self._out.size + self._block.tell()

    def write(self, message: Message, *, as_record: bool) -> None:
        """Add a message; `as_record` if its value completely decodes in the file's schema."""
        block, value = self._block, message.value
        before = {
            "offset": message.offset,
            "timestamp_ms": message.timestamp_ms,
            "key": message.key or None,
            "headers": [{"name": name, "value": content} for name, content in message.headers],
            "length": len(value),
        }
        schemaless_writer(block, _BEFORE_VALUE, before)
        if message.is_null:
            block.write(NULL)
        elif as_record:
            block.write(RECORD)
            block.write(memoryview(value)[AVRO_HEADER_BYTES:])
        else:
            block.write(BYTES)
            schemaless_writer(block, "bytes", value)
        self._count += 1
        self.records += 1
        self.first_offset = message.offset if self.first_offset < 0 else self.first_offset
        self.last_offset = message.offset
        if block.tell() >= BLOCK_BYTES:
            self._write_block()

    def _write_block(self) -> None:
        self._avro.write_block(_Block(self._count, self._block))
        self._block, self._count = io.BytesIO(), 0

    def close(self) -> tuple[str, int]:
        """Write all to the disk; return the file's sha256 and size. Raises OSError."""
        if self._count:
            self._write_block()
        with self.path.open("ab") as file:
            os.fsync(file.fileno())
        return self._out.sha256.hexdigest(), self._out.size

    def abandon(self) -> None:
        """Remove an unwanted file."""
        self.path.unlink(missing_ok=True)


class Container:
    """Reads a file: its metadata and its messages. The caller must verify and close the file.

    Raises ValueError, or fastavro's errors for a file that is not an Avro file.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._blocks = block_reader(file)
        metadata = self._blocks.metadata
        self.topic, self.partition = metadata[TOPIC], int(metadata[PARTITION])
        self.fingerprint = bytes.fromhex(metadata[FINGERPRINT])
        value = json.loads(metadata["avro.schema"])["fields"][-1]["type"]
        self.schema: Plain | None = value[2] if len(value) > 2 else None
        """Schema of the values."""

    def __iter__(self) -> Iterator[Message]:
        """Yield the original messages."""
        start = AVRO_MAGIC + self.fingerprint
        for block in self._blocks:
            body: BinaryIO = block.bytes_  # type: ignore[attr-defined]  # fastavro's stub forgets it
            for _ in range(block.num_records):
                before: Any = schemaless_reader(body, _BEFORE_VALUE, None)
                branch, value = body.read(1), b""
                if branch == RECORD:
                    value = start + body.read(before["length"] - AVRO_HEADER_BYTES)
                elif branch == BYTES:
                    value = cast(bytes, schemaless_reader(body, "bytes", None))
                yield Message(
                    self.topic,
                    self.partition,
                    before["offset"],
                    before["key"] or b"",
                    value,
                    [(header["name"], header["value"]) for header in before["headers"]],
                    before["timestamp_ms"],
                    is_null=branch == NULL,
                )
