"""The run that is tampered with, as a user makes it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from stoppable import until

from headrace.infra.kafka.group_offsets import fetch_committed_offsets
from headrace.infra.kafka.topic_reader import PartitionId, TopicReader, find_start_positions
from headrace.ops.opened_run import open_run

SETTINGS = (
    "policies.solver.warm_start.reward_low=0.05",
    "policies.solver.warm_start.held_out=64",
    "trainer.steps=16",
    "trainer.groups_per_batch=8",
    "trainer.minibatches=2",
    "trainer.checkpoint_every=4",
    "trainer.anchor_every=5",
    "evaluate.every=5",
    "evaluate.problems=16",
    "kafka.partitions=4",
)
WORDS = ("up", "arithmetic", "--plain", *(word for one in SETTINGS for word in ("--set", one)))


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "headrace", *map(str, words)]


def done(*words: str | Path) -> None:
    """Let a command come to its end."""
    ended = subprocess.run(command(*words), capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@contextmanager
def interrupted(*words: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Run a command for as long as the context lasts, and interrupt it then."""
    with subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as up:
        try:
            yield up
        finally:
            up.send_signal(signal.SIGINT)
            up.communicate(timeout=60)


def wait_for_version(data: Path, launcher: subprocess.Popen[Any], version: int, policy: str = "solver") -> None:
    """Wait for a version in the log of a policy's trainer, or of a shadow's."""
    log, end = data / "logs" / f"train-{policy}.log", time.monotonic() + 300
    while not (log.exists() and f'"version": {version}, ' in log.read_text()):
        assert launcher.poll() is None, "up ended before its time"
        assert time.monotonic() < end, f"version {version} did not come"
        time.sleep(0.05)


def suspend(data: Path, component: str) -> list[psutil.Process]:
    """Freeze the processes of a component, given by its subcommand: a stop of the run kills them."""
    mark = f"kafka://{json.loads((data / 'run.json').read_text())['bootstrap']}/"
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline()).split()
        except psutil.Error:
            continue
        if component in words and any(mark in word for word in words):
            found.append(process)
    assert found, f"there is no process of {component}"
    for process in found:
        process.suspend()
    return found


@contextmanager
def suspended_trainer(data: Path) -> Iterator[None]:
    """Suspend the trainer for a while: on a busy machine the run would be over before one has looked at it."""
    found = suspend(data, "train")
    try:
        yield
    finally:
        for process in found:
            if process.is_running():
                process.resume()


def wait_for_waiting_tasks(data: Path) -> None:
    """Wait, with a suspended worker, until a task waits in every partition and every played group is concluded."""
    with open_run(None, data) as opened:
        run = opened.run
        tasks, trajectories = run.topics.tasks("sums"), run.topics.trajectories("solver")

        def find_unread(group: str, topic: str) -> set[PartitionId]:
            begins = find_start_positions(
                run.connection, [topic], fetch_committed_offsets(run.connection, group, [topic])
            )
            with TopicReader(run.connection, begins, "test") as reader:
                return {(message.topic, message.partition) for message in reader.catch_up()}

        def is_at_rest() -> bool:
            waiting = find_unread(run.topics.rollout_group("sums"), tasks)
            played = find_unread(run.topics.curate_group("solver"), trajectories)
            return len(waiting) == run.recipe.kafka.partitions and not played

        until(is_at_rest, "a task waits in every partition, and every played group is concluded")
