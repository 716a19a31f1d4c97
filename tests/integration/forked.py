"""Processes of ours, forked from one that has imported what is slow to import: torch and transformers above all.

To their tests they are what `subprocess.Popen` starts: a pid of their own, signals, an exit code.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

PRELOADED = [
    "headrace.consumers.curate.curator",
    "headrace.producers.engines.torch.torch_engine",
    "headrace.producers.feed.feeder",
    "headrace.producers.rollout.worker",
    "headrace.trainers.trainer",
    "headrace.trainers.start",
    "torch._dynamo",
    "transformers.models.qwen3.modeling_qwen3",
]
assert all(find_spec(name) for name in PRELOADED if name.startswith("headrace.")), "else all would be slow, and run"
OF_A_LANE = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
"""Of the process that all are forked from, and so of all: lanes do not wait for one another's threads."""

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(PRELOADED)


def process(target: Callable[..., None], *given: Any) -> ForkServerProcess:
    """Start a process that calls a function of a test's module."""
    before = {name: os.environ.get(name) for name in OF_A_LANE}
    os.environ.update(OF_A_LANE)
    multiprocessing.forkserver.ensure_running()
    for name, value in before.items():
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value
    made = PROCESSES.Process(target=target, args=given)
    made.start()
    return made


class Forked:
    """A process that calls a function, its standard error at the end of a log; as much of a Popen as tests use.

    Args:
        call: What it calls, with `given`.
        log: Where it writes what it says.
        environment: Variables beside those of the tests.
    """

    def __init__(
        self, call: Callable[..., object], given: Sequence[Any], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        log.touch()  # a test may read it before anything is said
        self._process = process(_call, call, given, str(log), {**os.environ, **OF_A_LANE, **(environment or {})})
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """As Popen has it: minus the number of the signal that ended it; None before that was asked for."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return how it ended; None while it lives."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended. Raises TimeoutExpired."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal, if it lives."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def headrace(words: Sequence[str], log: Path, environment: Mapping[str, str]) -> Forked:
    """Start a command of the command line."""
    return Forked(_headrace, (words,), log, environment)


def _headrace(words: Sequence[str]) -> None:
    from headrace.app.cli.main import main

    sys.argv = ["headrace", *words]
    main(words)


def _call(call: Callable[..., object], given: Sequence[Any], log: str, environment: Mapping[str, str]) -> None:
    from headrace.infra import failpoints
    from headrace.infra.environment import FAILPOINTS_VARIABLE

    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(said, 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    failpoints._folder = environment.get(FAILPOINTS_VARIABLE, "")
    call(*given)
