"""The formats that the benchmark compares: each gives back every bit, or its size would mean nothing."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks import weight_sets
from benchmarks.weight_formats import FORMATS, Format, encode_gaps_zstd, encode_raw
from benchmarks.weight_sets import PackedWeights, change_between, made, pack_weights, qwen3_shapes, successor
from hypothesis import given, settings
from hypothesis import strategies as st

SHAPES = {"b": (30, 7), "a": (1000,), "empty": (0, 3), "scalar": ()}
ITEMS = 30 * 7 + 1000 + 1


def of(items: np.ndarray) -> PackedWeights:
    return PackedWeights(items.astype(np.uint16), SHAPES)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@given(st.integers(0, 1 << 30), st.sampled_from([0.0, 0.002, 0.05, 1.0]))
@settings(max_examples=8)
def test_what_a_format_applies_is_bit_equal_to_what_it_encoded(form: Format, seed: int, density: float) -> None:
    rng = np.random.default_rng(seed)
    base = of(rng.integers(0, 1 << 16, ITEMS))
    new = of(np.where(rng.random(ITEMS) < density, rng.integers(0, 1 << 16, ITEMS), base.items))
    data, target = form.encoder(base)(new), base.copy()
    form.applier(target)(data)
    assert target.is_equal_to(new)


def test_the_raw_layout_is_six_bytes_a_value_after_sixteen() -> None:
    base = of(np.zeros(ITEMS))
    new = base.copy()
    new.items[[2, 500]] = 0x3F80, 0xBF80
    assert encode_raw(base.items, new.items) == bytes.fromhex(
        "0200000000000000 0200 0000 00000000 02000000 f4010000 803f 80bf"
    )
    assert encode_gaps_zstd(base.items, base.items)  # no change at all


def test_made_sets_have_the_shape_and_the_density_that_were_asked_for() -> None:
    whole = sum(int(np.prod(shape)) for shape in qwen3_shapes(1.7e9).values())
    assert whole == 1_720_574_976
    shapes = qwen3_shapes(3e6)
    base = made(shapes)
    assert 2e6 < len(base.items) < 4e6
    assert set(base.tensors) == set(shapes)
    new = successor(base, 0.01)
    change = change_between(base, new)
    assert change.changed == np.count_nonzero(base.items != new.items)
    assert change.density == pytest.approx(0.01, rel=0.05)
    # H(0.01) / 0.01 bits for a position, 1.72 for a step
    assert change.floor_bytes / change.changed == pytest.approx((8.079 + 1.722) / 8, rel=0.01)
    assert pack_weights(base.tensors).is_equal_to(base)


@pytest.mark.parametrize("density", [0.001, 0.01])
def test_no_format_gets_below_the_entropy_of_a_made_up_update(density: float) -> None:
    """A made-up update that repeats itself flatters whoever compresses: it did once, by a third."""
    base = made({"only": (8 * weight_sets.CHUNK,)})
    new = successor(base, density)
    floor = change_between(base, new).floor_bytes
    sizes = {form.name: len(form.encoder(base)(new)) for form in FORMATS}
    assert min(sizes.values()) == sizes["headrace"]
    assert floor < sizes["headrace"] < 1.15 * floor
    assert sizes["gaps + zstd"] > 1.8 * floor


def test_a_floor_counts_each_tensor_at_its_own_density(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_sets, "CHUNK", 100)
    base = of(np.zeros(ITEMS))
    new = base.copy()
    new.items[:500] = np.where(np.arange(500) % 2, 1, 0)  # half of half of `a`, by one step
    change = change_between(base, new)
    quarter = 0.25 * 2 + 0.75 * np.log2(4 / 3)
    assert change.floor_bytes == pytest.approx(1000 * quarter / 8)
    assert change_between(base, base).floor_bytes == 0
