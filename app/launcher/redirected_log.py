"""The log of a command that shows a page: a file in its data folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import structlog

from headrace.infra.log import configure_logging


@contextmanager
def redirect_log(path: Path) -> Iterator[None]:
    """Log to a file: log lines would break the page on the terminal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", buffering=1) as file:
        with redirect_stderr(file):  # structlog keeps the stream that it finds when it is configured
            configure_logging("up")
        try:
            yield
        finally:
            structlog.reset_defaults()
