"""Field types of several records: tensors, and names of objects in the store.

Tensors are Avro `bytes`, little-endian, with their dtype named in the schema. In Python they are numpy arrays;
decoding gives read-only views.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt

from headrace.schemas.avro import Dtype

Int32s = Annotated[npt.NDArray[np.int32], Dtype("int32")]
Float32s = Annotated[npt.NDArray[np.float32], Dtype("float32")]


def no_ints() -> npt.NDArray[np.int32]:
    """Return an empty int32 array, the default of an integer tensor."""
    return np.empty(0, np.int32)


def no_floats() -> npt.NDArray[np.float32]:
    """Return an empty float32 array, the default of a float tensor."""
    return np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class ClaimCheck:
    """Names an immutable object in the store, never a host."""

    store: str = ""
    """Name of the store in the recipe."""
    key: str = ""
    """Key of the object; it holds the content hash."""
    sha256: str = ""
    """Hash of the object's bytes, in hex."""
    size_bytes: int = 0
    """Length of the object."""


@dataclass(frozen=True, slots=True)
class NamedObject:
    """A file and the object that holds it."""

    name: str = ""
    """File name."""
    claim: ClaimCheck | None = None
    """Where its bytes are."""
