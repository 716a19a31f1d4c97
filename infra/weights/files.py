"""A policy's files in Hugging Face's layout, from the store into a folder: weights, config and tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from headrace.infra.errors import HeadraceError
from headrace.infra.weights.folder import INDEX, SINGLE
from headrace.infra.weights.tensor_file import is_plain_file_name
from headrace.infra.weights.tensors import WeightsError
from headrace.schemas.records import ClaimCheck, NamedObject, WeightsPublished

TOKENIZER_FILE = "tokenizer.json"
ADAPTER_CONFIG = "adapter_config.json"
"""peft's name of the file that says how an adapter is put on its base; it is beside the adapter's weights."""
ADAPTER_WEIGHTS = "adapter_model.safetensors"
"""peft's name of the file of an adapter's weights."""


class FilesError(HeadraceError):
    """The files that a weight version names do not make a policy."""


def list_anchor_files(event: WeightsPublished) -> Iterator[tuple[str, ClaimCheck]]:
    """Yield names and claim checks of an anchor's files. Raises WeightsError for a name that is no plain file name."""
    for shard in event.shards:
        if shard.claim is None or not is_plain_file_name(shard.name):
            raise WeightsError(f"file {shard.name[:80]!r} of an anchor must have a claim check and a plain file name")
        yield shard.name, shard.claim
    if event.weights is not None:
        yield INDEX if event.shards else SINGLE, event.weights


def is_adapter(files: Iterable[NamedObject]) -> bool:
    """Return whether the weights beside these files are only an adapter."""
    return any(file.name == ADAPTER_CONFIG for file in files)


def choose_files_to_serve(files: Iterable[NamedObject]) -> tuple[NamedObject, ...]:
    """Return the files that are needed beside the weights.

    The base of an adapter is among them only where the weights are only an adapter. Where they are merged, the base is
    there for the trainer, and an engine would take it for the weights.
    """
    named = tuple(files)
    return named if is_adapter(named) else tuple(file for file in named if not _is_weights(file.name))


def _is_weights(name: str) -> bool:
    return name == INDEX or name.endswith(".safetensors")


def write_files(files: Iterable[NamedObject], folder: Path, get: Callable[[ClaimCheck], bytes | memoryview]) -> None:
    """Write files into a folder.

    Args:
        files: The files that an anchor's event names.
        folder: An existing folder.
        get: Returns an object's bytes, verified.

    Raises FilesError for a file without an object, and for a name that is not a plain file name; and what `get` raises.
    """
    for file in files:
        if file.claim is None or not is_plain_file_name(file.name):
            raise FilesError(f"file {file.name!r} must have a claim check and a plain file name: it is not written")
        (folder / file.name).write_bytes(get(file.claim))
