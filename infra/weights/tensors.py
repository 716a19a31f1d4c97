"""Weights without a library: tensors by name, and the hash that identifies a set of them.

Trainer and follower both use this file, so it uses neither torch nor a model. A tensor is its dtype (in safetensors'
own names), its shape and its little-endian bytes; numpy has no bfloat16, so no array type is imposed here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from blake3 import blake3

from headrace.infra.errors import HeadraceError

ITEM_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


class WeightsError(HeadraceError):
    """Bytes are not a complete, well-formed set of tensors."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor without a library. Raises WeightsError when data, dtype and shape do not agree."""

    dtype: str
    """Name in safetensors: BF16, F32, I64 ..."""
    shape: tuple[int, ...]
    data: memoryview
    """C order, little-endian."""

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise WeightsError(f"dtype {self.dtype!r} is not one of the dtypes of safetensors: {', '.join(ITEM_BYTES)}")
        expected = math.prod(self.shape) * ITEM_BYTES[self.dtype]
        if self.data.nbytes != expected:
            raise WeightsError(
                f"a {self.dtype} tensor of shape {self.shape} must have {expected} bytes, got {self.data.nbytes}"
            )


def hash_weights(named: Mapping[str, Tensor]) -> str:
    r"""BLAKE3 (hex, 256 bits) over every tensor in name order, however the tensors were stored.

    Hashed per tensor: ``name \0 dtype \0 d0,d1,... \0`` in UTF-8, then its bytes, whose number dtype and shape fix.
    """
    digest = blake3(max_threads=blake3.AUTO)
    for name in sorted(named):
        tensor = named[name]
        digest.update(f"{name}\0{tensor.dtype}\0{','.join(map(str, tensor.shape))}\0".encode())
        digest.update(tensor.data)
    return digest.hexdigest()
