"""`headrace offline train` over the archive of a run that a trainer made: as it was, otherwise, killed."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_run import TINY_MODEL, make_run, tiny_recipe
from trained_run import Answer, batches, command, curated, feed, replay, train_to

from headrace.envs.arithmetic import ALPHABET
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import ObjectStore, StoreAddress
from headrace.infra.weights.folder import _open_file
from headrace.infra.weights.tensors import hash_weights
from headrace.ops.offline.archiver import archive

STEPS = 7
TRAINER = {
    "steps": STEPS,
    "groups_per_batch": 4,
    "minibatches": 2,
    "max_staleness": 20,
    "checkpoint_every": 3,
    "advantage": {"use": "lite_ppo"},
    "batch_norm": True,
}
"""Advantages that depend on the whole batch."""
POLICIES = {"solver": {"model": TINY_MODEL, "alphabet": ALPHABET, "lora": {"rank": 4}}}


@pytest.fixture(scope="module")
def trained(bootstrap: str, store_address: StoreAddress) -> Iterator[Run]:
    """A run whose trainer has made all its versions, with one thread; four of its groups it has trained on twice."""
    name = f"trained-{uuid.uuid4().hex[:8]}"
    with ObjectStore(replace(store_address, prefix=f"{name}/")) as store:
        run = make_run(bootstrap, store, tiny_recipe(name, trainer=TRAINER, policies=POLICIES))
        groups = [curated(number, stale=100) for number in range(4 * STEPS - 4)]
        feed(run, [*groups, *(replay(groups[number], 1, back=2, weight=0.5) for number in (3, 8, 9, 14))])
        train_to(run, STEPS)
        yield run


@pytest.fixture(scope="module")
def whole(trained: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its archive, with weights."""
    out = tmp_path_factory.mktemp("archived") / "whole"
    archive(trained, out, with_weights=True)
    return out


def train(folder: Path, source: Path, out: str, *words: str, **more: Any) -> tuple[Answer, dict[str, Any]]:
    given = ("offline", "train", "--from", str(source), "--out", str(folder / out), "--json", *words)
    answer = command(folder, *given, **more)
    return answer, json.loads(answer.out) if answer.out else {}


@pytest.mark.tools
def test_the_runs_own_batches_give_the_runs_own_weights_bit_for_bit(trained: Run, whole: Path, tmp_path: Path) -> None:
    answer, found = train(tmp_path, whole, "same", "--batches")

    assert answer.code == 0, answer.err
    assert found["start"].startswith("the checkpoint of version 0")
    assert [one["weights_hash"] for one in found["versions"]] == [one.weights_hash for one in batches(trained)]
    assert all(one["equal"] for one in found["versions"])
    lines = [json.loads(line) for line in (tmp_path / "same" / "batches.jsonl").read_text().splitlines()]
    told = [[[use.stream, use.number, use.use] for use in batch.groups] for batch in batches(trained)]
    assert [line["groups"] for line in lines] == told
    assert any(use[2] for groups in told for use in groups), "a replay is among them"


@pytest.mark.tools
def test_batches_cut_anew_are_the_same_every_time_and_other_settings_are_not(whole: Path, tmp_path: Path) -> None:
    answer, found = train(tmp_path, whole, "first")
    assert answer.code == 0, answer.err
    assert (found["read"], found["trained"], found["left"], found["unread"]) == (4 * STEPS, 4 * STEPS, 0, 0)
    assert [one["version"] for one in found["versions"]] == [*range(1, STEPS + 1)]
    _, adapter, said = _open_file(tmp_path / "first" / "adapter_model.safetensors", writable=False)
    assert hash_weights(adapter) == said == found["weights_hash"]
    beside = {path.name for path in (tmp_path / "first").iterdir()}
    assert beside >= {"adapter_config.json", "config.json", "model.safetensors", "tokenizer.json", "training.json"}

    _, again = train(tmp_path, whole, "second")
    assert again["weights_hash"] == found["weights_hash"]

    _, other = train(tmp_path, whole, "third", "--set", "trainer.learning_rate=0.01", "--steps", "3")
    assert other["weights_hash"] != found["weights_hash"]
    assert len(other["versions"]) == 3
    assert other["settings"] == ["trainer.steps: 7 -> 3", "trainer.learning_rate: 5e-06 -> 0.01"]
    shown = command(tmp_path, "offline", "train", "--from", str(whole), "--out", str(tmp_path / "fourth"))
    assert "grad norm" in shown.out
    assert found["weights_hash"] in shown.out
