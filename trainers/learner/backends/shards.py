"""A checkpoint in parts: each process stores its own shards, and reads the shards that it needs.

torch's distributed checkpoint (`torch.distributed.checkpoint`) plans which process stores and reads which shard; this
module connects it to the object store. Parts are safetensors objects, named by their content hash like all objects;
the metadata is an index in JSON. One process stores the tensors that are equal on all processes.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner, WriteItemType
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from headrace.infra.run.run import Run
from headrace.infra.store.object_sources import ObjectSource
from headrace.infra.store.object_store import StoreUnavailable
from headrace.infra.weights.tensor_file import read_safetensors, split_safetensors
from headrace.infra.weights.tensors import Tensor
from headrace.schemas.records import ClaimCheck, NamedObject
from headrace.trainers.learner.checkpoint import CheckpointError, Json, Stored
from headrace.trainers.learner.model import TORCH_DTYPES, from_torch, to_torch
from headrace.trainers.learner.shard_index import Cut, Index, Piece, encode_index, name_of_piece

T = TypeVar("T")
Tensors: TypeAlias = Mapping[str, torch.Tensor]
"""Tensors by name: DTensors, of which this process holds a piece, or tensors that are equal on all processes."""
CHECKPOINT_PART_BYTES = 1 << 30
"""Largest part: a reader holds a part in memory, and a writer sends it again whole after a failure of the store."""


def store_parts(
    run: Run,
    tensors: Tensors,
    metadata: Mapping[str, Json],
    group: dist.ProcessGroup,
    given_up: threading.Event | None = None,
    *,
    part_bytes: int = CHECKPOINT_PART_BYTES,
) -> Stored | None:
    """Store this process's pieces of these tensors; when all are done, return the checkpoint in the first process.

    Every process of the group (gloo) must call it with the same names; each waits while the store is unreachable. An
    error of one process is raised in all processes: those of `Run.put`.
    """
    writer = _Writer(run, metadata, given_up, part_bytes)
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    try:
        # Sorted, because the order decides which process stores equal tensors, and equal states must give equal
        # objects.
        save(dict(sorted(tensors.items())), storage_writer=writer, planner=planner, process_group=group)
    except CheckpointException as error:
        _raise_cause(error)
    return writer.stored


def read_parts(
    objects: ObjectSource, index: Index, parts: Sequence[NamedObject], room: Tensors, group: dist.ProcessGroup | None
) -> Tensors:
    """Fill `room`, this process's pieces of an index's tensors, from the parts that contain them; return it.

    Every process of the group must call it with the same names; without a group, a single process reads all. An error
    of one process is raised in all processes: ObjectMissing, ObjectCorrupt, StoreUnavailable, WeightsError, and
    CheckpointError for parts that do not match the index.
    """
    reader = _Reader(objects, index, parts)
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    found = dict(room)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # which is intended
            load(found, storage_reader=reader, planner=planner, process_group=group, no_dist=group is None)
    except CheckpointException as error:
        _raise_cause(error)
    return found


class _Writer(StorageWriter):
    """Writes one process's parts. The first process also writes the index, when all others are done."""

    def __init__(
        self, run: Run, metadata: Mapping[str, Json], given_up: threading.Event | None, part_bytes: int
    ) -> None:
        self._run, self._metadata = run, metadata
        self._given_up, self._part_bytes = given_up, part_bytes
        self._rank = 0
        self.stored: Stored | None = None

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing is left of an earlier one."""

    def set_up_storage_writer(self, is_coordinator: bool, *_args: Any, **kwargs: Any) -> None:  # noqa: ARG002 - torch's
        """Note whether this is the first process."""
        self._rank = int(kwargs.get("rank", 0))

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Leave it as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Leave them as they are."""
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Store this process's items of the plan, in as many parts as needed."""
        results: list[WriteResult] = []
        number = 0
        for kind in (WriteItemType.SHARD, WriteItemType.TENSOR):  # in separate parts
            pieces = {item.index: planner.resolve_data(item) for item in plan.items if item.type is kind}
            for part in _cut_up(pieces, self._part_bytes):
                results += self._store(part, number)
                number += 1
        return _as_future(results)

    def _store(self, part: Mapping[MetadataIndex, Tensor], number: int) -> list[WriteResult]:
        if self._given_up is not None and self._given_up.is_set():
            raise StoreUnavailable(
                "the trainer gave up storing a checkpoint before all its parts were stored: if this repeats, check the "
                "object store"
            )
        named = {_name_of(index): tensor for index, tensor in part.items()}
        claim = self._run.put(split_safetensors(named, {}), "checkpoints", ".safetensors", self._given_up)
        stored = NamedObject(f"{self._rank:05}-{number:05}.safetensors", claim)
        return [WriteResult(index, tensor.data.nbytes, stored) for index, tensor in part.items()]

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Store the index, in the first process."""
        held = {(one.index.fqn, one.index.offset): one.storage_data for some in results for one in some}
        cuts = {name: _cut_of(name, one, held) for name, one in metadata.state_dict_metadata.items()}
        claim = self._run.put(encode_index(Index(cuts, self._metadata)), "checkpoints", ".json", self._given_up)
        parts = {stored.name: stored for stored in held.values()}
        self.stored = Stored(claim, tuple(parts[name] for name in sorted(parts)))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:  # noqa: ARG003 - objects are named by their content
        """Return None: there is nothing to choose."""
        return False


class _Reader(StorageReader):
    """Reads one process's pieces."""

    def __init__(self, objects: ObjectSource, index: Index, parts: Sequence[NamedObject]) -> None:
        self._objects, self._index = objects, index
        self._claims: dict[str, ClaimCheck] = {part.name: part.claim for part in parts if part.claim is not None}
        self._pieces = {
            (name, torch.Size(piece.offsets)): piece for name, cut in index.tensors.items() for piece in cut.pieces
        }

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing is left of an earlier one."""

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        """Return the index as torch's metadata."""
        return Metadata({name: _metadata_of(cut) for name, cut in self._index.tensors.items()})

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_args: Any, **_kwargs: Any) -> None:
        """Do nothing: the index is enough."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Leave it as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Leave them as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the parts that the plan names, one after the other."""
        wanted: defaultdict[str, list[ReadItem]] = defaultdict(list)
        for item in plan.items:
            wanted[self._piece_of(item).part].append(item)
        for name, items in wanted.items():
            if name not in self._claims:
                raise CheckpointError(
                    f"the index of the checkpoint names the part {name[:80]!r}, but the checkpoint's record on the "
                    "topic `state` does not"
                )
            part = read_safetensors(self._objects.get(self._claims[name]))
            for item in items:
                self._copy(item, part, planner)
        return _as_future(None)

    def _copy(self, item: ReadItem, part: Mapping[str, Tensor], planner: LoadPlanner) -> None:
        piece, tensor = self._piece_of(item), part.get(_name_of(item.storage_index))
        expected = self._index.tensors[item.storage_index.fqn].dtype, piece.sizes
        if tensor is None or (tensor.dtype, tensor.shape) != expected:
            has = "lacks it" if tensor is None else f"has it as {tensor.dtype} {list(tensor.shape)}"
            raise CheckpointError(
                f"part {piece.part} of the checkpoint must have the tensor {_name_of(item.storage_index)[:80]!r} as "
                f"{expected[0]} {list(expected[1])}, but {has}"
            )
        source = to_torch(tensor)
        for dimension, (begin, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            source = source.narrow(dimension, begin, length)
        target = planner.resolve_tensor(item).detach()
        target.copy_(source)
        planner.commit_tensor(item, target)

    def _piece_of(self, item: ReadItem) -> Piece:
        index = item.storage_index
        assert index.offset is not None  # noqa: S101 - as of every tensor
        return self._pieces[index.fqn, index.offset]

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:  # noqa: ARG003 - a record names what is read
        """Return None: there is nothing to choose."""
        return False


def _cut_up(pieces: Mapping[MetadataIndex, Any], part_bytes: int) -> Iterator[dict[MetadataIndex, Tensor]]:
    """Yield the pieces in parts of at most `part_bytes`, or of one piece. Pieces without elements are left out."""
    part: dict[MetadataIndex, Tensor] = {}
    size = 0
    for index, piece in pieces.items():
        tensor = from_torch(piece)
        if part and size + tensor.data.nbytes > part_bytes:
            yield part
            part, size = {}, 0
        if tensor.data.nbytes:
            part[index] = tensor
            size += tensor.data.nbytes
    if part:
        yield part


def _name_of(index: MetadataIndex) -> str:
    return name_of_piece(index.fqn, tuple(index.offset or ()))


def _cut_of(name: str, metadata: Any, held: Mapping[tuple[str, torch.Size | None], NamedObject]) -> Cut:
    """Return the places of a tensor's pieces, without pieces that have no elements."""
    pieces = (
        Piece(tuple(chunk.offsets), tuple(chunk.sizes), held[name, chunk.offsets].name)
        for chunk in metadata.chunks
        if math.prod(chunk.sizes)
    )
    (dtype,) = (known for known, one in TORCH_DTYPES.items() if one is metadata.properties.dtype)
    return Cut(dtype, tuple(metadata.size), tuple(pieces))


def _metadata_of(cut: Cut) -> TensorStorageMetadata:
    chunks = [ChunkStorageMetadata(torch.Size(piece.offsets), torch.Size(piece.sizes)) for piece in cut.pieces]
    return TensorStorageMetadata(TensorProperties(TORCH_DTYPES[cut.dtype]), torch.Size(cut.shape), chunks)


def _as_future(value: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return future


def _raise_cause(error: CheckpointException) -> NoReturn:
    """Raise the error of the first process that failed."""
    rank = min(error.failures)
    cause = error.failures[rank][0]
    cause.add_note(f"raised in the trainer's process {rank}")
    raise cause from None
