import copy
import dataclasses
import io
import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schemas import codec
from headrace.schemas.avro import SchemaError, schema_of
from headrace.schemas.reading import REFUSALS
from headrace.schemas.records import (
    RECORDS,
    ClaimCheck,
    CuratedGroup,
    Sequence,
    Snapshot,
    Span,
    Task,
    Trajectory,
    TrajectoryGroup,
    WeightsPublished,
)

example = runpy.run_path(str(Path(__file__).parent.parent / "golden" / "make.py"))["example"]


def plain(record: Any) -> dict[str, Any]:
    """Tensors as bytes, so that records compare with ==."""
    converted: dict[str, Any] = codec.FORMS[type(record)].encode(record)
    return converted


def group(*sequences: Sequence) -> TrajectoryGroup:
    members = tuple(Trajectory(id=f"sums:1:{index}", sequences=(one,)) for index, one in enumerate(sequences))
    return TrajectoryGroup(run_id="r", stream="sums", number=1, trajectories=members)


def sequence(length: int = 4) -> Sequence:
    return Sequence(
        ids=np.arange(length, dtype=np.int32),
        logprobs=np.linspace(-1, 0, length, dtype=np.float32),
        version_runs=np.array([3, length], np.int32),
        spans=(Span("generated", length),),
    )


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_record_comes_back_as_it_was(record: type) -> None:
    for written in (record(), example(schema_of(record))):
        data = codec.encode(written)
        assert plain(codec.decode(data, record)) == plain(written)
        assert plain(codec.decode_any(data)) == plain(written)


@given(
    ids=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=40),
    logprobs=st.lists(st.floats(width=32, allow_nan=False), max_size=40),
    reward=st.none() | st.floats(allow_nan=False),
    text=st.text(),
    number=st.integers(-(2**63), 2**63 - 1),
)
@settings(max_examples=60, deadline=None)
def test_any_values_of_the_right_types_come_back(
    ids: list[int], logprobs: list[float], reward: float | None, text: str, number: int
) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        text = ""
    one = Sequence(np.array(ids, np.int32), np.array(logprobs, np.float32), role=text, reward=reward)
    written = dataclasses.replace(group(one), number=number)
    found = codec.decode(codec.encode(written), TrajectoryGroup)
    assert found.number == number
    [read] = found.trajectories[0].sequences
    assert (read.role, read.reward) == (text, reward)
    assert read.ids.tolist() == ids
    assert read.logprobs.tolist() == np.array(logprobs, np.float32).tolist()


def test_tensors_come_back_as_views_that_cannot_be_written() -> None:
    found = codec.decode(codec.encode(group(sequence())), TrajectoryGroup)
    [read] = found.trajectories[0].sequences
    for array in (read.ids, read.logprobs, read.version_runs):
        assert not array.flags.writeable
        assert not array.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        read.ids[0] = 1


