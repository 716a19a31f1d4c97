"""What a user may do to a run, and what may befall it: interrupted, killed, joined, fed with garbage, misconfigured."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from command import UNLEARNED, command, headrace, words_of

from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.run_address import parse_run
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.run.run import Run, join
from headrace.schemas import codec
from headrace.schemas.records import WeightsPublished

STEPS, GROUPS = 40, 8
PATIENCE_S = 300.0


@contextmanager
def started(output: Path, *words: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command line beside the test; what of it still runs at the end is killed.

    Where the test fails, its error has the last lines of the command and of its components: the folder is soon gone.
    """
    with output.open("wb") as file:
        process = subprocess.Popen(command(*words), stdout=file, stderr=subprocess.STDOUT)
    try:
        yield process
    except BaseException as error:
        for text, count in [(output, 30), *((log, 5) for log in sorted(output.parent.rglob("logs/*.log")))]:
            error.add_note("\n".join([f"--- {text}", *text.read_text(errors="replace").splitlines()[-count:]]))
        raise
    finally:
        family: list[psutil.Process | subprocess.Popen[bytes]] = [*children(process.pid), process]
        for child in family:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue
        process.wait()


def children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def until(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.2)


def joined(data: Path) -> Run:
    notes = data / "run.json"
    until(notes.exists, "run.json is written")
    address = parse_run(f"kafka://{json.loads(notes.read_text())['bootstrap']}/arithmetic")
    found: list[Run] = []

    def tried() -> bool:
        try:
            found.append(join(address))
        except HeadraceError:
            return False
        return True

    until(tried, "the run can be joined")
    return found[0]


def version(run: Run) -> int:
    """Newest published version; -1 before the first."""
    found = [codec.decode(m.value, WeightsPublished) for m in read_all(run.connection, [run.topics.weights("solver")])]
    return max((event.version for event in found), default=-1)


@contextmanager
def suspended(process: subprocess.Popen[bytes], component: str) -> Iterator[None]:
    """Freeze the one process of a component while the block lasts."""
    frozen = the_one(process, component)
    frozen.suspend()
    try:
        yield
    finally:
        frozen.resume()


def the_one(process: subprocess.Popen[bytes], component: str) -> psutil.Process:
    (found,) = [child for child in children(process.pid) if {"headrace", component} <= set(words_of(child))]
    return found


@pytest.mark.faults
def test_two_tasks_that_kill_their_workers_are_found_under_the_supervisor_and_the_run_goes_on(tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    done = headrace(
        *("up", "arithmetic", "--data", tmp_path / "data", "--summary", summary, "--plain"),
        *("--set", "trainer.steps=2", "--set", "evaluate.every=0", *UNLEARNED),
        *("--set", 'workflows.sums.env={ use = "deadly_sums:DeadlySums" }'),
        *("--set", 'workflows.sums.workflow="deadly_sums:deadly_turn"'),
        timeout_s=800,
        where=Path(__file__).parent,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(summary.read_text())
    assert told["audit"] == {"ok": True, "lost": 0, "doubled": 0, "problems": [], "unchecked": ""}
    assert told["versions"] == 2
    assert told["groups"]["discarded"]["poison"] == 2
    assert told["unnumbered_letters"] == {"poison": 2}, "the groups concluded the numbers, not the letters"
    letters = headrace("dead-letters", "--data", tmp_path / "data", "--json")
    found = json.loads(letters.stdout)
    assert [(letter["reason"], letter["number"]) for letter in found] == [("poison", -1)] * 2
    shown = headrace("dead-letters", "--data", tmp_path / "data", "--offset", str(found[0]["offset"]))
    assert "sums:" in shown.stdout
    assert "Task" in shown.stdout
