"""Checkpoints in parts: the index and what is refused as one, how parts are cut, what is read of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from group_checkpoints import Folder

from headrace.infra.weights.tensor_file import encode_safetensors, read_safetensors
from headrace.infra.weights.tensors import WeightsError
from headrace.schemas.records import NamedObject
from headrace.trainers.learner.backends.shards import read_parts, store_parts
from headrace.trainers.learner.checkpoint import CheckpointError, Stored
from headrace.trainers.learner.shard_index import Cut, Index, Piece, decode_index, encode_index

WHOLE = Index(
    {
        "masters/w": Cut("F32", (4, 2), (Piece((0, 0), (3, 2), "a"), Piece((3, 0), (1, 2), "b"))),
        "masters/none": Cut("F32", (0, 2), ()),
        "step/w": Cut("F32", (), (Piece((), (), "b"),)),
    },
    {"version": 3},
)


def test_an_index_is_read_as_it_was_written_and_is_json() -> None:
    data = encode_index(WHOLE)
    assert decode_index(data) == WHOLE
    assert json.loads(data)["metadata"] == {"version": 3}
    assert (WHOLE.parts, WHOLE.shapes["masters/w"]) == ({"a", "b"}, (4, 2))


def changed(**what: Any) -> dict[str, Any]:
    found = json.loads(encode_index(WHOLE))
    found["tensors"]["masters/w"] |= what
    return dict(found)


PIECE = {"offsets": [0, 0], "sizes": [3, 2], "part": "a"}
NO_INDEX: dict[str, Any] = {
    "a list": [],
    "something else": {"metadata": {}, "tensors": {}},
    "a gap": changed(pieces=[PIECE]),
    "a piece twice": changed(pieces=[PIECE, PIECE], shape=[6, 2]),
    "past the end": changed(pieces=[{**PIECE, "offsets": [2, 0]}, {**PIECE, "sizes": [1, 2]}]),
    "other dimensions": changed(pieces=[{"offsets": [0], "sizes": [8], "part": "a"}]),
    "below nothing": changed(shape=[-4, -2]),
    "an unknown dtype": changed(dtype="F31"),
    "no piece": changed(pieces=[3]),
}


@pytest.mark.parametrize("what", NO_INDEX)
def test_what_is_no_index_of_a_whole_checkpoint_is_refused(what: str) -> None:
    with pytest.raises(CheckpointError):
        decode_index(json.dumps(NO_INDEX[what]).encode())


@pytest.mark.parametrize("data", [b"", b"\x80\x05", b"[" * 100_000, encode_index(WHOLE)[:-1]])
def test_bytes_that_are_no_json_are_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError):
        decode_index(data)


@pytest.fixture(scope="module")
def group() -> Iterator[Any]:
    """Of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path))


def tensors() -> dict[str, torch.Tensor]:
    named = {
        f"masters/{number}": torch.randn(100, generator=torch.Generator().manual_seed(number)) for number in range(5)
    }
    return {**named, "masters/none": torch.empty(0, 3), "step/0": torch.tensor(7.0)}


def room() -> dict[str, torch.Tensor]:
    return {name: torch.full_like(tensor, torch.nan) for name, tensor in tensors().items()}


def test_parts_are_of_bounded_size_and_hold_all_and_equal_states_are_equal_objects(folder: Folder, group: Any) -> None:
    found = store_parts(folder.run, tensors(), {"version": 2}, group, part_bytes=900)
    assert found is not None
    assert [len(part_of(folder, part)) for part in found.parts] == [2, 2, 2]
    index = decode_index(folder.get(found.claim))
    assert index.metadata == {"version": 2}
    got = read_parts(folder.run, index, found.parts, room(), None)
    assert all(torch.equal(got[name], tensor) for name, tensor in tensors().items())
    assert store_parts(folder.run, tensors(), {"version": 2}, group, part_bytes=900) == found
    one = store_parts(folder.run, tensors(), {"version": 2}, group)
    assert one is not None
    assert len(one.parts) == 1


def part_of(folder: Folder, part: NamedObject) -> dict[str, Any]:
    assert part.claim is not None
    return dict(read_safetensors(folder.file(part.claim).read_bytes()))


def stored(folder: Folder, group: Any) -> tuple[Index, Stored]:
    found = store_parts(folder.run, tensors(), {"version": 2}, group)
    assert found is not None
    return decode_index(folder.get(found.claim)), found


def test_a_part_that_holds_something_else_than_its_index_says_is_an_error(folder: Folder, group: Any) -> None:
    index, found = stored(folder, group)
    held = part_of(folder, found.parts[0])
    held["masters/3@0"] = replace(held["masters/3@0"], shape=(50, 2))
    other = folder.put(encode_safetensors(held), "checkpoints")
    with pytest.raises(CheckpointError, match="must have the tensor 'masters/3@0' as F32"):
        read_parts(folder.run, index, (replace(found.parts[0], claim=other),), room(), None)
    torn = folder.put(encode_safetensors(held)[:-1], "checkpoints")
    with pytest.raises(WeightsError):
        read_parts(folder.run, index, (replace(found.parts[0], claim=torn),), room(), None)
