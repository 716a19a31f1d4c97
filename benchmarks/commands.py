"""Runs commands of Headrace beside a benchmark, and ends them with it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HEADRACE = (sys.executable, "-P", "-m", "headrace")
STOP_S = 60.0


@contextmanager
def started(log: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of Headrace beside the block; it is ended with the block."""
    with log.open("wb") as file, subprocess.Popen([*HEADRACE, *words], stdout=file, stderr=file) as process:
        try:
            yield process
        finally:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process as Ctrl-C does; kill it if it does not end in time."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
