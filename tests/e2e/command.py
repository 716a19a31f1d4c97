"""The command line as a user calls it, and a run that it made."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERSIONS = 12
ARITHMETIC = ("up", "arithmetic", "--set", f"trainer.steps={VERSIONS}", "--set", "evaluate.every=6", "--plain")


def headrace(*words: str | Path, timeout_s: float = 800, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    return subprocess.run(
        [sys.executable, "-m", "infra.cli", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, **variables},
    )


@dataclass(frozen=True)
class Finished:
    """A run that has ended, its servers stopped."""

    data: Path
    words: Sequence[str]
    """The command line that made it, without --data."""
    output: str
    summary: dict[str, Any]
