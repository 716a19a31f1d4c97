"""The benchmark of a trainer's step where there is a GPU; `docs/` and README hold the figures of a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_step_benchmark_runs_on_a_gpu_and_tells_every_figure(tmp_path: Path) -> None:
    words = ["-m", "benchmarks.trainer", "--device", "cuda", "--json", str(tmp_path / "figures.json")]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads((tmp_path / "figures.json").read_text())
