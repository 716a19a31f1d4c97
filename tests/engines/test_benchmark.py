"""The benchmark of the engine over a server, at its smallest size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cpu_servers import ENVIRONMENT
from install_servers import KINDS, find_python

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_the_benchmark_of_a_served_engine_runs_and_writes_its_figures(kind: str, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    words = ["--use", kind, "--python", str(find_python(kind)), "--rounds", "1", "--swaps", "1", "--json", str(figures)]
    environment = {**os.environ, **ENVIRONMENT}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "benchmarks.served_engine", *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(figures.read_text())
    assert len(found) == 6
    assert all(one["engine"] > 0 for one in found[:3])
