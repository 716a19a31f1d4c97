"""Deltas: exact whatever the bits are, applied where they belong and nowhere else, refused when one byte is another."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.infra.weights.coding import decode_block, encode_block, find_changes, zstd
from headrace.infra.weights.delta import DELTA_MAGIC, Label, NeedsAnchor, encode_delta, read_delta
from headrace.infra.weights.held import HeldWeights, WrongBase
from headrace.infra.weights.tensors import ITEM_BYTES, Tensor, WeightsError, hash_weights

Weights = dict[str, Tensor]
DTYPES = ("BF16", "F16", "F32", "I64", "U8")


def tensor(dtype: str, shape: tuple[int, ...], data: bytes) -> Tensor:
    return Tensor(dtype, shape, memoryview(data))


def changed(weights: Weights, density: float, rng: np.random.Generator, *, near: bool = True) -> Weights:
    """Change about so many items of each tensor: by a few units in the last place, or to whatever bits."""
    found = {}
    for name, old in weights.items():
        items = np.frombuffer(old.data, f"<u{ITEM_BYTES[old.dtype]}").copy()
        there = np.flatnonzero(rng.random(len(items)) < density)
        steps = rng.choice([-2, -1, 1, 2], len(there)) if near else rng.integers(-(1 << 62), 1 << 62, len(there))
        items[there] += steps.astype(items.dtype)
        found[name] = tensor(old.dtype, old.shape, items.tobytes())
    return found


def made(seed: int, shapes: dict[str, tuple[str, tuple[int, ...]]]) -> Weights:
    rng = np.random.default_rng(seed)
    return {
        name: tensor(dtype, shape, rng.bytes(int(np.prod(shape)) * ITEM_BYTES[dtype]))
        for name, (dtype, shape) in shapes.items()
    }


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, tuple[str, tuple[int, ...]]]:
    names = draw(
        st.lists(st.text(min_size=1, max_size=8).filter(lambda name: name.isprintable()), unique=True, max_size=4)
    )
    shape = st.lists(st.integers(0, 40), max_size=3).map(tuple)
    return {name: (draw(st.sampled_from(DTYPES)), draw(shape)) for name in names}


@given(
    layouts(), st.integers(0, 1 << 30), st.sampled_from([0.0, 0.001, 0.03, 0.5, 1.0]), st.booleans(), st.integers(1, 50)
)
@settings(max_examples=25)
def test_a_delta_gives_exactly_the_new_weights_and_applied_again_nothing(
    layout: dict[str, tuple[str, tuple[int, ...]]], seed: int, density: float, near: bool, block_items: int
) -> None:
    base = made(seed, layout)
    new = changed(base, density, np.random.default_rng(seed + 1), near=near)
    delta = read_delta(encode_delta(base, new, Label("p", 1, 4, 5), block_items=block_items))
    held = HeldWeights(base)
    assert held.apply(delta) == (hash_weights(base) != hash_weights(new))
    assert {name: bytes(t.data) for name, t in held.tensors.items()} == {n: bytes(t.data) for n, t in new.items()}
    assert held.weights_hash == hash_weights(new) == delta.header.weights_hash
    assert not held.apply(delta)
    assert delta.header.label == Label("p", 1, 4, 5)


def test_a_tensor_that_a_delta_does_not_pay_for_stands_whole_and_an_equal_one_not_at_all() -> None:
    base = made(0, {"a": ("F32", (4000,)), "b": ("BF16", (4000,)), "c": ("BF16", (4000,))})
    rng = np.random.default_rng(1)
    new = {
        "a": changed(base, 1, rng, near=False)["a"],
        "b": changed(base, 0.01, rng)["b"],
        "c": base["c"],
    }
    data = encode_delta(base, new, Label())
    header = read_delta(data).header
    assert [(head.name, bool(head.blocks)) for head in header.tensors] == [("a", False), ("b", True)]
    assert len(data) < 16_000 + 1500


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"a": ("BF16", (4,))}, "tensor 'b' is only in the base weights"),
        ({"a": ("BF16", (4,)), "b": ("F32", (2,)), "c": ("F32", (1,))}, "tensor 'c' is only in the new weights"),
        ({"a": ("BF16", (4,)), "b": ("F32", (1, 2))}, r"tensor 'b' was F32 \[2\] and is F32 \[1, 2\]"),
        ({"a": ("F16", (4,)), "b": ("F32", (2,))}, r"tensor 'a' was BF16 \[4\] and is F16 \[4\]"),
    ],
)
def test_tensors_that_appear_vanish_or_change_need_an_anchor(
    other: dict[str, tuple[str, tuple[int, ...]]], says: str
) -> None:
    with pytest.raises(NeedsAnchor, match=says):
        encode_delta(made(0, {"a": ("BF16", (4,)), "b": ("F32", (2,))}), made(1, other), Label())


@pytest.fixture
def pair() -> tuple[Weights, Weights]:
    base = made(5, {"a": ("BF16", (6, 10)), "b": ("F32", (7,))})
    return base, changed(base, 0.5, np.random.default_rng(6))


def test_every_byte_that_is_flipped_missing_or_swapped_is_refused(pair: tuple[Weights, Weights]) -> None:
    data = encode_delta(*pair, Label("p", 0, 1, 2))
    damaged = [data[:n] for n in range(len(data))] + [data + b"\0", data[1:], b""]
    damaged += [data[:n] + bytes([data[n] ^ 1 << n % 8]) + data[n + 1 :] for n in range(len(data))]
    damaged += [
        data[:n] + data[n + 1 : n + 2] + data[n : n + 1] + data[n + 2 :]
        for n in range(len(data) - 1)
        if data[n] != data[n + 1]
    ]
    for one in damaged:
        with pytest.raises(WeightsError):
            read_delta(one)


def test_a_delta_on_other_weights_is_refused_and_they_stay_as_they_are(pair: tuple[Weights, Weights]) -> None:
    base, new = pair
    delta = read_delta(encode_delta(base, new, Label()))
    other = changed(base, 0.5, np.random.default_rng(9))
    held = HeldWeights(other)
    with pytest.raises(WrongBase, match="but the weights here have"):
        held.apply(delta)
    assert held.weights_hash == hash_weights(held.tensors) == hash_weights(other)


def test_a_delta_with_the_hashes_of_another_is_found_out_and_what_it_gave_is_never_used(
    pair: tuple[Weights, Weights],
) -> None:
    base, new = pair
    wrong = changed(base, 0.5, np.random.default_rng(9))
    delta = read_delta(encode_delta(base, new, Label(), hashes=(hash_weights(base), hash_weights(wrong))))
    held = HeldWeights(base)
    with pytest.raises(WeightsError, match="but its header says"):
        held.apply(delta)
    assert not held.weights_hash
    with pytest.raises(WrongBase, match="no hash, because a delta damaged them"):
        held.apply(delta)


def test_memory_that_changed_under_its_hash_is_found_before_a_delta_is_applied(pair: tuple[Weights, Weights]) -> None:
    base, new = pair
    held = HeldWeights(base)
    held.tensors["a"].data[3] ^= 1
    with pytest.raises(WeightsError, match="something changed them"):
        held.apply(read_delta(encode_delta(base, new, Label())))
    assert not held.weights_hash


def test_weights_that_are_not_what_was_said_of_them_are_not_held(pair: tuple[Weights, Weights]) -> None:
    with pytest.raises(WeightsError, match=r"but .* was recorded"):
        HeldWeights(pair[0], hash_weights(pair[1]))


def resealed(data: bytes, header: object) -> bytes:
    """Put another header into a delta object, under a right checksum."""
    length = int.from_bytes(data[8:16], "little")
    text = zstd.compress(json.dumps(header).encode())
    body = DELTA_MAGIC + len(text).to_bytes(8, "little") + text + data[16 + length : -32]
    return body + blake3(body).digest()


def test_a_header_whose_numbers_cannot_be_is_refused_before_memory_is_taken(pair: tuple[Weights, Weights]) -> None:
    data = encode_delta(*pair, Label())
    good = json.loads(zstd.decompress(data[16 : 16 + int.from_bytes(data[8:16], "little")]))
    assert read_delta(resealed(data, good)).header == read_delta(data).header

    def refused(*path: str | int, to: object) -> None:
        header = json.loads(json.dumps(good))
        table = header
        for step in path[:-1]:
            table = table[step]
        table[path[-1]] = to
        with pytest.raises(WeightsError):
            read_delta(resealed(data, header))

    block = ("tensors", 0, "blocks", 0)
    for number in (-1, 1 << 60):
        for key in ("changed", "digit_bytes", "digits", "code_bits", "escapes"):
            refused(*block, key, to=number)
        refused("tensors", 0, "shape", to=[number])
        refused("tensors", 0, "changed", to=number)
        refused("block_items", to=number)
    refused(*block, "sizes", to=[1, 2])
    refused("tensors", 0, "dtype", to="F7")
    refused("tensors", 1, "name", to=good["tensors"][0]["name"])
    refused("tensors", to=good["tensors"][:1])
    refused("format", to=2)
    for wrong in (None, "", "0" * 63, "0" * 65, "G" * 64):
        refused("base_hash", to=wrong)
        refused("weights_hash", to=wrong)
    refused("tensors", 0, "shape", to=[1 << 40, 1 << 40])
    with pytest.raises(WeightsError, match="use the build that wrote it"):
        read_delta(resealed(data, {**good, "format": 2}))
    for other in ([], "", 0, None):
        with pytest.raises(WeightsError):
            read_delta(resealed(data, other))
    with pytest.raises(WeightsError, match="must be one zstd frame of at most"):
        read_delta(resealed(data, " " * 100_000_001))


def test_streams_that_are_not_what_the_header_says_are_refused() -> None:
    rng = np.random.default_rng(0)
    old = rng.integers(0, 1 << 16, 1000).astype("<u2")
    new = old.copy()
    new[::7] += 40
    coded = encode_block(*find_changes(old, new))
    gaps, codes, escapes = coded.streams
    for wrong in (
        replace(coded, changed=coded.changed - 1),
        replace(coded, digits=coded.digits + 1),
        replace(coded, streams=(codes, codes, escapes)),
        replace(coded, streams=(gaps, escapes, codes)),
        replace(coded, streams=(gaps, codes, b"")),
        replace(coded, streams=(gaps, bytes(codes)[:-3], escapes)),
        replace(coded, escapes=coded.escapes + 1),
    ):
        with pytest.raises(WeightsError):
            decode_block(wrong, 1000, 2)
    with pytest.raises(WeightsError, match=r"its header says \d+ changes of 900 items"):
        decode_block(coded, 900, 2)


def test_the_example_of_the_page_is_what_the_code_writes() -> None:
    text = (Path(__file__).parents[2] / "docs" / "weights.md").read_text()
    block = re.search(r"<!-- example -->\n```\n(.*?)```", text, re.DOTALL)
    assert block
    page = {line[:12].strip(): list(map(int, line[12:].split())) for line in block[1].splitlines()}
    old = np.full(1000, 0x3F80, "<u2")
    new = old.copy()
    new[page["positions"]] += np.array(page["steps"], "<i2").view("<u2")
    coded = encode_block(*find_changes(old, new))
    digits, codes, escapes = (list(zstd.decompress(stream)) for stream in coded.streams)
    assert (page["digits"], page["code bytes"], escapes) == (digits, codes, [])
    gaps = np.diff(page["positions"], prepend=-1) - 1
    assert page["gaps"] == gaps.tolist()
    folded = [code + 1 for byte in codes for code in (byte >> 4, byte & 15)]
    assert page["folded"] == folded == [2 * step if step > 0 else -2 * step - 1 for step in page["steps"]]


@pytest.mark.parametrize(("dtype", "offset"), [("BF16", 1), ("F16", 8), ("F32", 2), ("I64", 3)])
def test_tensors_may_lie_anywhere_in_memory(dtype: str, offset: int) -> None:
    def moved(weights: Weights) -> Weights:
        """Put a tensor's bytes where a file with an odd header would leave them."""
        data = weights["w"].data
        room = memoryview(bytearray(offset + data.nbytes))
        room[offset:] = data
        return {"w": Tensor(dtype, weights["w"].shape, room[offset:])}

    base = moved(made(1, {"w": (dtype, (1003,))}))
    new = moved(changed(base, 0.05, np.random.default_rng(2)))
    held = HeldWeights(base, copy=False)
    held.apply(read_delta(encode_delta(base, new, Label(), block_items=100)))
    assert bytes(held.tensors["w"].data) == bytes(new["w"].data)


def test_gaps_may_be_longer_than_a_digit_of_two_bytes() -> None:
    old = np.zeros(400_000, "<u4")
    new = old.copy()
    new[[0, 65_535, 65_536, 200_000, 399_999]] = 1, 2, 3, 1 << 31, 5
    coded = encode_block(*find_changes(old, new))
    assert (coded.digit_bytes, coded.changed) == (2, 5)
    assert coded.digits > 5
    positions, differences = decode_block(coded, len(old), 4)
    old[positions] += differences
    assert (old == new).all()


def test_a_frame_behind_a_stream_is_refused_and_never_unpacked() -> None:
    coded = encode_block(np.array([1, 5], np.int32), np.array([1, 1], "<u2"))
    more = zstd.compress(bytes(1 << 20))
    for number, stream in enumerate(coded.streams):
        streams = (*coded.streams[:number], bytes(stream) + more, *coded.streams[number + 1 :])
        with pytest.raises(WeightsError, match="must be one zstd frame"):
            decode_block(replace(coded, streams=streams), 10, 2)
