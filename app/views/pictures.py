"""Whether a picture can be drawn into a file, asked before the work that it shows."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from headrace.infra.errors import UsageError


def check_picture(file: Path, *suffixes: str) -> None:
    """Raise UsageError without matplotlib, for a suffix that is none of these, and for a folder that is not there."""
    try:
        import_module("matplotlib")
    except ImportError as error:
        raise UsageError("--plot needs matplotlib: pip install 'headrace[plots]'") from error
    if file.suffix not in suffixes:
        raise UsageError(f"--plot {file}: name a {' or '.join(suffixes)} file")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"--plot {file}: there is no folder {file.absolute().parent}")
