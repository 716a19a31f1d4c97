"""A user's own folder: packages called as our rooms, plug-ins of every kind beside the recipe, no PYTHONPATH."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from command import command, wait_for_version

from headrace.infra.embedded.data_folder import DataFolder
from headrace.infra.kafka.run_address import parse_run
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.run.run import join, read_revisions
from headrace.ops.opened_run import open_run
from headrace.schemas import codec
from headrace.schemas.records import BatchTrained, TrajectoryGroup

pytestmark = pytest.mark.packages
PROJECT = Path(__file__).parent / "own_project"
ENDLESS = ("--set", "trainer.steps=100000")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PROJECT, tmp_path / "project"))


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(where: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end in a folder."""
    where.mkdir(exist_ok=True)
    return subprocess.run(
        command(*words), capture_output=True, text=True, timeout=800, check=False, cwd=where, env=environment()
    )


def edited(file: Path) -> None:
    file.write_text(file.read_text() + "# edited\n")


def newest_version(data: Path) -> int:
    log = (data / "logs" / "train-solver.log").read_text()
    versions = [json.loads(line) for line in log.splitlines() if '"version.trained"' in line]
    return max(line["version"] for line in versions)


def test_plug_ins_beside_the_recipe_are_found_by_all_and_a_worker_with_another_source_is_refused(
    project: Path, tmp_path: Path
) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    elsewhere.mkdir()
    up = ("up", project / "run.toml", "--data", data, "--plain")
    other, same = (Path(shutil.copytree(project, tmp_path / name)) for name in ("other", "same"))
    edited(other / "envs" / "coins.py")

    with subprocess.Popen(
        command(*up, *ENDLESS),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=elsewhere,
        env=environment(),
    ) as launcher:
        wait_for_version(data, launcher, 1)
        address = DataFolder(data).require_notes().address
        refused = run(other, "rollout", "--run", address, "--name", "refused")
        lost = run(elsewhere, "rollout", "--run", address, "--name", "lost")
        at = newest_version(data)
        with (tmp_path / "welcome.log").open("wb") as log:
            welcome = subprocess.Popen(
                command("rollout", "--run", address, "--name", "welcome"), cwd=same, env=environment(), stderr=log
            )
        wait_for_groups(address, "welcome", welcome)
        wait_for_version(data, launcher, at + 1)
        welcome.send_signal(signal.SIGTERM)
        assert welcome.wait(120) == 0
        launcher.send_signal(signal.SIGINT)
        launcher.communicate(timeout=300)

    assert launcher.returncode == 130, "one worker that was refused stops nobody else"
    hashes = recorded(data)
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1].startswith("error: plug-in envs.coins:Coins in ")
    assert f"in {other / 'envs'} has source hash " in refused.stderr
    assert f"but the run uses {hashes[0]['envs'][:12]}: bring the run's source here; or, " in refused.stderr
    assert lost.returncode == 2
    assert f"PYTHONPATH, not in {elsewhere}. Put it beside the recipe" in lost.stderr
    assert set(hashes[0]) == {"envs", "producers", "rules", "trainers"}

    edited(project / "trainers" / "credit.py")
    unasked = run(elsewhere, *up, *ENDLESS)
    assert unasked.returncode == 2
    assert f"plug-in trainers ({project / 'trainers'}): source {hashes[0]['trainers'][:12]} -> " in unasked.stderr
    assert "--new-recipe" in unasked.stderr
    summary = tmp_path / "summary.json"
    steps = newest_version(data) + 4
    done = run(elsewhere, *up, "--set", f"trainer.steps={steps}", "--new-recipe", "--summary", summary)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(summary.read_text())
    assert told["audit"] == {"ok": True, "lost": 0, "doubled": 0, "problems": [], "unchecked": ""}
    assert told["versions"] == steps
    before, after = recorded(data)
    assert {name for name in after if after[name] != before[name]} == {"trainers"}
    first, *_, last = fingerprints(data)
    assert (first["plug-in trainers"], last["plug-in trainers"]) == (before["trainers"][:12], after["trainers"][:12])


def test_plug_ins_beside_the_recipe_are_tried_from_elsewhere_without_servers(project: Path, tmp_path: Path) -> None:
    done = run(tmp_path / "elsewhere", "try", project / "run.toml", "--json")

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    solver = found["policies"]["solver"]
    assert [group["verdict"] for group in solver["groups"]] == ["kept", "kept"]
    assert solver["step"]["has_advantages"]
    assert solver["step"]["grad_norm"] > 0
    assert not list((tmp_path / "elsewhere").iterdir()), "nothing is written"


def wait_for_groups(address: str, worker: str, process: subprocess.Popen[Any]) -> None:
    """Wait until a worker has delivered a group."""
    joined, end = join(parse_run(address)), time.monotonic() + 300
    topic = joined.topics.trajectories("solver")
    while not any(
        codec.decode(message.value, TrajectoryGroup).worker == worker
        for message in read_all(joined.connection, [topic])
    ):
        assert process.poll() is None, "it ended before its time"
        assert time.monotonic() < end, "it played nothing"
        time.sleep(0.5)


def recorded(data: Path) -> list[dict[str, str]]:
    """Return the sources that stand on the recipe topic, by revision."""
    with open_run(None, data) as opened:
        told = {one.revision: one.plug_ins for one in read_revisions(opened.run.address)}
    return [told[revision] for revision in sorted(told)]


def fingerprints(data: Path) -> list[dict[str, str]]:
    with open_run(None, data) as opened:
        batches = read_all(opened.run.connection, [opened.run.topics.batches("solver")])
        records = [codec.decode(message.value, BatchTrained) for message in batches]
    return [dict(record.fingerprint) for record in records if record.fingerprint]  # others tell of evictions alone
