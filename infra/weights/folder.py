"""Folders in Hugging Face's layout: one safetensors file, or several and an index. They are read in place.

Files that Headrace writes carry the `weights_hash` of all tensors, so that they can be verified by themselves.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.infra.git_lfs import describe_pointer
from headrace.infra.weights.tensor_file import (
    HF_METADATA,
    Pieces,
    is_plain_file_name,
    read_metadata,
    read_safetensors,
    split_safetensors,
)
from headrace.infra.weights.tensors import Tensor, WeightsError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
HASH_KEY = "headrace.weights_hash"
SHARD_BYTES = 5_000_000_000
"""Larger weights are split into several files, as Hugging Face's tools do."""
_WEIGHTS_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx"}
UNKNOWN_HASH = "0" * 64
"""Placeholder for a hash that is written later."""


@dataclass(frozen=True, slots=True)
class WeightsFolder:
    """Tensors as views of mapped files, which stay mapped as long as a tensor is in use."""

    tensors: dict[str, Tensor]
    files: dict[str, mmap.mmap]
    """Mapped files by name."""
    promised: str
    """`weights_hash` that the files name; empty when they name none."""


def open_weights(path: Path, *, writable: bool = False) -> WeightsFolder:
    """Map the weights of a folder, or of one safetensors file. Raises WeightsError for incomplete or missing files."""
    if path.is_dir():
        folder, index, names = path, path / INDEX, [SINGLE]
        weight_map: dict[str, str] | None = None
        promised = ""
        if index.exists():
            weight_map, promised = _read_index(index.read_bytes(), f"{index}")
            names = sorted(set(weight_map.values()))
            if SINGLE not in names and (path / SINGLE).exists():
                raise WeightsError(
                    f"{path} has both {SINGLE} and {INDEX}, and tools may read either: remove the wrong one"
                )
    else:
        folder, names, weight_map, promised = path.parent, [path.name], None, ""
    tensors: dict[str, Tensor] = {}
    files = {}
    for name in names:
        file, found, named = _open_file(folder / name, writable=writable)
        files[name] = file
        if weight_map is None:
            promised = named  # a shard names only its own
        else:
            _require_agreed(weight_map, name, found, f"{folder / INDEX}")
        tensors |= found
    return WeightsFolder(tensors, files, promised)


def _open_file(path: Path, *, writable: bool) -> tuple[mmap.mmap, dict[str, Tensor], str]:
    try:
        with path.open("r+b" if writable else "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise WeightsError(
            f"{path} does not exist: a folder of weights has {SINGLE}, or {INDEX} and its files"
        ) from error
    except ValueError as error:
        raise WeightsError(f"{path} is empty") from error
    try:
        return mapped, read_safetensors(memoryview(mapped)), read_metadata(memoryview(mapped)).get(HASH_KEY, "")
    except WeightsError as error:
        raise WeightsError(describe_pointer(path) or f"{path}: {error}") from error


def read_shards(index: bytes | memoryview, shards: Mapping[str, memoryview]) -> dict[str, Tensor]:
    """Return the tensors of several safetensors files, by name, and of their index, as views: nothing is copied.

    Raises WeightsError for incomplete files, and where shards and index do not agree.
    """
    weight_map, _ = _read_index(bytes(index), INDEX)
    if odd := sorted(set(weight_map.values()) ^ shards.keys()):
        where = INDEX if odd[0] in shards else "the objects of the anchor"
        raise WeightsError(f"{INDEX} and the files of the anchor do not agree: file {odd[0]} is missing in {where}")
    tensors: dict[str, Tensor] = {}
    for name, data in shards.items():
        found = read_safetensors(data)
        _require_agreed(weight_map, name, found, INDEX)
        tensors |= found
    return tensors


def _require_agreed(weight_map: Mapping[str, str], shard: str, found: Mapping[str, Tensor], index: str) -> None:
    wanted = {name for name, file in weight_map.items() if file == shard}
    if odd := found.keys() ^ wanted:
        raise WeightsError(
            f"{index} and {shard} do not agree on whether {shard} holds tensor {min(odd)!r}: the files are damaged, or "
            "of different models"
        )


def _read_index(data: bytes, path: str) -> tuple[dict[str, str], str]:
    try:
        match json.loads(data):
            case {"weight_map": dict(weight_map), **rest} if all(
                isinstance(name, str) and is_plain_file_name(name) for name in weight_map.values()
            ):
                metadata = rest.get("metadata")
                return weight_map, str(metadata.get(HASH_KEY, "")) if isinstance(metadata, dict) else ""
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not JSON: it was cut short, or is another file") from error
    raise WeightsError(f"{path} has no weight_map of tensors to file names")


def write_weights(
    named: Mapping[str, Tensor], folder: Path, weights_hash: str, *, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write tensors into a folder, as `files_of` lays them out."""
    for name, pieces in files_of(named, weights_hash, shard_bytes=shard_bytes):
        _write_file(folder / name, pieces)


def write_adapter(named: Mapping[str, Tensor], path: Path, weights_hash: str) -> None:
    """Write an adapter's tensors into one file, as peft reads it."""
    _write_file(path, split_safetensors(named, {**HF_METADATA, HASH_KEY: weights_hash}))


def files_of(
    named: Mapping[str, Tensor], weights_hash: str, *, shard_bytes: int = SHARD_BYTES
) -> Iterator[tuple[str, Pieces]]:
    """Yield the name and content of each file: one, or above `shard_bytes` several and then their index.

    The tensors' bytes are not copied.
    """
    shards = _cut(named, shard_bytes)
    if len(shards) == 1:
        yield SINGLE, split_safetensors(named, {**HF_METADATA, HASH_KEY: weights_hash})
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        yield file, split_safetensors(shard)
        weight_map |= dict.fromkeys(shard, file)
    metadata = {"total_size": sum(tensor.data.nbytes for tensor in named.values()), HASH_KEY: weights_hash}
    index = {"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))}
    yield INDEX, [json.dumps(index, indent=2).encode()]


def _cut(named: Mapping[str, Tensor], shard_bytes: int) -> list[dict[str, Tensor]]:
    shards: list[dict[str, Tensor]] = [{}]
    filled = 0
    for name in sorted(named):
        size = named[name].data.nbytes
        if shards[-1] and filled + size > shard_bytes:
            shards.append({})
            filled = 0
        shards[-1][name] = named[name]
        filled += size
    return shards


def _write_file(path: Path, pieces: Pieces) -> None:
    with path.open("wb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())


def fill_in_hash(folder: Path, weights_hash: str) -> None:
    """Write a hash over `UNKNOWN_HASH`."""
    index = folder / INDEX
    path = index if index.exists() else folder / SINGLE
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        at = mapped.find(UNKNOWN_HASH.encode())
        mapped[at : at + len(UNKNOWN_HASH)] = weights_hash.encode()
        mapped.flush()


def copy_other_files(source: Path, target: Path) -> None:
    """Copy config, tokenizer and other files, but no weights in other formats: they are outdated."""
    for path in source.iterdir():
        if path.is_file() and path.suffix not in _WEIGHTS_SUFFIXES and not path.name.endswith(".index.json"):
            shutil.copy2(path, target / path.name)
