"""The index of a checkpoint in parts: the object that holds each piece of each tensor. JSON, never a pickle.

In a trainer with several processes, each process stores its own pieces as safetensors objects, and the leader stores
the index, which torch's distributed checkpoint calls metadata.
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
    """A rectangle of a tensor, stored by one process."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    part: str
    """Name of the object that holds the piece."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A tensor in pieces that cover it without overlap; a tensor without elements has no pieces."""

    dtype: str
    """Name of the dtype in safetensors."""
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Index:
    """All tensors of a checkpoint by name, and its plain values."""

    tensors: Mapping[str, Cut]
    metadata: Mapping[str, Json]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the whole tensors by name."""
        return {name: cut.shape for name, cut in self.tensors.items()}

    @property
    def parts(self) -> set[str]:
        """Names of the objects that hold the pieces."""
        return {piece.part for cut in self.tensors.values() for piece in cut.pieces}


def name_of_piece(tensor: str, offsets: tuple[int, ...]) -> str:
    """Return the name under which a part holds a piece."""
    return f"{tensor}@{','.join(map(str, offsets))}"


def encode_index(index: Index) -> bytes:
    """Encode an index; equal indices give equal bytes. `decode_index` reverses it."""
    tensors = {name: asdict(cut) for name, cut in index.tensors.items()}
    whole = {"format": PARTS_FORMAT, "metadata": dict(index.metadata), "tensors": tensors}
    return json.dumps(whole, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def decode_index(data: bytes) -> Index:
    """Read an index. Raises CheckpointError for invalid bytes, or if part of a tensor is missing."""
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
            raise CheckpointError(f"the index of a checkpoint is malformed at the tensor {name[:80]!r}")
    _check_cover(name, cut)
    return cut


def _piece(name: str, found: Any) -> Piece:
    match found:
        case {"offsets": list(offsets), "sizes": list(sizes), "part": str(part)}:
            return Piece(_sizes(name, offsets), _sizes(name, sizes), part)
    raise CheckpointError(f"the index of a checkpoint is malformed at a piece of the tensor {name[:80]!r}")


def _sizes(name: str, found: list[Any]) -> tuple[int, ...]:
    if not all(type(size) is int and size >= 0 for size in found):
        raise CheckpointError(f"the index of a checkpoint has invalid sizes of the tensor {name[:80]!r}")
    return tuple(found)


def _check_cover(name: str, cut: Cut) -> None:
    """Raise CheckpointError if pieces reach beyond the tensor, or do not have its number of elements.

    Elements that no piece covers would keep arbitrary values.
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
