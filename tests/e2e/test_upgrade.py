"""A run goes on with a newer build while processes of the older one still work: nothing is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import UNLEARNED, command, wait_for_version

from headrace.infra.embedded.data_folder import DataFolder
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.run.run import Run
from headrace.ops.opened_run import open_run
from headrace.schemas import codec
from headrace.schemas.headers import Stamp
from headrace.schemas.records import Outcome, TrajectoryGroup

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.builds, pytest.mark.timeout(1200)]  # seconds; two trees start one after the other

STEPS = 100
"""Enough that the older worker joins before the newer ones, which start in less time, are done."""
WORDS = (
    "up", "arithmetic", "--plain",
    "--set", f"trainer.steps={STEPS}",
    "--set", "trainer.checkpoint_every=4",
    "--set", "trainer.groups_per_batch=8",
    *UNLEARNED,
    "--set", "evaluate.problems=16",
)  # fmt: skip


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the tree in which two records have one more optional field, and workers fill it."""
    tree = tmp_path_factory.mktemp("newer")
    shutil.copytree(ROOT / "src" / "headrace", tree / "headrace", ignore=shutil.ignore_patterns("__pycache__"))
    records = tree / "headrace" / "schemas" / "group_records.py"
    text = records.read_text()
    for record in ("TrajectoryGroup", "Outcome"):
        text, found = re.subn(
            rf"(class {record}:\n.*?)(?=\n\n\n|\n\Z)",
            r'\1\n    rack: str | None = None\n    """A field of the next release."""',
            text,
            count=1,
            flags=re.DOTALL,
        )
        assert found
    records.write_text(text)
    episodes = tree / "headrace" / "producers" / "rollout" / "play" / "episodes.py"
    filled, found = re.subn(
        r"(\n +)region=context\.region,", r'\1region=context.region,\1rack="17",', episodes.read_text()
    )
    assert found
    episodes.write_text(filled)
    return tree


def of_tree(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree)}


@contextmanager
def older(*words: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A component of this tree, stopped at the end of the block."""
    with log.open("wb") as file:
        process = subprocess.Popen(command(*words), cwd=ROOT, env=of_tree(ROOT / "src"), stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory, newer: Path) -> Path:
    """Return the folder of a run begun by this tree and finished by a newer one, with this tree's beside it."""
    folder = tmp_path_factory.mktemp("upgrade")
    data = folder / "run"
    up = command(*WORDS, "--data", data, "--summary", folder / "summary.json")
    with subprocess.Popen(up, cwd=ROOT, env=of_tree(ROOT / "src"), stdout=subprocess.PIPE, text=True) as launcher:
        try:
            wait_for_version(data, launcher, 1)
        finally:
            launcher.send_signal(signal.SIGINT)
            launcher.communicate(timeout=300)
    assert launcher.returncode == 130
    notes = DataFolder(data).require_notes()
    with (
        older("rollout", "--run", notes.address, "--name", "older", log=folder / "older-rollout.log"),
        older("curate", "--run", notes.address, log=folder / "older-curate.log"),
    ):
        done = subprocess.run(
            up, cwd=newer, env=of_tree(newer), capture_output=True, text=True, timeout=700, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def run(upgraded: Path) -> Iterator[Run]:
    with open_run(None, upgraded / "run") as opened:
        yield opened.run


def test_a_run_goes_on_with_a_newer_build_and_its_audit_closes(upgraded: Path) -> None:
    summary = json.loads((upgraded / "summary.json").read_text())

    assert summary["versions"] == STEPS
    assert summary["audit"]["ok"]
    assert (summary["audit"]["lost"], summary["audit"]["doubled"], summary["groups"]["dead"]) == (0, 0, 0)


def test_nothing_was_refused_though_both_builds_wrote_side_by_side(run: Run) -> None:
    assert list(read_all(run.connection, [run.topics.dead_letters])) == []
    groups = list(read_all(run.connection, [run.topics.trajectories("solver")]))
    decoded = [codec.decode(message.value, TrajectoryGroup) for message in groups]
    mine = codec.FORMS[TrajectoryGroup].fingerprint
    by_newer = [group for message, group in zip(groups, decoded, strict=True) if message.value[2:10] != mine]

    assert by_newer
    assert "older" in {group.worker for group in decoded}


def test_an_older_curator_met_what_newer_workers_wrote(run: Run) -> None:
    groups = read_all(run.connection, [run.topics.trajectories("solver")])
    mine = codec.FORMS[TrajectoryGroup].fingerprint
    by_newer = {Stamp.from_headers(m.headers).number for m in groups if m.value[2:10] != mine}
    outcomes = list(read_all(run.connection, [run.topics.outcomes("solver")]))
    by_older = {
        Stamp.from_headers(m.headers).number
        for m in outcomes
        if m.value[2:10] == codec.FORMS[Outcome].fingerprint and codec.decode(m.value, Outcome).component == "curate"
    }

    assert by_newer & by_older
    assert len(by_older) < len(outcomes), "the newer curator had partitions too"
