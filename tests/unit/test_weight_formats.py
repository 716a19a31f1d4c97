"""The formats that the benchmark compares: each gives back every bit, or its size would mean nothing."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.weight_formats import FORMATS, Format, encode_gaps_zstd, encode_raw
from benchmarks.weight_sets import PackedWeights
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
