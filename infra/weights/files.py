"""A policy's files in Hugging Face's layout, from the store into a folder: weights, and config and tokenizer beside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from infra.errors import HeadraceError
from infra.weights.folder import INDEX, SINGLE
from infra.weights.tensor_file import is_plain_file_name
from infra.weights.tensors import WeightsError
from schemas.records import ClaimCheck, NamedObject, WeightsPublished


class FilesError(HeadraceError):
    """The files that a weight version names do not make a policy."""


def anchor_files(event: WeightsPublished) -> Iterator[tuple[str, ClaimCheck]]:
    """Yield the names of an anchor's files and where they are. Raises WeightsError for a name that is no plain one."""
    for shard in event.shards:
        if shard.claim is None or not is_plain_file_name(shard.name):
            raise WeightsError(f"the record names a file {shard.name[:80]!r}, which is none of an anchor's")
        yield shard.name, shard.claim
    if event.weights is not None:
        yield INDEX if event.shards else SINGLE, event.weights


def write_files(files: Iterable[NamedObject], folder: Path, get: Callable[[ClaimCheck], bytes | memoryview]) -> None:
    """Write files into a folder.

    Args:
        files: As an anchor's event names them.
        folder: Which exists.
        get: Returns an object's bytes, verified.

    Raises FilesError for one without an object or whose name is no plain file name, and what `get` raises.
    """
    for file in files:
        if file.claim is None or not is_plain_file_name(file.name):
            raise FilesError(f"an anchor names a file {file.name!r}: it is not written")
        (folder / file.name).write_bytes(get(file.claim))
