import hashlib
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.infra.weights.tensor_file import encode_safetensors, read_metadata, read_safetensors
from headrace.infra.weights.tensors import ITEM_BYTES, Tensor, WeightsError, hash_weights


def tensor(dtype: str, *shape: int, fill: int = 7) -> Tensor:
    return Tensor(dtype, shape, memoryview(bytes([fill]) * (int(np.prod(shape)) * ITEM_BYTES[dtype])))


NAMED = {"b": tensor("BF16", 3, fill=1), "a": tensor("F32", 2, 2), "scalar": tensor("I64"), "empty": tensor("BF16", 0)}

tensors = st.builds(
    lambda dtype, shape, seed: Tensor(
        dtype,
        tuple(shape),
        memoryview(np.random.default_rng(seed).bytes(int(np.prod(shape, dtype=int)) * ITEM_BYTES[dtype])),
    ),
    st.sampled_from(sorted(ITEM_BYTES)),
    st.lists(st.integers(0, 4), max_size=3),
    st.integers(0, 2**32),
)


@settings(max_examples=50)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda n: n != "__metadata__" and "\0" not in n), tensors, max_size=5
    )
)
def test_what_is_written_is_read_back(named: dict[str, Tensor]) -> None:
    data = encode_safetensors(named, {"k": "v"})
    assert read_safetensors(data) == named
    assert read_metadata(data) == {"k": "v"}
    assert hash_weights(read_safetensors(data)) == hash_weights(named)


def test_the_safetensors_library_reads_our_file_and_we_read_its() -> None:
    theirs = dict(safetensors.deserialize(encode_safetensors(NAMED)))  # type: ignore[no-untyped-call]  # untyped there
    assert {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in theirs.items()} == {
        name: (one.dtype, one.shape) for name, one in NAMED.items()
    }
    assert all(bytes(theirs[name]["data"]) == bytes(one.data) for name, one in NAMED.items())
    numbers: dict[str, npt.NDArray[Any]] = {"x": np.array([1, 2, 3], np.int16), "y": np.array(0.5, np.float32)}
    data = safetensors.numpy.save(numbers)
    assert read_safetensors(data) == {
        "x": Tensor("I16", (3,), memoryview(numbers["x"].tobytes())),
        "y": Tensor("F32", (), memoryview(numbers["y"].tobytes())),
    }


def test_the_file_does_not_depend_on_the_order_of_names_and_keeps_tensors_aligned() -> None:
    data = encode_safetensors(NAMED)
    assert data == encode_safetensors(dict(reversed(NAMED.items())))
    address = np.frombuffer(data, np.uint8).ctypes.data
    for one in read_safetensors(data).values():
        if one.data.nbytes:
            assert (np.frombuffer(one.data, np.uint8).ctypes.data - address) % ITEM_BYTES[one.dtype] == 0


def test_the_hash_is_the_documented_one() -> None:
    expected = blake3(b"a\0F32\x002,2\0" + bytes(NAMED["a"].data) + b"b\0BF16\x003\0" + bytes(NAMED["b"].data))
    assert hash_weights({"b": NAMED["b"], "a": NAMED["a"]}) == expected.hexdigest()


@pytest.mark.parametrize(
    "other",
    [{"c": NAMED["a"]}, {"a": tensor("I32", 2, 2)}, {"a": tensor("F32", 4)}, {"a": tensor("F32", 2, 2, fill=8)}, {}],
    ids=["name", "dtype", "shape", "bytes", "absent"],
)
def test_the_hash_sees_every_part_of_a_tensor(other: dict[str, Tensor]) -> None:
    assert hash_weights(other) != hash_weights({"a": NAMED["a"]})


def test_a_file_cut_anywhere_is_refused() -> None:
    data = encode_safetensors(NAMED)
    for end in range(len(data)):
        with pytest.raises(WeightsError):
            read_safetensors(data[:end])


def with_header(header: object, body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
        {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]},
        {"dtype": "COMPLEX", "shape": [1], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2]},
        "F32",
    ],
)
def test_a_header_that_lies_about_its_bytes_is_refused(entry: object) -> None:
    with pytest.raises(WeightsError):
        read_safetensors(with_header({"x": entry}, b"12345678"))


@pytest.mark.parametrize("name", ["\ud800", "a\0F32"])
def test_names_that_a_hash_could_not_tell_apart_are_refused(name: str) -> None:
    with pytest.raises(WeightsError, match="malformed"):
        read_safetensors(with_header({name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"12345678"))


def test_overlapping_tensors_are_refused() -> None:
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    with pytest.raises(WeightsError, match="overlap"):
        read_safetensors(with_header({"x": entry, "y": entry}, b"1234"))


@pytest.mark.parametrize("data", [b"", b"\xff" * 64, hashlib.sha256(b"noise").digest(), with_header([], b"")])
def test_bytes_that_are_no_safetensors_are_refused(data: bytes) -> None:
    with pytest.raises(WeightsError):
        read_safetensors(data)


def test_a_tensor_whose_bytes_do_not_fit_its_shape_is_refused() -> None:
    with pytest.raises(WeightsError, match="must have 12 bytes, got 8"):
        Tensor("F32", (3,), memoryview(b"12345678"))
