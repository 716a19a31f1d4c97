"""Deltas between folders of weights, with no run and no Kafka: encode, apply, verify."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.infra.errors import UsageError
from headrace.infra.weights.coding import decode_block
from headrace.infra.weights.delta import DELTA_MAGIC, Delta, encode_delta, read_delta, split_delta
from headrace.infra.weights.delta_header import Header, Label
from headrace.infra.weights.files import ADAPTER_WEIGHTS
from headrace.infra.weights.folder import (
    UNKNOWN_HASH,
    WeightsFolder,
    copy_other_files,
    fill_in_hash,
    open_weights,
    write_weights,
)
from headrace.infra.weights.held import HeldWeights
from headrace.infra.weights.tensors import ITEM_BYTES, WeightsError, hash_weights
from headrace.infra.whole_folder import require_parent, write_new_folder


@dataclass(frozen=True, slots=True)
class EncodedDelta:
    """A delta object that was written."""

    header: Header
    full_bytes: int
    """Size of the new weights in bytes."""
    delta_bytes: int


@dataclass(frozen=True, slots=True)
class Applied:
    """A folder that was written."""

    weights_hash: str
    unneeded: tuple[Path, ...]
    """Deltas that changed nothing, because the weights already were their results."""


@dataclass(frozen=True, slots=True)
class Verified:
    """An object that was read completely and found undamaged."""

    kind: str
    """delta or weights."""
    weights_hash: str
    """Hash of the weights, or of the result of the delta."""
    promised: bool
    """Whether the object itself names the hash of its weights."""
    header: Header | None = None
    """Header of the delta."""


def encode(base: Path, new: Path, out: Path, label: Label) -> EncodedDelta:
    """Write the delta object that leads from one folder of weights to another.

    Raises UsageError when `out` exists or a folder does not, WeightsError when a folder is incomplete or does not have
    the hash that it names, and NeedsAnchor when the two do not have the same tensors.
    """
    _require_paths(base, new)
    if out.exists():
        raise UsageError(f"{out} exists already: name a new file")
    require_parent(out)
    before, after = open_weights(base), open_weights(new)
    base_hash, new_hash = _hash_and_compare(base, before), _hash_and_compare(new, after)
    data = encode_delta(before.tensors, after.tensors, label, hashes=(base_hash, new_hash))
    beside = out.with_name(f".{out.name}-{os.getpid()}")
    try:
        beside.write_bytes(data)
        beside.rename(out)
    finally:
        beside.unlink(missing_ok=True)
    full = sum(tensor.data.nbytes for tensor in after.tensors.values())
    return EncodedDelta(read_delta(data).header, full, len(data))


def apply(base: Path, deltas: Sequence[Path], out: Path) -> Applied:
    """Apply deltas to a folder, and write the result as a new folder, completely or not at all.

    Config and tokenizer are those of the base. Raises UsageError when `out` exists, or the base or a delta does not,
    and WeightsError when the base is incomplete or does not have the hash that it names, when a delta is damaged or has
    another base, or when its result does not have the hash that it names.
    """
    _require_paths(base, *deltas)
    opened = [open_delta(path) for path in deltas]
    source = open_weights(base)
    with write_new_folder(out) as folder:
        if base.is_dir():
            copy_other_files(base, folder)
        write_weights(source.tensors, folder, UNKNOWN_HASH)
        copied = open_weights(folder, writable=True)
        held = HeldWeights(copied.tensors, _hash_and_compare(base, source), copy=False)
        unneeded = []
        for path, delta in zip(deltas, opened, strict=True):
            try:
                if not held.apply(delta):
                    unneeded.append(path)
            except WeightsError as error:
                raise type(error)(f"{path}: {error}") from error
        for file in copied.files.values():
            file.flush()
        fill_in_hash(folder, held.weights_hash)
    return Applied(held.weights_hash, tuple(unneeded))


def verify(path: Path) -> Verified:
    """Read a delta object, a safetensors file or a folder of weights completely, and check it.

    Raises UsageError when it does not exist, WeightsError for any damage.
    """
    _require_paths(path)
    if _is_delta(path):
        delta = open_delta(path)
        for head, content in split_delta(delta):
            blocks = [] if isinstance(content, memoryview) else content
            for number, coded in enumerate(blocks):
                items = min(delta.header.block_items, head.items - number * delta.header.block_items)
                decode_block(coded, items, ITEM_BYTES[head.dtype])
        return Verified("delta", delta.header.weights_hash, promised=True, header=delta.header)
    try:
        found = open_weights(path)
    except WeightsError as error:
        if path.is_dir() or not path.stat().st_size:
            raise
        raise WeightsError(f"{error}; and the file is not a delta object") from error
    return Verified("weights", _hash_and_compare(path, found), promised=bool(found.promised))


def _require_paths(*paths: Path) -> None:
    """Raise UsageError for the first path that does not exist, or whose weights are in two files: a base, an adapter.

    Nothing is damaged then, the name is wrong.
    """
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path} does not exist: name an existing file or folder")
        if (path / ADAPTER_WEIGHTS).exists():
            raise UsageError(f"{path} holds an adapter: name its file, {path / ADAPTER_WEIGHTS}")


def _hash_and_compare(path: Path, found: WeightsFolder) -> str:
    held = hash_weights(found.tensors)
    if found.promised and held != found.promised:
        raise WeightsError(
            f"{path}: the weights have hash {held}, but the recorded hash is {found.promised}: the weights were changed"
        )
    return held


def _is_delta(path: Path) -> bool:
    if path.is_dir():
        return False
    with path.open("rb") as file:
        return file.read(len(DELTA_MAGIC)) == DELTA_MAGIC


def open_delta(path: Path) -> Delta:
    """Map a delta object, which stays mapped as long as it is in use. Raises WeightsError, naming the file."""
    try:
        with path.open("rb") as file:
            return read_delta(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    except FileNotFoundError as error:
        raise WeightsError(f"{path} does not exist") from error
    except IsADirectoryError as error:
        raise WeightsError(f"{path} is a folder, not a delta object") from error
    except ValueError as error:
        raise WeightsError(f"{path} is empty") from error
    except WeightsError as error:
        raise WeightsError(f"{path}: {error}") from error
