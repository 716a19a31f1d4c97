"""Every release's schemas against today's, both ways (Avro's FULL_TRANSITIVE), and every release's bytes."""

import io
import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.read import SchemaResolutionError

import headrace.schemas
from headrace.schemas import codec
from headrace.schemas.generate import render_avsc
from headrace.schemas.records import RECORDS

SCHEMAS = Path(headrace.schemas.__file__).parent
GOLDEN = Path(__file__).parent.parent / "golden"
example = runpy.run_path(str(GOLDEN / "make.py"))["example"]

PAST = sorted((SCHEMAS / "past").glob("*/*.avsc"))
RELEASES = sorted(folder.name for folder in (SCHEMAS / "past").iterdir())


def identity(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def plain(record: Any) -> dict[str, Any]:
    """Tensors as bytes, so that records compare with ==."""
    converted: dict[str, Any] = codec.FORMS[type(record)].encode(record)
    return converted


def read(data: bytes, writer: Any, reader: Any) -> dict[str, Any]:
    found = schemaless_reader(io.BytesIO(data), parse_schema(writer), parse_schema(reader))
    assert isinstance(found, dict)
    return found


def body(record: Any) -> bytes:
    return codec.encode(record)[codec.AVRO_HEADER_BYTES :]


def test_the_avsc_files_are_those_of_the_records() -> None:
    files = {file.name: file.read_text() for file in (SCHEMAS / "avsc").glob("*.avsc")}
    assert files == render_avsc(), "run `python -m headrace.schemas.generate`"


def test_there_is_a_past_release_and_it_has_every_record_of_its_time_as_golden_bytes() -> None:
    assert PAST
    golden = {identity(file) for file in GOLDEN.glob("*/*.avro")}
    assert golden == {identity(file) for file in PAST}


@pytest.mark.parametrize("file", PAST, ids=identity)
def test_todays_reader_decodes_the_bytes_of_a_past_release(file: Path) -> None:
    schema = json.loads(file.read_text())
    data = (GOLDEN / file.parent.name / f"{file.stem}.avro").read_bytes()
    assert data[2 : codec.AVRO_HEADER_BYTES] == codec.fingerprint_of(schema)
    assert plain(codec.decode_any(data)) == plain(example(schema))


@pytest.mark.parametrize("file", PAST, ids=identity)
def test_a_past_reader_decodes_todays_bytes(file: Path) -> None:
    past = json.loads(file.read_text())
    [record] = [record for record in RECORDS if record.__name__ == file.stem]
    today = codec.FORMS[record].schema
    for written in (record(), example(json.loads(render_avsc()[file.name]))):
        found = read(body(written), today, past)
        assert set(found) == {field["name"] for field in past["fields"]}


def test_every_field_of_a_past_schema_has_a_default() -> None:
    def fields(schema: Any) -> list[dict[str, Any]]:
        if isinstance(schema, list):
            return [field for part in schema for field in fields(part)]
        if not isinstance(schema, dict):
            return []
        inner = [schema.get("items"), schema.get("values"), *(field["type"] for field in schema.get("fields", []))]
        return [*schema.get("fields", []), *(field for part in inner for field in fields(part))]

    every = [(file.stem, field) for file in PAST for field in fields(json.loads(file.read_text()))]
    assert [(record, field["name"]) for record, field in every if "default" not in field] == []


@pytest.mark.parametrize("release", RELEASES)
def test_a_record_written_by_a_program_that_knows_half_the_fields_is_read_with_defaults(release: str) -> None:
    schema = json.loads((SCHEMAS / "past" / release / "Task.avsc").read_text())
    schema["fields"] = schema["fields"][::2]
    out = io.BytesIO()
    schemaless_writer(out, parse_schema(schema), {"run_id": "r", "number": 7, "stream": "left out on purpose"})
    codec.learn({"Task": json.dumps(schema)})
    task = codec.decode_any(codec.AVRO_MAGIC + codec.fingerprint_of(schema) + out.getvalue())
    assert (task.run_id, task.stream, task.attempt) == ("r", "", 0)


def test_a_change_that_is_not_compatible_would_be_seen() -> None:
    past = json.loads((SCHEMAS / "past" / RELEASES[0] / "Task.avsc").read_text())
    broken = json.loads(json.dumps(past))
    broken["fields"][0] = {"name": "tenant", "type": "string"}
    written = body(example(past))
    with pytest.raises(SchemaResolutionError):
        read(written, past, broken)
