"""The recipe topic as the launcher writes it: a run begins, goes on, or is given a changed recipe."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import structlog

from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.kafka.clients import Connection, RunAddress, open_producer
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import (
    LISTING_S,
    Run,
    join,
    read_revision,
    read_revisions,
    run_names,
    store_of,
    store_text,
    untold,
)
from headrace.infra.store.object_store import StoreAddress
from headrace.schemas import codec
from headrace.schemas.ids import now_ms
from headrace.schemas.records import RecipeRevision
from headrace.schemas.topics import Topics

WRITE_TIMEOUT_S = 30

log = structlog.get_logger()


def settled(
    address: RunAddress, recipe: Recipe, where: StoreAddress, *, with_keys: bool, new_recipe: bool
) -> RecipeRevision | None:
    """Return what is to be written to the recipe topic before the run can go on; None when nothing is.

    A first revision begins a run, whose objects lie under its run id: runs that share a bucket, also from several
    clusters, are told apart by it. A changed recipe becomes the next revision if the user says so; a store at another
    address is told of by the same revision once more. A recipe whose chain `headrace swap` replaced is no changed one.
    Raises UsageError with the keys that differ.
    """
    before = known_revisions(address)
    if not before:
        run_id = f"{address.run}-{secrets.token_hex(4)}"
        return revision_of(run_id, 0, recipe, store_text(replace(where, prefix=f"{run_id}/"), with_keys=with_keys))
    newest = before[-1]
    store = store_text(replace(where, prefix=store_of(newest).prefix), with_keys=with_keys)
    swapped, recipe = _with_swapped_chain(before, recipe)
    differing = differences(Recipe.from_json(newest.recipe), recipe)
    if differing and not new_recipe:
        raise UsageError(
            f"run {address.run} has another recipe (revision {newest.revision}):\n"
            + "\n".join(f"  {line}" for line in differing)
            + "\nGo on with the old recipe, record the new one as a revision of this run by --new-recipe, begin "
            "another run by --data or --set name=, or remove this one by `headrace clean`"
        )
    if differing:
        _refuse_other_adapters(Recipe.from_json(newest.recipe), recipe)
        return replace(revision_of(newest.run_id, newest.revision + 1, recipe, store), swapped=swapped)
    if newest.store != store or untold(before):
        # The recipe's own text: another build may not know the keys that this one has.
        return replace(newest, store=store, schemas=codec.schema_texts(), created_ms=now_ms())
    return None


def _with_swapped_chain(before: Sequence[RecipeRevision], recipe: Recipe) -> tuple[bool, Recipe]:
    """Return whether a swap's chain stays in force, and the recipe with it: until the next swap, or another chain.

    Whoever swapped the chain of a run goes on by the command that began it, whose recipe has the chain of before.
    """
    newest = before[-1]
    asked = next((one for one in reversed(before) if not one.swapped), newest)
    if not newest.swapped or recipe.curate.chain != Recipe.from_json(asked.recipe).curate.chain:
        return False, recipe
    return True, with_chain_of(recipe, Recipe.from_json(newest.recipe))


def _refuse_other_adapters(old: Recipe, new: Recipe) -> None:
    """Raise UsageError for a policy of another adapter: checkpoints hold the old one, engines have its shape."""
    for name, policy in old.policies.items():
        if name in new.policies and policy.lora != new.policies[name].lora:
            raise UsageError(
                f"policies.{name}.lora cannot change within a run, whose checkpoints and weights are those of the "
                "adapter that it began with: put it back, or begin another run by --set name="
            )


def join_to_write(address: RunAddress, patience_s: float, stop: threading.Event) -> Run:
    """`join` for a component that writes: the schemas of its build stand on the recipe topic before its first record.

    Components of an older build that meet such a record look there. Several that tell the same at once do no harm.
    """
    run = join(address, patience_s, stop)
    if not run.told:
        schemas = RecipeRevision(run_id=run.run_id, revision=run.revision, schemas=codec.schema_texts())
        write_revision(run.connection, run.topics.recipe, schemas, first_message(run.address))
        log.info("schemas.told", run=address.run, records=len(schemas.schemas))
    return run


def known_revisions(address: RunAddress) -> list[RecipeRevision]:
    """Return the revisions of a run, oldest first; none when its topic is not there."""
    return read_revisions(address) if _is_there(address) else []


def first_message(address: RunAddress) -> bytes | None:
    """Return the oldest revision of a run as it stands on its topic; None when there is none."""
    if not _is_there(address):
        return None
    messages = read_all(address.connection, [Topics(address.run).recipe])
    return next((message.value for message in messages if read_revision(message) is not None), None)


def _is_there(address: RunAddress) -> bool:
    return address.run in run_names(address.connection, LISTING_S)


def revision_of(run_id: str, number: int, recipe: Recipe, store: str, ended: str = "") -> RecipeRevision:
    """Return a revision of today's recipe and schemas."""
    return RecipeRevision(
        run_id=run_id,
        revision=number,
        recipe=recipe.to_json(),
        schemas=codec.schema_texts(),
        store=store,
        ended=ended,
        created_ms=now_ms(),
    )


