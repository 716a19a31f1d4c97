"""The quick way between records and bytes does what the long way does, or leaves it to that."""

from __future__ import annotations

import io
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastavro import schemaless_reader, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import binary, codec
from schemas.avro import schema_of
from schemas.binary import MISFITS, Unusual
from schemas.records import RECORDS, Sampling, Sequence, Span, Task, Trajectory, TrajectoryGroup, WeightsPublished

example = runpy.run_path(str(Path(__file__).parent.parent / "golden" / "make.py"))["example"]


def group(*samplings: Sampling | None) -> TrajectoryGroup:
    spans = tuple(Span("generated", 2, finish_reason="stop", sampling=sampling) for sampling in samplings)
    one = Sequence(
        np.array([70_000, -1], np.int32), np.array([-0.5, 0], np.float32), np.array([3, 2], np.int32), spans=spans
    )
    return TrajectoryGroup("r", "sums", 1, trajectories=(Trajectory("a", 0.5, {"x": 1.0, "y": 0.0}, (one, one)),))


def write(record: Any) -> bytes:
    pieces: list[bytes] = []
    codec.FORMS[type(record)].write(record, pieces.append)
    return b"".join(pieces)


def write_the_long_way(record: Any) -> bytes:
    out, form = io.BytesIO(), codec.FORMS[type(record)]
    schemaless_writer(out, form.schema, form.encode(record))
    return out.getvalue()


def read(data: bytes, record: type) -> bytes | None:
    """What was read, as the long way writes it; None where it is left to that."""
    try:
        found, end = codec.FORMS[record].read(data, 0)
    except MISFITS:
        return None
    return write_the_long_way(found) if end == len(data) else None


def read_the_long_way(data: bytes, record: type) -> bytes | None:
    form, body = codec.FORMS[record], io.BytesIO(data)
    try:
        found = form.decode(schemaless_reader(body, form.schema, None))
    except Exception:  # noqa: BLE001 - fastavro raises many kinds
        return None
    return write_the_long_way(found) if body.tell() == len(data) else None


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_both_ways_write_the_same_bytes_and_read_the_same_record(record: type) -> None:
    for written in (record(), example(schema_of(record))):
        data = write(written)
        assert data == write_the_long_way(written)
        assert read(data, record) == data


@given(number=st.integers(-(2**63), 2**63 - 1), text=st.text(st.characters(codec="utf-8"), max_size=100))
@settings(max_examples=100, deadline=None)
def test_numbers_and_texts_of_any_length_are_written_and_read_alike(number: int, text: str) -> None:
    task = Task(number=number, payload=text, versions={text: number})
    assert write(task) == write_the_long_way(task)
    assert codec.FORMS[Task].read(write(task), 0)[0] == task


@pytest.mark.parametrize("number", [-(2**63) - 1, 2**63])
def test_a_number_beyond_64_bits_is_left_to_the_long_way(number: int) -> None:
    with pytest.raises(Unusual):
        write(Task(number=number))


@pytest.mark.parametrize("record", [group(Sampling(stop_ids=(1,)), None), WeightsPublished(variant="v")], ids=type)
@given(edits=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=3))
@settings(max_examples=500, deadline=None)
def test_what_is_read_of_altered_bytes_is_what_the_long_way_reads(record: Any, edits: list[tuple[int, int]]) -> None:
    data = bytearray(write(record))
    for place, byte in edits:
        data[place % len(data)] = byte
    found = read(bytes(data), type(record))
    assert found is None or found == read_the_long_way(bytes(data), type(record))


def test_bytes_cut_short_anywhere_are_left_to_the_long_way() -> None:
    data = write(group(Sampling(stop_ids=(1,)), None))
    assert all(read(data[:length], TrajectoryGroup) is None for length in range(len(data)))


def test_a_value_that_was_cut_short_is_not_known_again() -> None:
    read_text = binary._remembering(binary._read_str)
    read_text(b"\x06ab", 0)
    assert read_text(b"\x06abc", 0) == ("abc", 4)
    assert read_text(b"-\x06abc", 1) == ("abc", 5)


@pytest.mark.parametrize("data", [b"\x01abc", b"\x81\x01abc"])
def test_a_length_below_zero_is_refused_or_reading_would_go_back_for_ever(data: bytes) -> None:
    with pytest.raises(Unusual):
        binary._read_str(data, 0)


def test_an_array_in_several_blocks_or_with_its_size_is_left_to_the_long_way_which_reads_it() -> None:
    whole = write(TrajectoryGroup(episode_ids=("a", "b")))
    one_block, two_blocks, sized = b"\x04\x02a\x02b\x00", b"\x02\x02a\x02\x02b\x00", b"\x03\x08\x02a\x02b\x00"
    assert whole.count(one_block) == 1
    for other in (two_blocks, sized):
        data = whole.replace(one_block, other)
        assert read(data, TrajectoryGroup) is None
        assert codec.decode(codec.FORMS[TrajectoryGroup].header + data, TrajectoryGroup).episode_ids == ("a", "b")


def test_a_number_that_never_ends_is_given_up_at_once() -> None:
    assert read(b"\xff" * 1_000_000, Task) is None
