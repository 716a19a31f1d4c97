"""A checkpoint in parts: the index of which object holds which piece of which tensor. JSON, never a pickle.

Every process of a trainer of several stores what it holds, as safetensors objects; the leader stores the index. It is
what torch's distributed checkpoint calls metadata.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headrace.infra.weights.tensors import ITEM_BYTES
from headrace.trainers.learner.checkpoint import CheckpointError, Json

PARTS_FORMAT = "headrace.checkpoint.parts"


@dataclass(frozen=True, slots=True)
class Piece:
    """A rectangle of a tensor, which one process held."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    part: str
    """Name of the object that holds it."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A tensor in pieces, which cover it and do not overlap; one without elements has none."""

    dtype: str
    """Name in safetensors."""
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Index:
    """All tensors of a checkpoint by name, and its plain values."""

    tensors: Mapping[str, Cut]
    metadata: Mapping[str, Json]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The whole tensors', by name."""
        return {name: cut.shape for name, cut in self.tensors.items()}

    @property
    def parts(self) -> set[str]:
        """Names of the objects that hold the pieces."""
        return {piece.part for cut in self.tensors.values() for piece in cut.pieces}


def name_of_piece(tensor: str, offsets: tuple[int, ...]) -> str:
    """Return the name under which a part holds a piece."""
    return f"{tensor}@{','.join(map(str, offsets))}"


def encode_index(index: Index) -> bytes:
    """Bytes that `decode_index` turns back; equal indices give equal bytes."""
    tensors = {name: asdict(cut) for name, cut in index.tensors.items()}
    whole = {"format": PARTS_FORMAT, "metadata": dict(index.metadata), "tensors": tensors}
    return json.dumps(whole, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def decode_index(data: bytes) -> Index:
    """Read an index. Raises CheckpointError for invalid bytes, and where part of a tensor is missing."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"the index of a checkpoint is not JSON: {type(error).__name__}: {error}") from error
    match found:
        case {"format": str(form), "metadata": dict(metadata), "tensors": dict(tensors)} if form == PARTS_FORMAT:
            return Index({name: _cut(name, cut) for name, cut in tensors.items()}, metadata)
    raise CheckpointError(f"the object is not an index of a checkpoint in parts: it lacks the format {PARTS_FORMAT!r}")


def _cut(name: str, found: Any) -> Cut:
    match found:
        case {"dtype": str(dtype), "shape": list(shape), "pieces": list(pieces)} if dtype in ITEM_BYTES:
            cut = Cut(dtype, _sizes(name, shape), tuple(_piece(name, piece) for piece in pieces))
        case _:
            raise CheckpointError(f"the index of a checkpoint is malformed at {name[:80]!r}")
    _check_cover(name, cut)
    return cut


def _piece(name: str, found: Any) -> Piece:
    match found:
        case {"offsets": list(offsets), "sizes": list(sizes), "part": str(part)}:
            return Piece(_sizes(name, offsets), _sizes(name, sizes), part)
    raise CheckpointError(f"the index of a checkpoint is malformed at a piece of {name[:80]!r}")


def _sizes(name: str, found: list[Any]) -> tuple[int, ...]:
    if not all(type(size) is int and size >= 0 for size in found):
        raise CheckpointError(f"the index of a checkpoint has invalid sizes of {name[:80]!r}")
    return tuple(found)


def _check_cover(name: str, cut: Cut) -> None:
    """Raise CheckpointError where pieces pass the tensor's end, or are not as many elements as it has.

    What is not covered would be left as the memory was.
    """
    inside = all(
        len(piece.offsets) == len(piece.sizes) == len(cut.shape)
        and all(o + n <= end for o, n, end in zip(piece.offsets, piece.sizes, cut.shape, strict=True))
        for piece in cut.pieces
    )
    apart = len({piece.offsets for piece in cut.pieces}) == len(cut.pieces)
    covered = sum(math.prod(piece.sizes) for piece in cut.pieces) == math.prod(cut.shape)
    if not (inside and apart and covered):
        raise CheckpointError(
            f"the index of a checkpoint is malformed: the pieces of {name[:80]!r} must cover the tensor exactly once"
        )
