"""A run that makes no version says what is short, beside its lines and in `status`, and that it goes on again."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from command import headrace
from test_faults import children, started, the_one, until

pytestmark = pytest.mark.faults
ENDLESS = ("--set", "trainer.steps=100000", "--set", "evaluate.every=0", "--set", "feed.solved_share=1", "--plain")


@contextmanager
def frozen(process: psutil.Process) -> Iterator[None]:
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def standstill(data: Path) -> dict[str, Any]:
    found = headrace("status", "--data", data, "--json")
    assert found.returncode == 0, found.stderr
    told: dict[str, Any] = json.loads(found.stdout)["standstill"]
    return told


def server(up: int, folder: Path) -> psutil.Process:
    """The process of an embedded server: it works in its folder."""
    [found] = [one for one in children(up) if one.cwd() == str(folder)]
    return found


def test_frozen_servers_and_workers_are_told_and_so_is_that_the_run_goes_on(tmp_path: Path) -> None:
    data, output = tmp_path / "data", tmp_path / "up.txt"

    def says(words: str, after: int) -> Callable[[], bool]:
        return lambda: words in output.read_text()[after:]

    with started(output, "up", "efficient-data/fifo", *ENDLESS, "--data", data) as up:
        until(says("version 1", 0), "versions are made")
        for what, folder in (("object store", "store"), ("broker", "kafka")):
            told = len(output.read_text())
            one = server(up.pid, data / folder)
            with frozen(one):
                until(says(f"the {what} (process {one.pid}) does not answer", told), f"the frozen {what} is reported")
                until(says("solver has not made a version since ", told), "no version comes")
                assert f": the {what} (process {one.pid}) has not answered since " in output.read_text()[told:]
                if folder == "store":
                    assert standstill(data)["cause"] == "server"
            until(says(f"the {what} answers again", told), "it answers")
            until(says("new versions are made again", told), "new versions are made again")
        told = len(output.read_text())
        with frozen(the_one(up, "rollout")):
            until(says("no worker is alive; the last was seen at ", told), "that no worker is there is reported")
            assert standstill(data)["cause"] == "no_worker"
        until(says("new versions are made again", told), "new versions are made again")
        up.send_signal(signal.SIGINT)
        assert up.wait(300) == 130
