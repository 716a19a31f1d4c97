"""Recognises Git LFS pointers: small texts that `git clone` leaves in place of large files, if git-lfs is missing."""

from __future__ import annotations

from pathlib import Path

_BEGIN = b"version https://git-lfs.github.com/spec/"


def describe_pointer(path: Path) -> str:
    """Return a sentence that says how to fetch the file whose pointer `path` is; empty for any other file."""
    try:
        with path.open("rb") as file:
            begin = file.read(len(_BEGIN))
    except OSError:
        return ""
    if begin != _BEGIN:
        return ""
    return (
        f"{path} is a Git LFS pointer, not the file itself: fetch it by `git -C {path.parent} lfs pull` (git-lfs must "
        "be installed), or download it again"
    )
