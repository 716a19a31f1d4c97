"""Writes directories of Harbor tasks whose tests are conditions of bash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

TASK = """\
schema_version = "1.4"
metadata = {{ difficulty = "{kind}" }}
agent = {{ timeout_sec = 60 }}
verifier = {{ timeout_sec = 60 }}
environment = {{ network_mode = "no-network", memory_mb = 512, storage_mb = 32 }}
"""


def build_task(kind: str, given: Mapping[str, str], tests: Sequence[str]) -> dict[str, str]:
    """Return the files of a task without instruction and solution.

    What is given lies in /app. The reward is the share of `tests`, conditions of bash, that are true there.
    """
    lines = [f"{test} && right=$((right + 1))" for test in tests]
    reward = f'{{\\"reward\\": $((right * 1000 / {len(tests)}))e-3}}'
    return {
        "task.toml": TASK.format(kind=kind),
        "instruction.md": kind,
        "environment/Dockerfile": "FROM debian:12-slim\nWORKDIR /app\nCOPY given/ ./\n",
        **{f"environment/given/{name}": text for name, text in given.items()},
        "tests/test.sh": "\n".join(["right=0", *lines, f'echo "{reward}" >/logs/verifier/reward.json', ""]),
    }


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write files into a new folder. Raises FileExistsError."""
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
