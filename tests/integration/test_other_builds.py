"""Records of another build: read once their schemas stand on the recipe topic, refused before."""

from __future__ import annotations

import io
import json
import threading
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer
from made_run import make_run, tiny_recipe
from said import say

from headrace.infra.kafka.clients import Outgoing
from headrace.infra.run.revisions import join_and_write_schemas
from headrace.infra.run.run import Run, join, read_revisions
from headrace.infra.store.object_store import ObjectStore
from headrace.schemas import codec
from headrace.schemas.avro import schema_of
from headrace.schemas.codec import UnknownSchema
from headrace.schemas.records import RecipeRevision, Task


@pytest.fixture
def run(bootstrap: str, store: ObjectStore, run_name: str) -> Run:
    return make_run(bootstrap, store, tiny_recipe(run_name))


def newer_schema(run: Run) -> dict[str, Any]:
    """Return the schema of tasks in a build that nobody else has."""
    schema = schema_of(Task)
    name = "of_" + run.address.run.replace("-", "_")
    schema["fields"].append({"name": name, "type": ["null", "string"], "default": None})
    return schema


def by_newer_build(run: Run, task: Task) -> bytes:
    schema = newer_schema(run)
    out = io.BytesIO()
    schemaless_writer(out, parse_schema(schema), codec.FORMS[Task].encode(task))
    return codec.AVRO_MAGIC + codec.fingerprint_of(schema) + out.getvalue()


def tell(run: Run, revision: RecipeRevision) -> None:
    say(run, Outgoing(run.topics.recipe, codec.encode(revision), partition=0))


def test_a_newer_builds_record_is_read_as_soon_as_its_schema_is_told_and_not_before(run: Run) -> None:
    data = by_newer_build(run, Task(number=7))

    with pytest.raises(UnknownSchema):
        codec.decode(data, Task)
    tell(run, RecipeRevision(run_id=run.run_id, schemas={"Task": json.dumps(newer_schema(run))}))

    assert codec.decode(data, Task) == Task(number=7)


@pytest.mark.kafka
def test_a_build_tells_its_schemas_once_and_changes_nothing_else_by_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = codec.schema_texts()
    monkeypatch.setattr(codec, "schema_texts", lambda: {**texts, "Task": json.dumps(newer_schema(run))})
    before = read_revisions(run.address)

    for _ in range(2):
        join_and_write_schemas(run.address, 0, threading.Event())

    joined = join(run.address)
    assert read_revisions(run.address) == before
    assert joined.recipe_end == run.recipe_end + 1
    assert joined.has_schemas
    assert codec.decode(by_newer_build(run, Task(number=7)), Task) == Task(number=7)
