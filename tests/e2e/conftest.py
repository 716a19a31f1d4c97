"""One short run of the shipped recipe, made as a user makes it and interrupted once; tests look at what it left."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import (
    ARITHMETIC,
    Finished,
    Interrupted,
    command,
    headrace,
    move_servers,
    processes_of,
    wait_for_version,
)

from headrace.infra.run.run import Run
from headrace.ops.opened_run import opened_run


@pytest.fixture(scope="session")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    data = tmp_path_factory.mktemp("finished") / "data"
    words = command(*ARITHMETIC, "--data", data)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as launcher:
        wait_for_version(data, launcher, 1)
        began = time.monotonic()
        launcher.send_signal(signal.SIGINT)
        said, _ = launcher.communicate(timeout=30)
        return Interrupted(data, said, time.monotonic() - began, launcher.returncode, processes_of(data))


@pytest.fixture(scope="session")
def finished(interrupted: Interrupted) -> Finished:
    """The same run, gone on with until its end."""
    summary = interrupted.data.parent / "summary.json"
    done = headrace(*ARITHMETIC, "--data", interrupted.data, "--summary", summary)
    assert done.returncode == 0, done.stdout + done.stderr
    left = processes_of(interrupted.data)
    return Finished(interrupted.data, ARITHMETIC, done.stdout, json.loads(summary.read_text()), left)


@pytest.fixture
def rested(finished: Finished, tmp_path: Path) -> Path:
    """The data folder of the finished run, in a copy with no server of it."""
    data = tmp_path / "rested"
    shutil.copytree(finished.data, data)
    move_servers(data)
    return data


@pytest.fixture(scope="session")
def run(finished: Finished) -> Iterator[Run]:
    """The finished run, its broker and store started again: looks at it find them, and start none."""
    with opened_run(None, finished.data, store=True) as opened:
        yield opened.run
