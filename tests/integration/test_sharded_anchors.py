"""An anchor of several files: published, followed, audited, exported and collected as one of a single file is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from made_run import TINY_MODEL, but_for_checkpoints, make_run, tiny_recipe
from said import say

from headrace.envs.arithmetic import ALPHABET
from headrace.infra.kafka.clients import Outgoing
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import ObjectStore
from headrace.infra.weights.files import list_anchor_files, write_files
from headrace.infra.weights.offline import verify
from headrace.infra.weights.paths import ANCHOR, DELTA, size_of
from headrace.infra.weights.policy_weights import PolicyWeights
from headrace.infra.weights.tensors import Tensor, hash_weights
from headrace.ops.audit.report import report
from headrace.ops.figures.weights_history import weights_history
from headrace.ops.plain_json import plain
from headrace.ops.retention.collector import CollectionRequest, collect
from headrace.ops.weights_export import export
from headrace.schemas import codec
from headrace.schemas.records import BatchTrained, WeightsPublished
from headrace.trainers.learner.model import build_model, character_tokenizer, encode_model_files, round_to_bf16
from headrace.trainers.versions.publisher import VersionAnnouncer, VersionUploader, upload_files

SHARD_BYTES = 8_000


def weights(version: int) -> dict[str, Tensor]:
    tokenizer = character_tokenizer(ALPHABET)
    model = build_model(TINY_MODEL, tokenizer, seed=0)
    model.model.norm.weight.data += version
    return round_to_bf16({name: tensor.detach() for name, tensor in model.named_parameters()})


@pytest.fixture
def run(bootstrap: str, store: ObjectStore, run_name: str) -> Run:
    trainer = {"steps": 4, "groups_per_batch": 4, "minibatches": 2, "learning_rate": 1e-3, "anchor_every": 2}
    return make_run(bootstrap, store, tiny_recipe(run_name, trainer=trainer))


def publish(run: Run, versions: int) -> list[WeightsPublished]:
    """Publish as a trainer does, each version with its batch; every second is an anchor."""
    tokenizer = character_tokenizer(ALPHABET)
    files = upload_files(run, encode_model_files(build_model(TINY_MODEL, tokenizer, seed=0), tokenizer))
    uploader, announcer = (
        VersionUploader(run, "solver", files, shard_bytes=SHARD_BYTES),
        VersionAnnouncer(run, "solver"),
    )
    events: list[WeightsPublished] = []
    for version in range(versions):
        event = replace(uploader.upload_version(weights(version), version), final=False)
        outgoing = [announcer.build_message(event)]
        if version:
            batch = BatchTrained(run.run_id, "solver", version=version, weights_hash=event.weights_hash)
            batch = replace(batch, base_hash=events[-1].weights_hash)
            outgoing.append(Outgoing(run.topics.batches("solver"), codec.encode(batch), partition=0))
        say(run, *outgoing)
        announcer.note_announced(event, version)
        events.append(event)
    return events


def same(found: Mapping[str, Tensor], version: int) -> bool:
    return hash_weights(found) == hash_weights(weights(version))


def test_a_worker_joins_by_the_files_of_an_anchor_and_a_folder_of_them_is_a_model(run: Run, tmp_path: Path) -> None:
    events = publish(run, 2)
    assert [event.kind for event in events] == [ANCHOR, DELTA]
    anchor = events[0]
    names = [name for name, _ in list_anchor_files(anchor)]
    assert names[0] == f"model-00001-of-{len(anchor.shards):05}.safetensors"
    assert (len(names) > 3, names[-1]) == (True, "model.safetensors.index.json")
    held = PolicyWeights(run.weights_cache)
    assert same(held.load_version(events, events[1]), 1)
    assert held.fetched_bytes == size_of(anchor) + size_of(events[1])

    from transformers import AutoModelForCausalLM

    for name, claim in list_anchor_files(anchor):
        (tmp_path / name).write_bytes(run.get(claim))
    write_files(anchor.files, tmp_path, run.get)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="bfloat16")
    assert same(round_to_bf16({name: tensor.detach() for name, tensor in model.named_parameters()}), 0)


@pytest.mark.weights
def test_audit_history_export_and_collection_know_all_files_of_an_anchor(run: Run, tmp_path: Path) -> None:
    events = publish(run, 5)
    found = plain(report(run, rests=True))
    assert but_for_checkpoints(found["problems"]) == []
    told = plain(weights_history(run, None))
    assert [one["bytes"] for one in told["versions"]] == [size_of(event) for event in events]
    assert told["join"]["bytes"] == size_of(events[0]), "all anchors are of one size, deltas come on top"
    before = {one.key for one in run.store.list_objects()}
    collect(run, CollectionRequest(older_than=timedelta(0)), rests=True)
    assert {one.key for one in run.store.list_objects()} == before, (
        "the newest 64 versions stay, with all that they name"
    )
    export(run, None, 3, tmp_path / "out")
    assert verify(tmp_path / "out").weights_hash == events[3].weights_hash
