"""Delta objects: what changed between two sets of weights, as one file with a checksum.

Layout: eight bytes that mark the format, the header's length (u64, little-endian), the header as JSON in a zstd frame,
the streams in the header's order, and BLAKE3 (32 bytes) of everything before. A tensor is left out when it is equal in
both sets, given as the changes of its blocks (`infra/weights/coding.py`), or whole, where those would take more than
itself. The page of the format is docs/weights.md.

A delta may only be applied to its base; `infra/weights/held.py` checks that.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np
from blake3 import blake3

from headrace.infra.weights.coding import (
    BLOCK_ITEMS,
    Coded,
    FindChanges,
    Items,
    compress,
    decode_block,
    decompress,
    encode_block,
    find_changes,
)
from headrace.infra.weights.delta_header import DELTA_FORMAT, Header, Label, TensorHead, head_of, read_header
from headrace.infra.weights.tensors import ITEM_BYTES, Tensor, WeightsError, hash_weights

DELTA_MAGIC = b"HRDELTA\n"
_LENGTH_BYTES, _DIGEST_BYTES = 8, 32
_MOST_HEADER_BYTES = 100_000_000
_MOST_THREADS = 8
T = TypeVar("T")


class NeedsAnchor(WeightsError):
    """Two sets of weights do not have the same tensors: no delta leads from one to the other."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A delta object whose own checksum is right. `payload` is a view into it."""

    header: Header
    payload: memoryview


def count_threads() -> int:
    """Return how many threads work on blocks."""
    return min(_MOST_THREADS, len(os.sched_getaffinity(0)))


def items_of(tensor: Tensor) -> Items:
    """Return a tensor's items as unsigned integers, without a copy; they can be written where its bytes can."""
    return np.frombuffer(tensor.data, f"<u{ITEM_BYTES[tensor.dtype]}")


def encode_delta(
    base: Mapping[str, Tensor],
    new: Mapping[str, Tensor],
    label: Label,
    *,
    hashes: tuple[str, str] | None = None,
    block_items: int = BLOCK_ITEMS,
    find: FindChanges = find_changes,
) -> bytes:
    """Return the delta object that leads from `base` to `new`; equal input gives equal bytes.

    Args:
        base: Every tensor before the change.
        new: Every tensor after it, with the same names, dtypes and shapes. A tensor that is the same Python object as
            in `base` has not changed.
        label: Is written into the header.
        hashes: `hash_weights` of base and new where they are known; otherwise they are computed.
        block_items: Number of items of one block.
        find: Finds what changed in a block; called by the threads.

    Raises NeedsAnchor when a tensor appears, vanishes or changes its dtype or shape.
    """
    require_same_layout(base, new)
    names = [name for name in sorted(new) if new[name] is not base[name]]
    with ThreadPoolExecutor(count_threads()) as pool:
        pairs = [(base[name], new[name]) for name in names]
        coded = dict(zip(names, _encode_blocks(pool, pairs, block_items, find), strict=True))
    base_hash, new_hash = hashes or (hash_weights(base), hash_weights(new))
    heads, pieces = [], []
    for name, blocks in coded.items():
        if any(block.changed for block in blocks):
            head, streams = _encode_tensor(name, new[name], blocks)
            heads.append(head)
            pieces += streams
    header = Header(
        format=DELTA_FORMAT,
        label=label,
        base_hash=base_hash,
        weights_hash=new_hash,
        items=sum(len(items_of(tensor)) for tensor in new.values()),
        block_items=block_items,
        tensors=tuple(heads),
    )
    return seal_delta(header, pieces)


