"""The files beside a policy's weights, config and tokenizer in Hugging Face's layout, from the store into a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from infra.errors import HeadraceError
from infra.weights.tensor_file import is_plain_file_name
from schemas.records import ClaimCheck, NamedObject


class FilesError(HeadraceError):
    """The files that a weight version names do not make a policy."""


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
