"""A run made by hand: topics, a recipe revision, and nothing running. Tests start what they are about."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from said import say

from headrace.envs.arithmetic import ALPHABET
from headrace.infra.kafka.clients import Connection, Outgoing, RunAddress
from headrace.infra.kafka.topic_admin import ensure_topics
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import Run, join
from headrace.infra.store.object_store import ObjectStore, StoreAddress
from headrace.infra.weights.tensor_file import encode_safetensors
from headrace.infra.weights.tensors import hash_weights
from headrace.schemas import codec
from headrace.schemas.records import NamedObject, RecipeRevision, WeightsPublished

TINY_MODEL = {
    "architecture": "qwen3",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "initializer_range": 0.2,
}


def tiny_recipe(name: str, **tables: Any) -> Recipe:
    """One policy, one workflow of sums, small everything; `tables` replace whole tables."""
    whole: dict[str, Any] = {
        "name": name,
        "policies": {"solver": {"model": TINY_MODEL, "alphabet": ALPHABET}},
        "workflows": {"sums": {"env": {"use": "arithmetic"}, "policies": {"solver": "solver"}}},
        "rollout": {"group_size": 4, "max_tokens": 8, "concurrency": 64},
        "trainer": {"steps": 6, "groups_per_batch": 4, "minibatches": 2, "learning_rate": 1e-3, "checkpoint_every": 2},
        "evaluate": {"every": 0},
        "kafka": {"partitions": 4},
        "store": {"cache_gib": 0},
    }
    return Recipe.model_validate(whole | tables)


def store_with_keys(address: StoreAddress) -> str:
    """Return a store's text as builds of 0.1 wrote it, with the keys."""
    return json.dumps({"url": address.to_url(), "access_key": address.access_key, "secret_key": address.secret_key})


def make_run(bootstrap: str, store: ObjectStore, recipe: Recipe, run_id: str = "run-1", **of_first: Any) -> Run:
    """Create the topics, write revision 0, with what else it is to have, and join."""
    address = RunAddress(Connection(bootstrap), recipe.name)
    ensure_topics(address.connection, recipe.build_topic_specs(of_first.get("state_partitions", 1)))
    revision = RecipeRevision(
        run_id=run_id,
        recipe=recipe.to_json(),
        schemas=codec.schema_texts(),
        store=store_with_keys(store.address),
        **of_first,
    )
    say(address.connection, Outgoing(recipe.topics.recipe, codec.encode(revision), partition=0))
    return join(address)


def publish(run: Run, version: int, *, corrupt: bool = False) -> None:
    """What a trainer publishes: weights of its own for every version, with the files beside them."""
    from headrace.trainers.learner.model import (  # torch is slow
        build_model,
        character_tokenizer,
        encode_model_files,
        round_to_bf16,
    )

    tokenizer = character_tokenizer(ALPHABET)
    model = build_model(TINY_MODEL, tokenizer, seed=version)
    weights = round_to_bf16({name: tensor.detach() for name, tensor in model.named_parameters()})
    claim = run.put(encode_safetensors(weights), "weights")
    if corrupt:
        claim = replace(claim, key=f"{claim.key}-gone")
    files = tuple(
        NamedObject(name, run.put(data, "files")) for name, data in encode_model_files(model, tokenizer).items()
    )
    record = WeightsPublished(
        run_id=run.run_id,
        policy="solver",
        version=version,
        weights_hash=hash_weights(weights),
        weights=claim,
        files=files,
    )
    say(run, Outgoing(run.topics.weights("solver"), codec.encode(record), partition=0))


def but_for_checkpoints(problems: Sequence[str]) -> list[str]:
    """Return what an audit says of a run that was written by hand, without checkpoints and the mark of its end."""
    return [problem for problem in problems if "has no checkpoint" not in problem and "marked as final" not in problem]
