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

    The file descriptor then points at the null device: otherwise Python would fail again when it flushes at exit.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_lost = False
        """Whether nobody reads the output any more."""

    def write(self, text: str) -> int:
        """Write, as long as somebody reads the output."""
        if not self.is_lost:
            try:
                self._stream.write(text)
            except OSError as error:
                self._discard_from_now_on(error)
        return len(text)

    def flush(self) -> None:
        """Flush, as long as somebody reads the output."""
        if not self.is_lost:
            try:
                self._stream.flush()
            except OSError as error:
                self._discard_from_now_on(error)

    def _discard_from_now_on(self, error: OSError) -> None:
        self.is_lost = True
        with contextlib.suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        with contextlib.suppress(OSError):
            self._stream.flush()
        # Standard output takes no more text; the run goes on without its page.
        log.warning("page.lost", why=str(error))

    def __getattr__(self, name: str) -> Any:
        """Return encoding, isatty and the like of the stream."""
        return getattr(self._stream, name)


def outlive_reader(stream: TextIO | None) -> TextIO:
    """Return a stream whose writes do not fail. For a closed stream (None), it discards all text."""
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    return cast("TextIO", OutlivingStream(stream))
