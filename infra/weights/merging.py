"""Several consecutive deltas merged into one, which a worker many versions behind fetches instead of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from headrace.infra.weights.coding import Coded, Items, encode_block, find_changes
from headrace.infra.weights.delta import (
    Delta,
    add_changes,
    count_threads,
    run_in_order,
    seal_delta,
    split_delta,
)
from headrace.infra.weights.delta_header import Header, TensorHead, head_of
from headrace.infra.weights.tensors import ITEM_BYTES, WeightsError

MergedContent = list[Coded] | memoryview


def merge_deltas(deltas: Sequence[Delta], *, thread_count: int | None = None) -> bytes:
    """Return one delta object from the base of the first to the result of the last.

    The changes of an item are added, modulo 2^bits; an item whose sum is zero is left out. No weights are needed for
    that. Raises WeightsError when the base of a delta is not the result of the one before.
    """
    _require_chain(deltas)
    parts: dict[str, list[tuple[TensorHead, MergedContent]]] = {}
    for delta in deltas:
        for head, content in split_delta(delta):
            # A whole tensor replaces all that came before it.
            before = [] if isinstance(content, memoryview) else parts.get(head.name, [])
            if before and (before[-1][0].dtype, before[-1][0].shape) != (head.dtype, head.shape):
                raise WeightsError(
                    f"tensor {head.name!r} has different dtypes or shapes in the deltas: they do not form a chain"
                )
            parts[head.name] = [*before, (head, content)]
    heads: list[TensorHead] = []
    pieces: list[bytes | memoryview] = []
    with ThreadPoolExecutor(thread_count or count_threads()) as pool:
        for name in sorted(parts):
            merged = _merge_tensor(pool, parts[name], deltas[0].header.block_items)
            if merged is not None:
                head, streams = merged
                heads.append(head)
                pieces += streams
    first, last = deltas[0].header, deltas[-1].header
    label = replace(last.label, base_version=first.label.base_version)
    return seal_delta(replace(last, base_hash=first.base_hash, label=label, tensors=tuple(heads)), pieces)


def _require_chain(deltas: Sequence[Delta]) -> None:
    if not deltas:
        raise WeightsError("there is nothing to merge: name the deltas, in order")
    for one, other in pairwise(delta.header for delta in deltas):
        if other.base_hash != one.weights_hash or other.block_items != one.block_items:
            wrong = f"the delta of version {other.label.version} {_describe_break(one, other)}"
            raise WeightsError(f"the deltas do not form a chain: {wrong}")


def _describe_break(one: Header, other: Header) -> str:
    """Return in what a delta does not continue the one before it."""
    if other.base_hash != one.weights_hash:
        return f"needs weights with hash {other.base_hash}, but the delta before it makes {one.weights_hash}"
    return f"has blocks of {other.block_items} items, but the delta before it has blocks of {one.block_items}"


def _merge_tensor(
    pool: ThreadPoolExecutor, parts: list[tuple[TensorHead, MergedContent]], block_items: int
) -> tuple[TensorHead, list[bytes | memoryview]] | None:
    """Return one tensor's changes over all deltas; None when they cancel each other."""
    last, first = parts[-1][0], parts[0][1]
    width = ITEM_BYTES[last.dtype]
    sparse = [content for _, content in parts if not isinstance(content, memoryview)]
    if isinstance(first, memoryview):
        items: Items = np.frombuffer(bytearray(first), f"<u{width}")
        for number, begin in enumerate(range(0, len(items), block_items)):
            for content in sparse:
                add_changes(items[begin : begin + block_items], content[number])
        return replace(last, changed=len(items), blocks=()), [items.view(np.uint8).data]
    total = last.items

    def tasks() -> Iterator[Callable[[], Coded]]:
        for number, begin in enumerate(range(0, total, block_items)):
            size = min(block_items, total - begin)
            yield partial(_merge_block, size, width, [content[number] for content in sparse])

    blocks = list(run_in_order(pool, tasks()))
    if not any(block.changed for block in blocks):
        return None
    return head_of(last.name, last.dtype, last.shape, blocks), [stream for block in blocks for stream in block.streams]


def _merge_block(items: int, width: int, each: list[Coded]) -> Coded:
    """Add up the changes of one block."""
    total: Items = np.zeros(items, f"<u{width}")
    for coded in each:
        add_changes(total, coded)
    return encode_block(*find_changes(np.zeros_like(total), total))
