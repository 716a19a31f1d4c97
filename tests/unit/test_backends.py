"""A learner on two processes (gloo, CPU) against the same learner on one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from group_steps import CASES, made, sequences_of
from test_learner import batch

from trainers.checkpoint import encode_checkpoint

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two processes make of all cases."""
    out = tmp_path_factory.mktemp("group") / "told.json"
    words = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(HERE / "group_steps.py"), str(out)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *words], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.parametrize("case", CASES)
def test_two_processes_have_the_losses_and_all_other_metrics_of_one(two: dict[str, Any], case: str) -> None:
    alone = {name: value for name, value in CASES[case].items() if name != "tensor_parallel"}
    one, sequences = made(alone), sequences_of(alone)
    for version, together in enumerate(two[case]["metrics"], 1):
        assert together == pytest.approx(one.step(sequences(version), version), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_make_the_very_same_bits_again_from_a_checkpoint(two: dict[str, Any], case: str) -> None:
    found = two[case]
    assert found["again"] == found["metrics"][-1]
    assert found["hash_again"] == found["hash"]
    assert found["same_state"]


def test_what_two_processes_make_is_told_apart_and_their_checkpoints_are_one_processes_own(two: dict[str, Any]) -> None:
    one = made({})
    one.step(batch(1), 1)
    here = {**one.fingerprint(), "threads": "1"}  # as many as each of the two has
    assert two["ppo"]["fingerprint"] == {**here, "backend": "fsdp2 on 2 processes"}
    assert two["matrices cut"]["fingerprint"] == {**here, "backend": "tensor parallel on 2 processes"}
    assert two["ppo"]["state"] == len(b"".join(encode_checkpoint(one.state())))