def write_revision(connection: Connection, topic: str, revision: RecipeRevision, first: bytes | None = None) -> None:
    """Write a revision and return when the cluster has it. Raises HeadraceError when it does not take it.

    Args:
        connection: The cluster.
        topic: The recipe topic.
        revision: What to write.
        first: What `first_message` returned. The revision is written in its schema: whoever reads the topic's first
            can read this one, and learns from it the schemas of all that follows.
    """
    value = codec.encode(revision) if first is None else codec.encode_like(revision, first)
    producer = open_producer(connection, "launcher")
    refused: list[str] = []
    producer.produce(
        topic,
        value,
        str(revision.revision).encode(),
        on_delivery=lambda error, _message: refused.append(error.str()) if error is not None else None,
    )
    left = producer.flush(WRITE_TIMEOUT_S)
    if left or refused:
        why = refused[0] if refused else f"no answer within {WRITE_TIMEOUT_S} s"
        raise HeadraceError(
            f"cannot write the recipe to topic {topic}: {why}; check that Kafka runs and may be written"
        )


def differences(old: Recipe, new: Recipe) -> list[str]:
    """Return `key: old -> new` for every key that differs, in the order of the recipe."""
    before, after = _flat(old.model_dump(mode="json")), _flat(new.model_dump(mode="json"))
    return [
        f"{key}: {_shown(before, key)} -> {_shown(after, key)}"
        for key in {**before, **after}
        if before.get(key) != after.get(key)
    ]


def differ_by_chain(old: Recipe, new: Recipe) -> bool:
    """Tell whether two recipes are the same but for their chains, so that a run can go over while it goes on."""
    return with_chain_of(new, old) == old


def with_chain_of(recipe: Recipe, other: Recipe) -> Recipe:
    """Return a recipe with the chain of another."""
    curate = recipe.curate.model_copy(update={"chain": other.curate.chain})
    return recipe.model_copy(update={"curate": curate})


def with_experiment_of(recipe: Recipe, other: Recipe) -> Recipe:
    """Return a recipe with the chain, the trainer settings and the seed of another of the same policies; no shadows."""
    policies = {
        name: policy.model_copy(update={"trainer": other.policies[name].trainer} if name in other.policies else {})
        for name, policy in recipe.policies.items()
    }
    changed = {"seed": other.seed, "trainer": other.trainer, "policies": policies, "shadows": {}}
    return with_chain_of(recipe, other).model_copy(update=changed)


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and value:
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _shown(table: dict[str, Any], key: str) -> str:
    text = json.dumps(table[key]) if key in table else "(not set)"
    return text if len(text) <= 60 else f"{text[:57]}..."