@pytest.mark.parametrize(
    ("record", "path"),
    [
        (Task(number="7"), "Task.number: expected int, got str"),  # type: ignore[arg-type]  # the fault
        (Trajectory(reward=1), None),
        (TrajectoryGroup(trajectories=[]), "TrajectoryGroup.trajectories: expected tuple, got list"),  # type: ignore[arg-type]  # the fault
        (TrajectoryGroup(claim=Task()), "TrajectoryGroup.claim: expected ClaimCheck, got Task"),  # type: ignore[arg-type]  # the fault
        (Task(versions={"solver": 1.0}), r"Task.versions\['solver'\]: expected int, got float"),  # type: ignore[dict-item]  # the fault
        (Task(number=2**63), "Task: "),
        (Task(payload="\ud800"), "Task.payload: text must not hold half a character"),
        (CuratedGroup(group="text"), "CuratedGroup.group: expected bytes, got str"),  # type: ignore[arg-type]  # the fault
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_path(record: Any, path: str | None) -> None:
    if path is None:
        record, path = (
            TrajectoryGroup(trajectories=(record,)),
            r"TrajectoryGroup.trajectories\[0\].reward: expected float",
        )
    with pytest.raises(SchemaError, match=path):
        codec.encode(record)


@pytest.mark.parametrize(
    "array", [np.zeros(3, np.float64), np.zeros((3, 1), np.float32), [0.0], np.zeros(3, ">f4")], ids=str
)
def test_a_tensor_of_another_type_or_shape_is_refused_with_its_path(array: Any) -> None:
    wrong = dataclasses.replace(sequence(), logprobs=array)
    with pytest.raises(
        SchemaError, match=r"TrajectoryGroup.trajectories\[1\].sequences\[0\].logprobs: expected a one-"
    ):
        codec.encode(group(sequence(), wrong))


def test_a_message_cut_short_anywhere_is_refused() -> None:
    for written in (group(sequence()), Snapshot(body=b"the last field of its record")):
        data = codec.encode(written)
        for length in range(len(data)):
            with pytest.raises(SchemaError):
                codec.decode(data[:length], type(written))


@pytest.mark.parametrize("data", [b"", b"\xc3", b'{"run_id": 1}', bytes(40)])
def test_bytes_of_another_kind_are_refused(data: bytes) -> None:
    with pytest.raises(SchemaError, match="not an Avro single-object message"):
        codec.decode(data, Task)
    with pytest.raises(SchemaError, match="not an Avro single-object message"):
        codec.decode_any(data)


def test_an_unknown_schema_is_refused_until_it_is_learnt() -> None:
    schema = {
        "type": "record",
        "name": "Task",
        "namespace": "headrace",
        "fields": [{"name": "number", "type": "long"}, {"name": "from_the_future", "type": "string"}],
    }
    out = io.BytesIO()
    schemaless_writer(out, parse_schema(schema), {"number": 7, "from_the_future": "x"})
    data = codec.AVRO_MAGIC + codec.fingerprint_of(schema) + out.getvalue()
    with pytest.raises(SchemaError, match=r"unknown schema [0-9a-f]{16}"):
        codec.decode(data, Task)
    codec.learn({"Task": json.dumps(schema)})
    assert codec.decode(data, Task) == Task(number=7)


def test_another_record_is_refused_by_name() -> None:
    with pytest.raises(
        SchemaError, match=r"expected a record Task, but the message holds a record headrace\.CuratedGroup"
    ):
        codec.decode(codec.encode(CuratedGroup()), Task)


def test_a_tensor_of_half_an_element_is_refused() -> None:
    form = codec.FORMS[TrajectoryGroup]
    ragged = form.encode(group(sequence()))
    ragged["trajectories"][0]["sequences"][0]["ids"] = b"\x01\x02\x03"
    out = io.BytesIO()
    schemaless_writer(out, form.schema, ragged)
    with pytest.raises(SchemaError, match="3 bytes are not a multiple of the size of int32"):
        codec.decode(codec.AVRO_MAGIC + form.fingerprint + out.getvalue(), TrajectoryGroup)


def test_the_header_is_that_of_the_avro_specification() -> None:
    """C3 01, then the CRC-64-AVRO of the parsing canonical form, little-endian; the vector is the specification's."""
    assert codec.fingerprint_of({"type": "string"}) == bytes.fromhex("c70345637248018f")
    assert codec.encode(Task())[:10] == b"\xc3\x01" + codec.FORMS[Task].fingerprint


@pytest.mark.parametrize(
    "written",
    [
        dataclasses.replace(group(sequence()), claim=ClaimCheck("s", "k", "h", 3)),
        WeightsPublished(final=True, metrics={"density": 0.5}),
    ],
    ids=lambda written: type(written).__name__,
)
def test_what_is_read_the_short_way_is_what_fastavro_reads(written: Any) -> None:
    """Every byte of a message in turn becomes each of these: lengths, counts, branches, signs, long numbers."""
    whole, form, short = codec.encode(written), codec.FORMS[type(written)], 0
    for index in range(codec.AVRO_HEADER_BYTES, len(whole)):
        for byte in (0, 1, 2, 3, 4, 6, 127, 128, 129, 255):
            data = whole[:index] + bytes([byte]) + whole[index + 1 :]
            try:
                found, end = form.read(data, codec.AVRO_HEADER_BYTES)
            except REFUSALS:
                continue
            if end == len(data):
                short += 1
                # NaN is no equal of itself; the words for it are.
                assert repr(plain(found)) == repr(plain(form.decode(codec.decode_plain(data, type(written)))))
    assert short > len(whole)


def test_a_record_that_was_read_cannot_be_written_and_is_copied_like_any_other() -> None:
    found = codec.decode(codec.encode(Task(number=7, task_id="a")), Task)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.number = 8  # type: ignore[misc]  # the fault
    assert dataclasses.replace(found, number=8) == Task(number=8, task_id="a")
    assert copy.deepcopy(found) == found


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\x80\x00", id="a zero of two bytes ends an array"),
        pytest.param(b"\x01\x00", id="a block that tells its bytes"),
        pytest.param(b"\x02\x02a\x02\x02b\x00", id="items in two blocks"),
    ],
)
def test_what_other_writers_of_avro_may_do_is_read_alike(body: bytes) -> None:
    """Instead of the array `episode_ids`, which is empty."""
    whole, before = codec.encode(TrajectoryGroup(episode_ids=("x", "y"))), b"\x04\x02x\x02y\x00"
    assert whole.count(before) == 1
    data = whole.replace(before, body)
    try:
        through_fastavro = codec.FORMS[TrajectoryGroup].decode(codec.decode_plain(data, TrajectoryGroup))
    except SchemaError:
        with pytest.raises(SchemaError):
            codec.decode(data, TrajectoryGroup)
        return
    assert plain(codec.decode(data, TrajectoryGroup)) == plain(through_fastavro)
