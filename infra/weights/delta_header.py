"""The header of a delta object, and the check that its numbers are possible."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter, ValidationError

from headrace.infra.weights.coding import Coded
from headrace.infra.weights.tensors import ITEM_BYTES, WeightsError

DELTA_FORMAT = 1
_MOST_ITEMS = 1 << 28
_HASH = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Label:
    """Which policy a delta belongs to, and which versions it leads from and to."""

    policy: str = ""
    epoch: int = 0
    """How often the chain of hashes was interrupted."""
    base_version: int = -1
    version: int = -1


@dataclass(frozen=True, slots=True)
class BlockHead:
    """The numbers of a `Coded` block, and the lengths of its streams."""

    changed: int
    digit_bytes: int
    digits: int
    code_bits: int
    escapes: int
    sizes: tuple[int, ...]
    """Bytes of each stream."""

    def is_sound(self, items: int) -> bool:
        """Return whether a block of `items` items can have these numbers."""
        return (
            self.digit_bytes in {1, 2}
            and self.code_bits in {4, 8}
            and 0 <= self.escapes <= self.changed <= items
            and self.changed <= self.digits <= self.changed + items // (256**self.digit_bytes - 1)
            and len(self.sizes) == self.digit_bytes + 2
            and min(self.sizes) >= 0
        )


@dataclass(frozen=True, slots=True)
class TensorHead:
    """One tensor that changed."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    changed: int
    """Items that changed."""
    blocks: tuple[BlockHead, ...]
    """Blocks of `block_items` items each, the last one of the rest; none when the tensor is whole."""

    @property
    def items(self) -> int:
        """Number of items of the whole tensor."""
        return math.prod(self.shape)

    @property
    def payload_bytes(self) -> int:
        """Bytes of its streams, or of the tensor when it is written whole."""
        if self.blocks:
            return sum(sum(block.sizes) for block in self.blocks)
        return self.items * ITEM_BYTES[self.dtype]

    def is_sound(self, block_items: int) -> bool:
        """Return whether a tensor of this shape can have these numbers."""
        if self.dtype not in ITEM_BYTES or min(self.shape, default=0) < 0 or not 0 <= self.changed <= self.items:
            return False
        if not self.blocks:
            return True
        # Not by the length of a range, which fails for a forged shape that is too large.
        if len(self.blocks) != -(-self.items // block_items):
            return False
        sizes = (min(block_items, self.items - begin) for begin in range(0, self.items, block_items))
        return sum(block.changed for block in self.blocks) == self.changed and all(
            block.is_sound(size) for block, size in zip(self.blocks, sizes, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Header:
    """A whole delta."""

    format: int
    label: Label
    base_hash: str
    """`weights_hash` of the base."""
    weights_hash: str
    """`weights_hash` of the result."""
    items: int
    """Number of items of all tensors, changed or not."""
    block_items: int
    tensors: tuple[TensorHead, ...]

    @property
    def changed_items(self) -> int:
        """Number of items that changed."""
        return sum(tensor.changed for tensor in self.tensors)

    @property
    def density(self) -> float:
        """Share of items that changed."""
        return self.changed_items / max(1, self.items)

    def encode(self) -> bytes:
        """Return the header as JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()


def head_of(name: str, dtype: str, shape: tuple[int, ...], blocks: Sequence[Coded]) -> TensorHead:
    """Return the header's entry of a tensor that is given by the changes of its blocks."""
    heads = tuple(
        BlockHead(b.changed, b.digit_bytes, b.digits, b.code_bits, b.escapes, tuple(map(len, b.streams)))
        for b in blocks
    )
    return TensorHead(name, dtype, shape, sum(block.changed for block in blocks), heads)


def read_header(text: bytes, payload_bytes: int) -> Header:
    """Return the header that comes before `payload_bytes` bytes of streams.

    Raises WeightsError for another format, and for numbers that contradict each other: memory is allocated by them.
    """
    try:
        found = json.loads(text)
        if isinstance(found, dict) and found.get("format") != DELTA_FORMAT:
            raise WeightsError(
                f"the delta object has format {found.get('format')!r}, but this build of Headrace reads format "
                f"{DELTA_FORMAT}: use the build that wrote it"
            )
        header = _HEADER.validate_json(text)
    except (ValidationError, ValueError, RecursionError) as error:
        raise WeightsError(f"the header of a delta object cannot be read: {str(error)[:200]}") from error
    if not all(_HASH.fullmatch(found) for found in (header.base_hash, header.weights_hash)):
        raise WeightsError("base_hash and weights_hash in the header of a delta object must be hashes of 64 hex digits")
    names = [head.name for head in header.tensors]
    if len(set(names)) != len(names) or not 0 < header.block_items <= _MOST_ITEMS:
        raise WeightsError(
            f"the header of a delta object names a tensor twice, or its block_items is not from 1 to {_MOST_ITEMS}"
        )
    for head in header.tensors:
        if not head.is_sound(header.block_items):
            raise WeightsError(
                f"the header of a delta object has numbers for tensor {head.name!r} that do not fit its shape"
            )
    if (promised := sum(head.payload_bytes for head in header.tensors)) != payload_bytes:
        raise WeightsError(
            f"the header of a delta object says {promised} bytes of streams, but the object has {payload_bytes}"
        )
    return header


_HEADER = TypeAdapter(Header)