def require_same_layout(base: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> None:
    """Raise NeedsAnchor, naming a tensor, unless both sets have the same names, dtypes and shapes."""
    for name in sorted(base.keys() ^ new.keys()):
        raise NeedsAnchor(
            "a delta needs the same tensors in both weights, but "
            f"tensor {name!r} is only in the {'base' if name in base else 'new'} weights"
        )
    for name, tensor in new.items():
        if (tensor.dtype, tensor.shape) != (base[name].dtype, base[name].shape):
            was, now = (f"{one.dtype} {list(one.shape)}" for one in (base[name], tensor))
            raise NeedsAnchor(
                f"a delta needs the same dtypes and shapes in both weights, but tensor {name!r} was {was} and is {now}"
            )


def seal_delta(header: Header, pieces: Iterable[bytes | memoryview]) -> bytes:
    """Join header and streams, and put the checksum of all of it at the end."""
    text = compress(header.encode())
    whole = [DELTA_MAGIC, len(text).to_bytes(_LENGTH_BYTES, "little"), text, *pieces]
    digest = blake3(max_threads=blake3.AUTO)
    for piece in whole:
        digest.update(piece)
    return b"".join([*whole, digest.digest()])


def read_delta(data: bytes | memoryview) -> Delta:
    """Return the header and streams of a delta object as views into it; nothing is decompressed yet.

    Raises WeightsError for anything but a complete, unaltered object of this format.
    """
    view = memoryview(data)
    start = len(DELTA_MAGIC) + _LENGTH_BYTES
    if len(view) < start + _DIGEST_BYTES or view[: len(DELTA_MAGIC)] != DELTA_MAGIC:
        raise WeightsError(
            "this is not a delta object: it is too short or begins with other bytes. Give a file that Headrace wrote "
            "as a delta"
        )
    body, digest = view[:-_DIGEST_BYTES], view[-_DIGEST_BYTES:]
    if blake3(body, max_threads=blake3.AUTO).digest() != digest:
        raise WeightsError(
            "the delta object was cut short or changed: its checksum does not match its bytes. Fetch it again"
        )
    length = int.from_bytes(view[len(DELTA_MAGIC) : start], "little")
    frame, payload = body[start : start + length], body[start + length :]
    return Delta(read_header(decompress(frame, _MOST_HEADER_BYTES), len(payload)), payload)


def apply_delta(delta: Delta, named: Mapping[str, Tensor]) -> None:
    """Write the new values into the tensors, whose memory must be writable. Does not check that they are the base.

    Raises WeightsError before anything is written when a tensor is missing or has another dtype or shape, and when a
    stream does not fit the header, which only a defect of the encoder can cause: then some tensors are changed already.
    """
    require_fits(delta.header, named)
    with ThreadPoolExecutor(count_threads()) as pool:
        for _ in run_in_order(pool, _list_tasks(delta, named)):
            pass


def require_fits(header: Header, named: Mapping[str, Tensor]) -> None:
    """Raise WeightsError unless the tensors that a delta changes are there with its dtypes and shapes."""
    for head in header.tensors:
        found = named.get(head.name)
        if found is None or (found.dtype, found.shape) != (head.dtype, head.shape):
            has = "no such tensor" if found is None else f"{found.dtype} {list(found.shape)}"
            raise WeightsError(
                f"the delta changes tensor {head.name!r} as {head.dtype} {list(head.shape)}, but the weights have {has}"
            )


def split_delta(delta: Delta) -> Iterator[tuple[TensorHead, list[Coded] | memoryview]]:
    """Return each tensor that changed with its coded blocks, or its bytes when it is whole."""
    at = 0
    for head in delta.header.tensors:
        if not head.blocks:
            yield head, delta.payload[at : at + head.payload_bytes]
            at += head.payload_bytes
            continue
        coded = []
        for block in head.blocks:
            ends = list(accumulate(block.sizes, initial=at))
            streams = tuple(delta.payload[begin:end] for begin, end in pairwise(ends))
            coded.append(Coded(block.changed, block.digit_bytes, block.digits, block.code_bits, block.escapes, streams))
            at = ends[-1]
        yield head, coded


def _encode_blocks(
    pool: ThreadPoolExecutor, pairs: list[tuple[Tensor, Tensor]], block_items: int, find: FindChanges
) -> Iterator[list[Coded]]:
    """Code all blocks of all tensors, in order."""

    def code(old: Items, new: Items) -> Coded:
        return encode_block(*find(old, new))

    def tasks() -> Iterator[Callable[[], Coded]]:
        for before, after in pairs:
            old, new = items_of(before), items_of(after)
            for begin in range(0, len(old), block_items):
                block = slice(begin, begin + block_items)
                yield partial(code, old[block], new[block])

    coded = run_in_order(pool, tasks())
    for before, _ in pairs:
        blocks = -(-len(items_of(before)) // block_items)
        yield [next(coded) for _ in range(blocks)]


def _encode_tensor(name: str, new: Tensor, blocks: list[Coded]) -> tuple[TensorHead, list[bytes | memoryview]]:
    changed = sum(block.changed for block in blocks)
    streams = [stream for block in blocks for stream in block.streams]
    if sum(map(len, streams)) >= new.data.nbytes:
        return TensorHead(name, new.dtype, new.shape, changed, ()), [new.data]
    return head_of(name, new.dtype, new.shape, blocks), streams


def _list_tasks(delta: Delta, named: Mapping[str, Tensor]) -> Iterator[Callable[[], None]]:
    for head, content in split_delta(delta):
        items = items_of(named[head.name])
        if isinstance(content, memoryview):
            yield partial(np.copyto, items.view(np.uint8), np.frombuffer(content, np.uint8))
            continue
        for number, coded in enumerate(content):
            begin = number * delta.header.block_items
            block = items[begin : begin + delta.header.block_items]
            yield partial(add_changes, block, coded)


def add_changes(block: Items, coded: Coded) -> None:
    """Add the differences to the items of a block that changed."""
    positions, differences = decode_block(coded, len(block), block.itemsize)
    block[positions] += differences


def run_in_order(pool: ThreadPoolExecutor, tasks: Iterable[Callable[[], T]]) -> Iterator[T]:
    """Run tasks on the pool and yield their results in order; only a few tasks are started ahead of the next result."""
    ahead: deque[Future[T]] = deque()
    for task in tasks:
        ahead.append(pool.submit(task))
        if len(ahead) > 2 * _MOST_THREADS:
            yield ahead.popleft().result()
    while ahead:
        yield ahead.popleft().result()
