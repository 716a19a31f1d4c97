"""A trainer of two processes: one is killed under torchrun, the run goes on; and its versions are made again by two."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from made_run import make_run, tiny_recipe
from structlog.testing import capture_logs
from trained_run import batches, command, curated, feed, has_made, published, until

from headrace.infra.run.run import Run
from headrace.infra.store.object_store import ObjectStore
from headrace.trainers.versions.history import read_history
from headrace.trainers.versions.remake import load_learner_at
from headrace.trainers.versions.resume import resume

STEPS = 6
TRAINER = {"steps": STEPS, "groups_per_batch": 4, "minibatches": 2, "max_staleness": 20, "checkpoint_every": 2}
SHARDED = "fsdp2 on 2 processes"


@dataclass(frozen=True)
class Group:
    """torchrun and its log."""

    process: subprocess.Popen[bytes]
    log: Path

    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def exitcode(self) -> str:
        return f"{self.process.returncode}: {self.log.read_text()[-3000:]}"

    def rank(self, number: int) -> int:
        """The pid of one of the processes."""
        for child in psutil.Process(self.process.pid).children():
            if child.environ().get("RANK") == str(number):
                return child.pid
        raise AssertionError(f"there is no rank {number}")


def torchrun(log: Path, *words: str, out: int | None = None) -> Group:
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "2"]
    launcher += ["--log-dir", str(log.parent / "torchrun"), "-m", "--"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *launcher, "headrace", *words], env=environment, stdout=out or file, stderr=file
        )
    return Group(process, log)


@pytest.fixture
def groups() -> Iterator[list[Group]]:
    """Those that are ended with the test."""
    started: list[Group] = []
    yield started
    for group in started:
        group.process.terminate()
        group.process.wait(60)


@pytest.mark.faults
def test_a_run_outlives_the_death_of_a_rank_and_its_versions_are_made_again_by_as_many(
    bootstrap: str, store: ObjectStore, run_name: str, tmp_path: Path, groups: list[Group]
) -> None:
    run = make_run(bootstrap, store, tiny_recipe(run_name, trainer=TRAINER))
    feed(run, [curated(number, stale=100) for number in range(4 * 3)])
    groups.append(torchrun(tmp_path / "train.txt", "train", "--run", str(run.address), "--policy", "solver"))
    until(lambda: len(batches(run)) == 3, groups[0], 300)
    os.kill(groups[0].rank(1), signal.SIGKILL)
    feed(run, [curated(number, stale=100) for number in range(4 * 3, 4 * STEPS)])
    until(lambda: has_made(run, STEPS), groups[0], 300)

    made = batches(run)
    assert [batch.version for batch in made] == list(range(1, STEPS + 1)), "none twice, none missing"
    assert {(batch.epoch, batch.fingerprint["backend"]) for batch in made} == {(0, SHARDED)}
    assert [batch.base_hash for batch in made[1:]] == [batch.weights_hash for batch in made[:-1]]
    assert published(run)[-1].weights_hash == made[-1].weights_hash
    trained = [use.number for batch in made for use in batch.groups]
    assert sorted(trained) == list(range(4 * STEPS))
    assert groups[0].log.read_text().count('"group.joined"') == 4, "both were started twice"

    groups[0].process.terminate()
    assert groups[0].process.wait(60) is not None
    resumed = [json.loads(line) for line in groups[0].log.read_text().splitlines() if '"trainer.resuming"' in line]
    assert resumed[0]["checkpoint"] == 2
    _was_stored_by_halves(run)
    _made_again_by_two(run, tmp_path)
    answer = command(tmp_path, "retrain", "--run", str(run.address))
    assert answer.code == 3, f"one process cannot: {answer}"
    _goes_on_with_one(run)


def _was_stored_by_halves(run: Run) -> None:
    pointers = read_history(run, "solver").checkpoints
    assert pointers.keys() == {0, 2, 4, 6}
    for pointer in pointers.values():
        halves = [0, 0]
        for part in pointer.parts:
            assert part.claim is not None
            halves[int(part.name.partition("-")[0])] += part.claim.size_bytes
        assert 0 < max(halves) < 0.6 * sum(halves)


def _goes_on_with_one(run: Run) -> None:
    """A trainer of one process reads what two have stored; and an older one where a part is gone."""
    history = read_history(run, "solver")
    newest = history.checkpoints[STEPS]
    learner = load_learner_at(run, newest, history.files, run.recipe)  # compares the weights' hash
    assert learner.version == STEPS
    assert newest.parts[-1].claim is not None
    run.store.delete(newest.parts[-1].claim.key)
    with capture_logs() as logs:
        resumed = resume(run, "solver", history, threading.Event())
    assert resumed.learner.version == STEPS
    said = {line["event"]: line for line in logs}
    assert said["checkpoint.unusable"]["version"] == STEPS
    assert said["trainer.resuming"]["checkpoint"] == STEPS - 2


def _made_again_by_two(run: Run, folder: Path) -> None:
    out = folder / "retrain.json"
    with out.open("wb") as file:
        group = torchrun(folder / "retrain.txt", "retrain", "--run", str(run.address), "--json", out=file.fileno())
    assert group.process.wait(240) == 0, group.exitcode
    found = json.loads(out.read_text())
    assert (found["comparable"], found["ok"], found["to"]) == (True, True, STEPS)
