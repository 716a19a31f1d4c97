"""Everything that turns bytes into something: read, or refused with a sentence, and nothing else."""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np
import pytest
from mutations import (
    EXAMPLES,
    INTS,
    TEXTS,
    VALID,
    Fuzz,
    altered,
    altered_headers,
    altered_json,
    distorted,
    example,
    memory_limit,
    taken,
    varint,
)

from headrace.consumers.curate.dedupe import Dedupe
from headrace.envs.payload import PayloadError, problem_from_json
from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.clients import Message
from headrace.infra.recipe.recipe_file import list_shipped_recipes, load_recipe
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import parse_store, read_revision
from headrace.infra.weights.tensor_file import encode_safetensors, read_metadata, read_safetensors
from headrace.infra.weights.tensors import Tensor, WeightsError, hash_weights
from headrace.producers.task_ledger import TaskLedger
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError, schema_of
from headrace.schemas.headers import HeaderError, Stamp
from headrace.schemas.records import RECORDS, Failure, RecipeRevision, Task, TrajectoryGroup
from headrace.schemas.writers import MOST_VALUES, parse_foreign_schema
from headrace.trainers.learner.checkpoint import Checkpoint, CheckpointError, decode_checkpoint, encode_checkpoint
from headrace.trainers.learner.shard_index import PARTS_FORMAT, decode_index

pytestmark = pytest.mark.timeout(1200)  # seconds, on a machine that does nothing else

RECIPE = load_recipe("arithmetic")


def test_altered_messages_are_read_or_refused(fuzz: Fuzz) -> None:
    def check(data: bytes) -> None:
        with suppress(SchemaError):
            found = codec.decode(data, record)
            assert type(found) is record
        with suppress(SchemaError):
            assert type(codec.decode_any(data)) in RECORDS

    for record in RECORDS:
        valid = codec.encode(example(schema_of(record)))
        fuzz.run(record.__name__, 0.035, lambda rng, valid=valid: altered(rng, valid), check)


def test_altered_headers_are_read_or_refused(fuzz: Fuzz) -> None:
    valid = Stamp("run-1", "sums.eu", 7, 1, 2, "train", 3, "solver", 4, 5, 6).to_headers()

    def check(headers: list[tuple[str, bytes]]) -> None:
        with suppress(HeaderError):
            stamp = Stamp.from_headers(headers)
            assert Stamp.from_headers(stamp.to_headers()) == stamp
            assert -(2**63) <= stamp.number < 2**63

    fuzz.run("headers", 0.15, lambda rng: altered_headers(rng, altered_headers(rng, valid)), check)


def test_altered_schemas_are_learnt_or_refused(fuzz: Fuzz) -> None:
    schemas = [json.loads(text) for text in codec.schema_texts().values()]

    def check(text: str) -> None:
        with suppress(SchemaError):
            parse_foreign_schema(text)

    fuzz.run("schemas", 0.02, lambda rng: altered_json(rng, rng.choice(schemas)), check)


NODE = {"type": "record", "name": "Task", "namespace": "headrace", "fields": []}


def with_field(kind: object) -> dict[str, str]:
    """Return a schema as its writer would tell it, with one field of that type."""
    return {"Task": json.dumps({**NODE, "fields": [{"name": "f", "type": kind}]})}


def test_a_schema_that_would_break_the_decoder_is_not_learnt() -> None:
    """The first overflows fastavro's stack and kills the process, the next make 2^60 items of no bytes."""
    told = [
        ["null", "headrace.Task"],
        {"type": "array", "items": "null"},
        {"type": "array", "items": {"type": "record", "name": "Nothing", "fields": []}},
        {"type": "fixed", "name": "None", "size": 0},
        {"type": "bytes", "logicalType": "decimal", "precision": 10**9, "scale": 0},
    ]
    assert not taken(told, lambda kind: codec.learn(with_field(kind)), SchemaError)


