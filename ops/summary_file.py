"""The file of `--summary`: refused before a run if it cannot be written, and written at its end."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.infra.atomic_files import write_atomically
from headrace.infra.errors import UsageError
from headrace.ops.plain_json import encode_json


def check_summary_path(path: Path | None) -> None:
    """Refuse a summary file that cannot be written. Raises UsageError."""
    if path is None:
        return
    folder = path.absolute().parent
    if path.is_dir():
        raise UsageError(f"the summary cannot be written to {path}, because that is a folder: name a file in it")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"the summary cannot be written to {path}: {folder} is not a writable folder")


def write_summary(path: Path | None, found: object) -> None:
    """Write a summary as JSON, if a file was named."""
    if path is not None:
        write_atomically(path, f"{encode_json(found)}\n".encode())
