"""The command line as a user calls it, and a run that it made."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

UNLEARNED = (
    *("--set", "policies.solver.warm_start.reward_low=0.05"),
    *("--set", "policies.solver.warm_start.held_out=64"),
)
"""For runs of which nobody looks at what they learn: the policy starts after less."""
VERSIONS = 12
ARITHMETIC = ("up", "arithmetic", "--set", f"trainer.steps={VERSIONS}", "--set", "evaluate.every=6", "--plain")


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "headrace", *map(str, words)]


def headrace(
    *words: str | Path, timeout_s: float = 800, where: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end, in a folder."""
    return subprocess.run(
        command(*words),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd=where,
        env={**os.environ, **variables},
    )


def wait_for_version(data: Path, launcher: subprocess.Popen[str], version: int) -> None:
    """Wait for a version in the trainer's log; a log is what an operator would look at, too."""
    log, end = data / "logs" / "train-solver.log", time.monotonic() + 300
    while not (log.exists() and f'"version": {version}, ' in log.read_text()):
        assert launcher.poll() is None, "up ended before its time"
        assert time.monotonic() < end, f"version {version} did not come"
        time.sleep(0.05)


def words_of(process: psutil.Process) -> list[str]:
    """Return the command line, empty once the process has ended; that of a forked component is one text."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline()).split()
    return []


def processes_of(data: Path) -> list[psutil.Process]:
    """Return processes that work for a data folder: its servers, by their folder, and components, by its address."""
    notes = json.loads((data / "run.json").read_text())
    marks = (str(data), f"kafka://{notes['bootstrap']}/")
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and any(mark in word for word in process.cmdline() for mark in marks):
                found.append(process)
        except psutil.Error:
            continue
    return found


def free_port() -> int:
    """Draw a port below those that the kernel gives to clients: between two commands nobody is given it."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as held:
            try:
                held.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def move_servers(data: Path) -> None:
    """Have the servers of a folder that was copied start at ports of their own."""
    for path in data.glob("*/ports.json"):
        path.write_text(json.dumps({name: free_port() for name in json.loads(path.read_text())}))


@dataclass(frozen=True)
class Interrupted:
    """A run that was interrupted after its first version."""

    data: Path
    output: str
    code: int
    left: Sequence[psutil.Process]
    """What of it still ran then."""


@dataclass(frozen=True)
class Finished:
    """A run that has ended, its servers stopped."""

    data: Path
    words: Sequence[str]
    """The command line that made it, without --data."""
    output: str
    summary: dict[str, Any]
    left: Sequence[psutil.Process]
    """What of it still ran when its command had ended."""