def test_types_in_types_without_end_are_not_learnt() -> None:
    why = {100_000: "must have at most", 1000: "not JSON|nest types", 40: "nest types more than 32 deep"}
    for deep, words in why.items():
        text = '{"type":"array","items":' * deep + '"long"' + "}" * deep
        with pytest.raises(SchemaError, match=words):
            codec.learn({"Task": with_field("X")["Task"].replace('"X"', text)})


def test_a_length_that_is_not_there_is_refused_before_anything_is_allocated() -> None:
    """Instead of the first length of every record, and behind a block count."""
    given = []
    for length in map(varint, (2**60, -1, -(2**63), 2**31, 2**63 - 1)):
        bodies = (length, length + bytes(100), varint(1) + b"r" + length * 3 + bytes(50))
        given += [
            (record, codec.AVRO_MAGIC + codec.FORMS[record].fingerprint + b) for record in RECORDS for b in bodies
        ]
    with memory_limit(1 << 30):
        assert not taken(given, lambda one: codec.decode(one[1], one[0]), SchemaError)


def test_a_message_of_millions_of_tiny_items_is_refused_before_they_are_made() -> None:
    two, three = (codec.encode(TrajectoryGroup(failures=(Failure(),) * count)) for count in (2, 3))
    at = next(at for at, (one, other) in enumerate(zip(two, three, strict=False)) if one != other)
    item = two[at + 1 : at + 1 + len(three) - len(two)]
    data = two[:at] + varint(290_000) + item * 290_000 + two[at + 1 + 2 * len(item) :]
    assert len(data) < 2 << 20
    with memory_limit(1 << 30), pytest.raises(SchemaError, match=f"more than {MOST_VALUES} values"):
        codec.decode(data, TrajectoryGroup)


def test_a_large_message_of_few_values_is_read() -> None:
    ids = np.arange(1 << 20, dtype=np.int32)
    group = example(schema_of(TrajectoryGroup))
    sequence = group.trajectories[0].sequences[0]
    object.__setattr__(sequence, "ids", ids)
    found = codec.decode(codec.encode(group), TrajectoryGroup)
    assert found.trajectories[0].sequences[0].ids.size == ids.size


# -------------------------------------------------------------------------------------------------------------- weights


def tensors() -> dict[str, Tensor]:
    def tensor(dtype: str, shape: tuple[int, ...], item: int) -> Tensor:
        return Tensor(dtype, shape, memoryview(bytes(range(int(np.prod(shape)) * item))))

    return {
        "masters/a": tensor("F32", (3, 4), 4),
        "exp_avg/a": tensor("BF16", (2, 2), 2),
        "b": tensor("F32", (0, 5), 4),
    }


def altered_file(rng: Random, valid: bytes) -> bytes:
    """Alter the header as JSON, its length, or any bytes."""
    length = int.from_bytes(valid[:8], "little")
    match rng.randrange(4):
        case 0:
            return rng.choice(INTS).to_bytes(8, "little", signed=True) + valid[8:]
        case 1:
            header = altered_json(rng, json.loads(valid[8 : 8 + length])).encode(errors="replace")
            return len(header).to_bytes(8, "little") + header + valid[8 + length :]
        case _:
            return altered(rng, valid)


def test_altered_checkpoints_are_read_or_refused(fuzz: Fuzz) -> None:
    valid = b"".join(encode_checkpoint(Checkpoint(tensors(), {"version": 7, "window": [1, 2, {"a": None}]})))

    def check(data: bytes) -> None:
        with suppress(CheckpointError, WeightsError):
            decode_checkpoint(data)

    fuzz.run("checkpoints", 0.06, lambda rng: altered_file(rng, valid), check)


