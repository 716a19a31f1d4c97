"""Standard output for long work: replaces what cannot be encoded, and survives the end of its reader."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import Any, TextIO, cast

import structlog

log = structlog.get_logger()


def replace_what_cannot_be_encoded() -> None:
    """Make both output streams print `?` for characters that they cannot encode, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


class OutlivingStream:
    """A text stream whose writes do not fail: once its reader is gone, or its disk is full, it discards the text.

    The file descriptor then points at the null device, or Python would fail again when it flushes at its exit.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_lost = False
        """Whether the output is not read any more."""

    def write(self, text: str) -> int:
        """Write, as long as the output is read."""
        if not self.is_lost:
            try:
                self._stream.write(text)
            except OSError as error:
                self._lose(error)
        return len(text)

    def flush(self) -> None:
        """Flush, as long as the output is read."""
        if not self.is_lost:
            try:
                self._stream.flush()
            except OSError as error:
                self._lose(error)

    def _lose(self, error: OSError) -> None:
        self.is_lost = True
        with contextlib.suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        with contextlib.suppress(OSError):
            self._stream.flush()
        log.warning("page.lost", why=str(error))

    def __getattr__(self, name: str) -> Any:
        """Return encoding, isatty and the like of the stream."""
        return getattr(self._stream, name)


def outlive_reader(stream: TextIO | None) -> TextIO:
    """Return the stream wrapped so that writes do not fail; of one that is closed (None) one that discards all."""
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    return cast("TextIO", OutlivingStream(stream))
