"""The safetensors format: an anchor's, and a checkpoint's."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from headrace.infra.weights.tensors import ITEM_BYTES, Tensor, WeightsError

HF_METADATA = {"format": "pt"}
Pieces = list[bytes | memoryview]
"""Pieces of a file, in their order."""
_MAX_HEADER_BYTES = 100_000_000
_MOST_DIMENSIONS = 64
_LARGEST_SIZE = 1 << 48


_NO_NAME = re.compile("[\0\ud800-\udfff]")
"""JSON may contain a lone surrogate, UTF-8 may not; NUL separates the fields of `weights_hash`. So neither can be
hashed."""
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


def is_plain_file_name(name: str) -> bool:
    """Return whether a file beside a policy's weights may be written under the name that its record gives it."""
    return _FILE_NAME.fullmatch(name) is not None


def encode_safetensors(named: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return one safetensors file; equal input gives equal bytes.

    `metadata` is HF_METADATA unless given: transformers refuses files that do not name their framework.
    """
    return b"".join(split_safetensors(named, metadata))


def split_safetensors(named: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Pieces:
    """Return the pieces of a safetensors file, without a copy of the tensors.

    Tensors with wider items come first, as in the reference implementation, so that every tensor is aligned.
    """
    header: dict[str, Any] = {"__metadata__": dict(sorted((HF_METADATA if metadata is None else metadata).items()))}
    order = sorted(named, key=lambda name: (-ITEM_BYTES[named[name].dtype], name))
    end = 0
    for name in order:
        tensor = named[name]
        begin, end = end, end + tensor.data.nbytes
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *(named[name].data for name in order)]


def read_safetensors(data: bytes | memoryview) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file as views into `data`: nothing is copied.

    Raises WeightsError for a damaged header, for offsets that overlap, leave gaps or exceed the end, and for sizes that
    do not fit.
    """
    header, body = _split_file(data)
    header.pop("__metadata__", None)
    tensors: dict[str, Tensor] = {}
    spans: list[tuple[int, int]] = []
    for name, entry in header.items():
        dtype, shape, begin, end = _parse_entry(name, entry)
        if not 0 <= begin <= end <= len(body):
            raise WeightsError(
                f"safetensors entry {name!r} has bytes {begin} to {end}, but the file has {len(body)} bytes of "
                "tensors: the file is damaged"
            )
        tensors[name] = Tensor(dtype, shape, body[begin:end])
        spans.append((begin, end))
    spans.sort()
    if [begin for begin, _ in spans] + [len(body)] != [0] + [end for _, end in spans]:
        raise WeightsError("safetensors entries overlap or leave gaps: the file is damaged or was not written whole")
    return tensors


def _parse_entry(name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    """Return dtype, shape, begin and end of one tensor. Raises WeightsError for impossible values."""
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [begin, end]} if (
            _NO_NAME.search(name) is None
            and len(shape) <= _MOST_DIMENSIONS
            and all(type(n) is int and 0 <= n < _LARGEST_SIZE for n in (*shape, begin, end))
        ):
            return dtype, tuple(shape), begin, end
    raise WeightsError(f"safetensors entry {name[:80]!r} is malformed: it needs dtype, shape and data_offsets in range")


def read_metadata(data: bytes | memoryview) -> dict[str, str]:
    """Return the free metadata of a safetensors file, {} if it has none. Raises WeightsError for a damaged header."""
    found = _split_file(data)[0].get("__metadata__", {})
    if not isinstance(found, dict):
        raise WeightsError(f"safetensors __metadata__ is not a mapping: {str(found)[:80]!r}")
    return {str(key): str(value) for key, value in found.items()}


def _split_file(data: bytes | memoryview) -> tuple[dict[str, Any], memoryview]:
    """Return header and body."""
    view = memoryview(data)
    length = int.from_bytes(view[:8], "little")
    text = view[8 : 8 + length]
    if len(text) != length:
        raise WeightsError(
            f"the safetensors header should have {length} bytes, but {len(text)} are there: the file was cut short, or "
            "is of another kind"
        )
    if not 0 < length <= _MAX_HEADER_BYTES:
        raise WeightsError(
            f"the safetensors header has {length} bytes, but must have 1 to {_MAX_HEADER_BYTES}: the file is damaged "
            "or of another kind"
        )
    try:
        header = json.loads(bytes(text))
    except (ValueError, RecursionError) as error:
        raise WeightsError("the safetensors header is not JSON: the file is damaged or of another kind") from error
    if not isinstance(header, dict):
        raise WeightsError("the safetensors header is not a JSON object: the file is damaged or of another kind")
    return header, view[8 + length :]