def test_altered_indices_of_checkpoints_are_read_or_refused(fuzz: Fuzz) -> None:
    pieces = [{"offsets": [0, 0], "sizes": [2, 3], "part": "a"}, {"offsets": [2, 0], "sizes": [2, 3], "part": "b"}]
    tensors = {"masters/w": {"dtype": "F32", "shape": [4, 3], "pieces": pieces}}
    valid = {"format": PARTS_FORMAT, "metadata": {"version": 7}, "tensors": tensors}

    def check(text: str) -> None:
        with suppress(CheckpointError):
            for cut in decode_index(text.encode()).tensors.values():
                held = sum(math.prod(piece.sizes) for piece in cut.pieces)
                assert held == math.prod(cut.shape), "what no piece holds would be whatever lay in memory"

    fuzz.run("indices", 0.01, lambda rng: altered_json(rng, valid), check)


def test_altered_weights_are_read_or_refused_and_whatever_is_read_can_be_hashed(fuzz: Fuzz) -> None:
    valid = encode_safetensors(tensors())

    def check(data: bytes) -> None:
        with suppress(WeightsError):
            read_metadata(data)
            hash_weights(read_safetensors(data))

    fuzz.run("weights", 0.07, lambda rng: altered_file(rng, valid), check)


def test_a_tensor_that_cannot_be_is_refused() -> None:
    entries = [
        {"dtype": "F32", "shape": [2**60], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2] * 100_000, "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [10**4000] * 60, "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [-2], "data_offsets": [0, -8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 10**300]},
        {"dtype": "F32", "shape": [2.0], "data_offsets": [0, float("inf")]},
        {"dtype": ["F32"], "shape": [2], "data_offsets": "08"},
        {"dtype": "torch.save", "shape": [2], "data_offsets": [0, 8]},
        [],
        None,
    ]

    def read(entry: object) -> None:
        header = json.dumps({"a": entry, "\ud800": entry}).encode()
        read_safetensors(len(header).to_bytes(8, "little") + header + bytes(8))

    with memory_limit(1 << 30):
        assert not taken(entries, read, WeightsError)


# -------------------------------------------------------------------------------------------------------------- recipes


def test_altered_recipe_files_are_read_or_refused(fuzz: Fuzz, tmp_path: Path) -> None:
    valid = [recipe.read_text().encode() for recipe in list_shipped_recipes().values()]
    path = tmp_path / "r.toml"

    def check(text: bytes) -> None:
        path.write_bytes(text)
        with suppress(HeadraceError):
            load_recipe(str(path))

    fuzz.run("recipes", 0.01, lambda rng: altered(rng, rng.choice(valid)), check)


def test_altered_words_of_the_command_line_are_taken_or_refused(fuzz: Fuzz) -> None:
    keys = ("trainer.steps", "name", "curate.chain.0.use", "curate.chain.²", "policies.solver", "seed", "", ".", "a.b")

    def word(rng: Random) -> str:
        value = rng.choice((*map(str, INTS), *TEXTS, "nan", "inf", "[1]", "{a=1}", "1979-05-27"))
        return altered(rng, f"{rng.choice(keys)}={value}".encode()).decode(errors="replace")

    def check(word: str) -> None:
        with suppress(HeadraceError):
            load_recipe("arithmetic", [word])

    fuzz.run("--set", 0.01, word, check)


