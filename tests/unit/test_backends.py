"""A learner on two processes (gloo, CPU) against the same learner on one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from group_checkpoints import Folder, load, stored
from group_steps import CASES, TAKEN_OVER, alone, encoded, made, sequences_of
from test_learner import batch

from headrace.infra.recipe.settings import TrainerSettings
from headrace.infra.weights.tensor_file import read_safetensors
from headrace.infra.weights.tensors import hash_weights
from headrace.trainers.learner.backends.group import LeadingLearner
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.shard_index import decode_index

HERE = Path(__file__).parent
needs_two = pytest.mark.numerics
"""What needs the two processes, a minute for all cases."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(str(tmp_path_factory.mktemp("group")))


@pytest.fixture(scope="module")
def two(folder: Folder) -> dict[str, Any]:
    """What two processes make of all cases."""
    return made_by(2, folder, "cpu")


def made_by(processes: int, folder: Folder, device: str) -> dict[str, Any]:
    script = str(HERE / "group_steps.py")
    words = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    words += ["--log-dir", f"{folder.path}/torchrun", script, folder.path, device]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *words], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(Path(folder.path, "told.json").read_text())
    return found


@pytest.mark.parametrize("case", CASES)
@needs_two
def test_two_processes_train_as_one_and_the_very_same_bits_again_from_a_checkpoint_of_halves(
    two: dict[str, Any], folder: Folder, case: str
) -> None:
    one, sequences, found = made(alone(CASES[case])), sequences_of(CASES[case]), two[case]
    # Over a large vocabulary gradients are so small that the rounding of sums is more of them.
    near = {"rel": 1e-5, "abs": 1e-4 if "logits_mib" in CASES[case] else 1e-5}
    for version, together in enumerate(found["metrics"], 1):
        assert together == pytest.approx(one.step(sequences(version), version), **near)
    assert found["again"] == found["metrics"][-1]
    assert found["hash_again"] == found["hash"]
    assert found["same_state"]
    each_stores_about_half_and_reads_what_it_needs(folder, found)
    load(one, folder, stored(found["first"]))
    assert (one.version, hash_weights(one.snapshot_weights())) == (1, found["first_hash"])
    assert {name: bytes(tensor.data) for name, tensor in one.trained.copy().tensors.items()} == by_hand(
        folder, found["first"]
    )
    assert one.step(sequences(2), 2) == pytest.approx(found["metrics"][1], rel=1e-5, abs=1e-5)


def each_stores_about_half_and_reads_what_it_needs(folder: Folder, found: dict[str, Any]) -> None:
    first = stored(found["first"])
    sizes = {part.name: part.claim.size_bytes for part in first.parts if part.claim}
    halves = [sum(size for name, size in sizes.items() if name.startswith(f"0000{process}-")) for process in (0, 1)]
    assert max(halves) < 0.6 * sum(halves)
    index = decode_index(folder.get(first.claim))
    replicated = {
        name: cut for name, cut in index.tensors.items() if any(piece.sizes == cut.shape for piece in cut.pieces)
    }
    assert replicated.keys() >= {name for name in index.tensors if name.startswith("step/")}
    assert all(len(cut.pieces) == 1 for cut in replicated.values()), "what all have alike is stored once"
    for_all = {piece.part for cut in replicated.values() for piece in cut.pieces}
    for process, read in enumerate(found["read"]):
        own = {name for name in sizes if name.startswith(f"0000{process}-")} | for_all
        of_index = 0 if process else first.claim.size_bytes
        assert read - of_index == sum(sizes[name] for name in own) < sum(halves)


def by_hand(folder: Folder, first: dict[str, Any]) -> dict[str, bytes]:
    """The tensors of a checkpoint in parts, put together without any of the code that reads them."""
    index = json.loads(folder.get(stored(first).claim))
    parts = {
        part.name: read_safetensors(folder.file(part.claim).read_bytes()) for part in stored(first).parts if part.claim
    }
    found = {}
    for name, cut in index["tensors"].items():
        assert cut["dtype"] == "F32"
        whole = np.full(cut["shape"], np.nan, np.float32)
        for piece in cut["pieces"]:
            region = tuple(slice(o, o + n) for o, n in zip(piece["offsets"], piece["sizes"], strict=True))
            tensor = parts[piece["part"]][f"{name}@{','.join(map(str, piece['offsets']))}"]
            whole[region] = np.frombuffer(tensor.data, np.float32).reshape(tensor.shape)
        found[name] = whole.tobytes()
    return found


@pytest.mark.parametrize("case", TAKEN_OVER)
@needs_two
def test_the_checkpoint_of_one_process_is_the_same_bits_after_two_had_it(
    two: dict[str, Any], folder: Folder, case: str
) -> None:
    one, found = made(alone(CASES[case])), two["taken over"][case]
    load(one, folder, stored(found["stored"]))
    assert encoded(one) == found["whole"]


@needs_two
def test_a_part_that_is_gone_or_altered_is_told_by_the_leader_and_changes_nothing(two: dict[str, Any]) -> None:
    found = two["troubles"]
    names = {name for name, _ in found["errors"]}
    assert {name[:5] for name in names} == {"00000", "00001"}
    assert [error for _, error in found["errors"]] == ["ObjectMissing", "ObjectCorrupt"] * len(names)
    assert found["unchanged"]
    assert found["healed"]


@needs_two
def test_a_store_that_is_away_for_one_process_holds_up_no_step_and_is_given_up_by_all(two: dict[str, Any]) -> None:
    found = two["troubles"]
    assert found["stopped"] == "StoreUnavailable"
    assert found["copy_kept"], "what is stored is of the version at which it was copied"
    assert found["given_up"] == "StoreUnavailable"
    assert found["anew"]


@needs_two
def test_what_two_processes_make_is_told_apart(two: dict[str, Any]) -> None:
    one = made({})
    one.step(batch(1), 1)
    here = {**one.fingerprint(), "threads": "1"}  # as many as each of the two has
    assert two["ppo"]["fingerprint"] == {**here, "backend": "fsdp2 on 2 processes"}
    assert two["matrices cut"]["fingerprint"] == {**here, "backend": "tensor parallel on 2 processes"}


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs")
def test_two_gpus_make_the_very_same_bits_again_from_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    found = made_by(2, Folder(str(tmp_path)), "cuda")
    for case in CASES:
        assert found[case]["again"] == found[case]["metrics"][-1], case
        assert found[case]["hash_again"] == found[case]["hash"], case
        assert found[case]["same_state"], case


def test_matrices_stay_cut_as_they_are_whatever_a_revision_that_is_trained_again_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[TrainerSettings] = []
    monkeypatch.setattr(Learner, "apply_settings", lambda _, settings, __: taken.append(settings))
    leading = object.__new__(LeadingLearner)
    leading.settings = TrainerSettings(tensor_parallel=2)
    leading.apply_settings(TrainerSettings(tensor_parallel=1, minibatches=2), 1)
    assert [(one.tensor_parallel, one.minibatches) for one in taken] == [(2, 2)]
