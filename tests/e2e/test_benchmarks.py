"""Every benchmark runs, at its smallest size: what no test starts rots. What it measures is looked at by people."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALLEST = {
    "admission": ["--capacities", "3000", "--strides", "20"],
    "archive": ["--groups", "32", "--rounds", "1"],
    "asynchrony": ["--smoke", "--folder", "FOLDER"],
    "audit": ["--groups", "200", "--rounds", "1"],
    "autoscale": ["--minutes", "0.2", "--sides", "auto,2"],
    "data_algorithms": ["--groups", "1000", "--each", "50", "--rounds", "1"],
    "dataflow": ["--groups", "32", "--rounds", "1"],
    "engine": ["--batches", "2", "--new-tokens", "8", "--rounds", "1"],
    "feeder": ["--open", "600", "--turns", "2"],
    "learning": ["--only", "grpo, ppo", "--seeds", "1", "--versions", "1", "--staleness", "0"],
    "many_workers": ["--workers", "2", "--seconds", "8"],
    "resume": ["--groups", "2000"],
    "sandbox": ["--rounds", "1"],
    "shares": ["--minutes", "0.2", "--warm-up-s", "2"],
    "small_models": ["--sizes", "1M", "--batches", "2", "--new-tokens", "4", "--rounds", "1"],
    "start": ["--rounds", "0"],
    "trainer": ["--hidden", "16", "--layers", "1", "--tokens", "8", "--rounds", "1"],
    "waiting_tools": ["--call-s", "0.02", "--tool-s", "0.08", "--warm-up-s", "0.3", "--seconds", "0.3"],
    "wan": ["--cuts", "2", "--steady", "5", "--round-trip", "0.05"],
    "weights": ["--parameters", "1e6", "--rounds", "1", "--hidden", "32", "--versions", "1"],
}
"""Words for `python -m benchmarks.NAME`; FOLDER is an empty one."""

STARTED_ELSEWHERE = {"served_engine", "far_machine"}
"""One needs a server, which tests/engines has; the other is a part of `wan`."""


def run(name: str, words: list[str], figures: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *words, "--json", str(figures)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(figures.read_text()), "no figures"


@pytest.mark.packages
@pytest.mark.parametrize("name", SMALLEST)
def test_a_benchmark_runs_at_its_smallest_size_and_writes_its_figures(name: str, tmp_path: Path) -> None:
    words = [str(tmp_path / "kept") if word == "FOLDER" else word for word in SMALLEST[name]]
    run(name, words, tmp_path / "figures.json")


@pytest.mark.gpu
def test_the_step_benchmark_runs_on_a_gpu_and_writes_its_figures(tmp_path: Path) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    run("trainer", ["--device", "cuda"], tmp_path / "figures.json")


def test_every_benchmark_that_can_be_started_is_started_by_a_test() -> None:
    started = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()}
    started |= {path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py")}
    assert started == {*SMALLEST, *STARTED_ELSEWHERE}