def test_a_recipe_that_cannot_be_read_is_refused_with_its_source(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    texts = (
        "a = " + "[" * 100_000,
        "a = " + "9" * 10_000,
        "a." * 5000 + "b = 1",
        f'extends = "../{tmp_path.name}/r.toml"',
        'extends = "\\u0000"',
        f'extends = "{"x" * 5000}"',
        'extends = "~nobody-of-that-name/r.toml"',
        'extends = "."',
        "extends = 3",
        'name = "\ufeff"',
    )
    for text in texts:
        path.write_text(text)
        with pytest.raises(HeadraceError, match="in a circle" if tmp_path.name in text else r"r\.toml|recipe"):
            load_recipe(str(path))


def test_altered_recipe_revisions_are_taken_or_passed_over(fuzz: Fuzz) -> None:
    store = {"url": "http://127.0.0.1:9000/bucket/prefix?region=x", "access_key": "a", "secret_key": "b"}
    schemas = {"Task": codec.schema_texts()["Task"]}
    valid = RecipeRevision(run_id="r", recipe=RECIPE.to_json(), schemas=schemas, store=json.dumps(store))
    plain = json.loads(valid.recipe)

    def make(rng: Random) -> Message:
        if rng.random() < 0.5:
            revision = RecipeRevision("r", 0, altered_json(rng, plain), schemas, altered_json(rng, store))
        else:
            revision = distorted(rng, valid)
        data = codec.encode(revision)
        return Message("t.recipe", 0, 0, b"", altered(rng, data) if rng.random() < 0.2 else data)

    def check(message: Message) -> None:
        revision = read_revision(message)
        if revision is not None:
            with suppress(HeadraceError):
                Recipe.from_json(revision.recipe)
            with suppress(HeadraceError):
                parse_store(revision)

    fuzz.run("revisions", 0.02, make, check)


# --------------------------------------------------------------------------------------------------- state and metadata


def test_altered_commit_metadata_is_ours_or_counts_as_none(fuzz: Fuzz) -> None:
    valid = {"done": "3-7,9,12-90", "started": "0:1,4:2", "run": "r"}
    numbers = ("0-1152921504606846976", "5-1", "-3", "1-2-3", "9" * 4000, "0:-1", "1_0", "٣", "[", ",,,")

    def make(rng: Random) -> str:
        if rng.random() < 0.5:
            return altered_json(rng, valid)
        return json.dumps({"done": ",".join(rng.choices(numbers, k=3)), "started": rng.choice(numbers)})

    def check(metadata: str) -> None:
        ledger = TaskLedger(100, metadata, "r")
        assert ledger.position in (0, 100)
        for offset in range(100, 110):
            if ledger.receive(offset):
                ledger.add_start(offset)
                ledger.count_starts(offset)
        ledger.reset_starts()
        assert len(ledger.commit()[1]) <= 4096

    fuzz.run("metadata", 0.05, make, check)


def test_altered_snapshots_of_dedupe_are_taken_or_refused(fuzz: Fuzz) -> None:
    whole = Dedupe(0, 2)
    for number in (0, 2, 4, 10, 14, 16):
        whole.conclude("sums", number)

    def check(text: str) -> None:
        with suppress(ValueError):
            dedupe = Dedupe(0, 2)
            dedupe.restore(json.loads(text))
            for number in range(0, 20, 2):
                if dedupe.has_room("sums", number):
                    dedupe.conclude("sums", number)
            assert Dedupe(0, 2).restore(dedupe.snapshot()) is None

    fuzz.run("snapshots", 0.05, lambda rng: altered_json(rng, whole.snapshot()), check)


def test_altered_payloads_are_problems_or_refused(fuzz: Fuzz) -> None:
    valid = {"task_id": "a", "prompt": "1+1", "answer": "2", "tier": "low", "extra": {"a": [1]}}

    def check(text: str) -> None:
        with suppress(PayloadError):
            problem_from_json(text)

    fuzz.run("payloads", 0.04, lambda rng: altered_json(rng, valid), check)


def test_nothing_that_is_read_is_executed(tmp_path: Path) -> None:
    """Bytes that a pickle reader would run, given to every reader."""
    mark = tmp_path / "executed"
    bomb = b"cposix\nsystem\n(S'touch " + os.fsencode(mark) + b"'\ntR."
    for record in RECORDS:
        for data in (bomb, codec.AVRO_MAGIC + codec.FORMS[record].fingerprint + bomb):
            with pytest.raises(SchemaError):
                codec.decode(data, record)
    for data in (bomb, len(bomb).to_bytes(8, "little") + bomb):
        with pytest.raises(WeightsError):
            decode_checkpoint(data)
        with pytest.raises(CheckpointError):
            decode_index(data)
    with pytest.raises(PayloadError):
        problem_from_json(bomb.decode())
    assert not mark.exists()


def test_the_examples_are_those_of_every_record() -> None:
    assert [type(record) for record in EXAMPLES] == list(RECORDS)
    assert len(VALID) == 2 * len(RECORDS)
    assert Task in RECORDS
