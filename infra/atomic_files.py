"""Writes files atomically: complete or absent, also with kills and concurrent writers."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, data: bytes, mode: int = 0o644, *, durable: bool = False) -> None:
    """Write a file atomically, also with concurrent writers. Raises OSError.

    With `durable`, the file survives a power cut once the function has returned.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            sync_folder(path.parent)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
