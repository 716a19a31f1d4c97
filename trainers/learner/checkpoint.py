"""A trainer's checkpoint as bytes: one safetensors object with JSON in its metadata. Nothing is pickled.

A trainer with several processes stores an index and parts instead: see `shard_index.py`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, Union

from headrace.infra.errors import HeadraceError
from headrace.infra.run.run import Run
from headrace.infra.weights.tensor_file import Pieces, read_metadata, read_safetensors, split_safetensors
from headrace.infra.weights.tensors import Tensor
from headrace.schemas.records import ClaimCheck, NamedObject

Json: TypeAlias = Union[bool, int, float, str, list["Json"], dict[str, "Json"], None]  # noqa: UP007  # forward references

_KEY = "headrace.checkpoint"
CHECKPOINT_FILE = "headrace-checkpoint.safetensors"
"""File beside a model's weights, in a branch: its first learner takes over the masters and moments in this file."""


class CheckpointError(HeadraceError):
    """Bytes that are not a checkpoint, or a checkpoint of another model."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The data to resume a trainer: tensors by name, and plain values (version, positions, window)."""

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Stored:
    """A checkpoint in the store, as named by its pointer."""

    claim: ClaimCheck
    """The object, or the index."""
    parts: tuple[NamedObject, ...] = ()
    """Objects that the index names."""


Storing: TypeAlias = Callable[[threading.Event | None], Stored]
"""Stores a copy of a learner's state, and waits while the store is unreachable; it may run during later steps.

Raises StoreUnavailable when the given event is set, which gives up the upload.
"""


def store_whole(run: Run, state: Checkpoint, given_up: threading.Event | None = None) -> Stored:
    """Store masters, moments and version as one object. Raises the errors of `Run.put`."""
    return Stored(run.put(encode_checkpoint(state), "checkpoints", ".safetensors", given_up))


def encode_checkpoint(state: Checkpoint) -> Pieces:
    """Encode a checkpoint without copying tensors; equal states give equal bytes. `decode_checkpoint` reverses it."""
    text = json.dumps(state.metadata, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return split_safetensors(state.tensors, {_KEY: text})


def decode_checkpoint(data: bytes | memoryview) -> Checkpoint:
    """Read a checkpoint; its tensors are views into `data`. Raises CheckpointError or WeightsError."""
    text = read_metadata(data).get(_KEY)
    if text is None:
        raise CheckpointError(f"the object is a safetensors file but not a checkpoint: its metadata lacks {_KEY!r}")
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"the checkpoint's metadata is not JSON: {type(error).__name__}: {error}") from error
    if not isinstance(metadata, dict):
        raise CheckpointError(f"the checkpoint's metadata is not a mapping: {text[:80]!r}")
    return Checkpoint(read_safetensors(data), metadata)
