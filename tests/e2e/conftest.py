"""One short run of the shipped recipe, made as a user makes it and interrupted once; tests look at what it left."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import (
    ARITHMETIC,
    VERSIONS,
    Finished,
    Interrupted,
    command,
    move_servers,
    processes_of,
    wait_for_version,
    words_of,
)

from headrace.infra.kafka.clients import open_producer
from headrace.infra.run.run import Run
from headrace.ops.opened_run import open_run


@pytest.fixture(scope="session")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    data = tmp_path_factory.mktemp("finished") / "data"
    words = command(*ARITHMETIC, "--data", data)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as launcher:
        wait_for_version(data, launcher, 1)
        launcher.send_signal(signal.SIGINT)
        said, _ = launcher.communicate(timeout=300)
        return Interrupted(data, said, launcher.returncode, processes_of(data))


@pytest.fixture(scope="session")
def finished(interrupted: Interrupted) -> Finished:
    """The same run, resumed until its end; on the way its trainer is killed, and somebody writes garbage."""
    data, summary = interrupted.data, interrupted.data.parent / "summary.json"
    words = command(*ARITHMETIC, "--data", data, "--summary", summary)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        try:
            wait_for_version(data, launcher, VERSIONS // 2)
            [trainer] = [process for process in processes_of(data) if "train" in words_of(process)]
            trainer.kill()
            write_garbage(data)
            output, errors = launcher.communicate(timeout=800)
        finally:
            launcher.terminate()
    assert launcher.returncode == 0, output + errors
    return Finished(data, ARITHMETIC, output, json.loads(summary.read_text()), processes_of(data))


def write_garbage(data: Path) -> None:
    """Write a record that nobody can read where the curators read."""
    with open_run(None, data) as opened:
        vandal = open_producer(opened.run.connection, "vandal")
        vandal.produce(opened.run.topics.trajectories("solver"), b"garbage", b"sums:0", 0)
        assert vandal.flush(60) == 0


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
    with open_run(None, finished.data, store=True) as opened:
        yield opened.run
