"""The arithmetic recipe over real servers: it learns, its audit closes, and a killed server stops nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from command import command
from cpu_servers import ARGUMENTS, ENVIRONMENT, STARTED_BY
from install_servers import KINDS, find_python

STEPS = 40
PATIENCE_S = 600.0


@pytest.mark.timeout(2 * PATIENCE_S)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_learns_through_servers_of_which_one_is_killed_on_the_way(kind: str, tmp_path: Path) -> None:
    recipe, summary, output = tmp_path / "run.toml", tmp_path / "summary.json", tmp_path / "up.txt"
    recipe.write_text(
        f"""extends = "arithmetic"
name = "served"
[rollout]
engine = {{ use = "{kind}", python = "{find_python(kind)}", arguments = {json.dumps(ARGUMENTS[kind])} }}
[trainer]
steps = {STEPS}
[evaluate]
every = {STEPS // 2}
"""
    )
    environment = {**os.environ, **ENVIRONMENT}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    up = command("up", recipe, "--plain", "--data", tmp_path / "data", "--summary", summary)
    with output.open("w") as said:
        process = subprocess.Popen(up, stdout=said, stderr=subprocess.STDOUT, env=environment)
    try:
        wait_for_version(tmp_path / "data", 5, process, output)
        kill_server(process, kind)
        assert process.wait(PATIENCE_S) == 0, output.read_text()[-3000:]
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(300)
    told = json.loads(summary.read_text())
    assert (told["versions"], told["audit"]["ok"], told["groups"]["in_flight"]) == (STEPS, True, 0)
    assert told["reward_last"] > told["reward_first"] + 0.15
    assert told["eval_last"] > told["eval_first"]
    assert not told["policies"]["solver"]["eval_failures"]
    done = subprocess.run(command("retrain", "--data", tmp_path / "data"), check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def wait_for_version(data: Path, version: int, process: subprocess.Popen[bytes], output: Path) -> None:
    log, end = data / "logs" / "train-solver.log", time.monotonic() + PATIENCE_S
    while not (log.exists() and re.search(rf'"version": {version}, "reward"', log.read_text())):
        assert process.poll() is None, f"up ended before version {version}: {output.read_text()[-3000:]}"
        assert time.monotonic() < end, f"no version {version} in time: {output.read_text()[-3000:]}"
        time.sleep(0.2)


def kill_server(process: subprocess.Popen[bytes], kind: str) -> None:
    """Kill a training server with all its processes."""
    servers = [one for one in psutil.Process(process.pid).children(recursive=True) if STARTED_BY[kind] in one.cmdline()]
    assert servers
    for one in (servers[0], *servers[0].children(recursive=True)):
        os.kill(one.pid, signal.SIGKILL)
