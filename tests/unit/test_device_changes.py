"""What changed is found on a GPU as it is on the processor, and the delta that comes of it is the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.infra.weights.coding import Items, find_changes
from headrace.infra.weights.delta import encode_delta
from headrace.infra.weights.delta_header import Label
from headrace.infra.weights.tensors import Tensor
from headrace.trainers.learner.device_changes import build_change_finder, choose_change_finder

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")),
]


def pair(dtype: str, count: int, changed: int) -> tuple[Items, Items]:
    """Any bits before; after, as many of them are others."""
    rng = np.random.default_rng(count)
    old = np.frombuffer(rng.bytes(count * np.dtype(dtype).itemsize), dtype)
    new = old.copy()
    there = rng.choice(count, changed, replace=False)
    new[there] ^= rng.integers(1, 200, changed).astype(dtype)
    return old, new


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_finds_what_the_processor_finds(device: str) -> None:
    for dtype, count, changed in (("<u1", 0, 0), ("<u2", 1003, 0), ("<u4", 1003, 90), ("<u8", 1003, 1003)):
        old, new = pair(dtype, count, changed)
        found, right = build_change_finder(torch.device(device))(old, new), find_changes(old, new)
        assert [part.dtype for part in found] == [part.dtype for part in right]
        assert [part.tolist() for part in found] == [part.tolist() for part in right]


@pytest.mark.parametrize("device", DEVICES)
def test_a_delta_of_what_a_device_found_has_the_same_bytes(device: str) -> None:
    old, new = pair("<u2", 100_003, 2_000)
    before, after = ({"w": Tensor("BF16", (100_003,), memoryview(one.tobytes()))} for one in (old, new))
    made = [
        encode_delta(before, after, Label("p", 0, 1, 2), block_items=5_000, find=find)
        for find in (find_changes, build_change_finder(torch.device(device)))
    ]
    assert made[0] == made[1]


def test_a_trainer_on_the_processor_asks_no_device() -> None:
    assert choose_change_finder("cpu") is find_changes
