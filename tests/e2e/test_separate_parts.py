"""Each part of a run as a process of its own, by the commands that `headrace servers` and `headrace begin` print."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from command import UNLEARNED, command, headrace

pytestmark = pytest.mark.runs

VERSIONS = 6
QUICK = (*UNLEARNED, "--set", f"trainer.steps={VERSIONS}", "--set", "evaluate.every=3", "--set", "name=parts")
PATIENCE_S = 120.0


@pytest.fixture
def ended() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def started(ended: ExitStack, words: list[str], said: Path, **variables: str) -> subprocess.Popen[str]:
    """Start a command; what it says goes to a file, and it is killed at the end if it still runs."""
    file = ended.enter_context(said.open("w"))
    process = subprocess.Popen(
        words, stdout=file, stderr=subprocess.STDOUT, text=True, cwd=said.parent, env={**os.environ, **variables}
    )

    def end() -> None:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()

    ended.callback(end)
    return process


def told(said: Path, word: str, process: subprocess.Popen[str]) -> str:
    """Wait until a command has said something; return all it said."""
    end = time.monotonic() + PATIENCE_S
    while word not in said.read_text():
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < end, said.read_text()
        time.sleep(0.1)
    return said.read_text()


def test_a_run_of_separate_processes_is_watched_to_its_end_and_its_audit_closes(
    tmp_path: Path, ended: ExitStack
) -> None:
    said = tmp_path / "servers.txt"
    servers = started(ended, command("servers", "--data", tmp_path / "pair"), said)
    lines = told(said, "source ", servers)
    sets = [
        *QUICK,
        *(word for line in re.findall(r"^(bootstrap|endpoint) = (.*)$", lines, re.MULTILINE) for word in named(line)),
    ]
    keys = dict(re.findall(r"export (\w+)=(.*)", (tmp_path / "pair" / "keys.sh").read_text()))

    begun = headrace("begin", "arithmetic", *sets, where=tmp_path, **keys)
    assert begun.returncode == 0, begun.stderr
    commands = [line for line in begun.stdout.splitlines() if line[:2] == "  "]
    parts = [shlex.split(re.split("(?:^| )headrace ", line)[1]) for line in commands]
    assert [part[0] for part in parts] == ["feed", "curate", "evaluate", "train", "rollout", "watch", "status", "audit"]
    again = headrace("begin", "arithmetic", *sets, where=tmp_path, **keys)
    assert again.stdout == begun.stdout, "it is there, and joined"
    *parts, watch, status, audited = parts
    assert status[1:] == audited[1:] == watch[1:]
    running = [started(ended, command(*part), tmp_path / f"{part[0]}.txt", **keys) for part in parts]
    watched = headrace(*watch, "--plain", where=tmp_path, timeout_s=400, **keys)
    assert watched.returncode == 0, watched.stdout + watched.stderr
    assert f"version {VERSIONS}/{VERSIONS}" in watched.stdout
    assert "the run has ended (steps)" in watched.stdout
    assert not [process.args for process in running if process.poll() is not None]

    audit = headrace("audit", *watch[1:], where=tmp_path, **keys)
    assert audit.returncode == 0, audit.stdout + audit.stderr
    servers.send_signal(signal.SIGINT)
    assert servers.wait(300) == 0, said.read_text()
    assert "the same command starts Kafka and the store again" in said.read_text()


def named(line: tuple[str, str]) -> tuple[str, str]:
    """Return a line of a recipe as an option of the command line."""
    key, value = line
    return "--set", f"{'kafka' if key == 'bootstrap' else 'store'}.{key}={value}"
