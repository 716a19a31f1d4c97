"""The recipe topic as the launcher writes it: a run begins, goes on, or is given a changed recipe."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

from infra.errors import HeadraceError, UsageError
from infra.kafka import Connection, RunAddress, kafka_errors, open_admin, open_producer
from infra.run import read_revisions
from infra.settings import Recipe
from schemas import codec
from schemas.records import RecipeRevision
from schemas.topics import Topics

WRITE_TIMEOUT_S = 30


def settled(address: RunAddress, recipe: Recipe, store: str, *, new_recipe: bool) -> RecipeRevision | None:
    """Return what is to be written to the recipe topic before the run can go on; None when nothing is.

    A first revision begins a run; a changed recipe becomes the next revision if the user says so; a store at another
    address is told of by the same revision once more. Raises UsageError with the keys that differ.
    """
    before = known_revisions(address)
    if not before:
        return revision_of(f"{address.run}-{secrets.token_hex(4)}", 0, recipe, store)
    newest = before[-1]
    differing = differences(Recipe.from_json(newest.recipe), recipe)
    if differing and not new_recipe:
        raise UsageError(
            f"run {address.run} has another recipe (revision {newest.revision}):\n"
            + "\n".join(f"  {line}" for line in differing)
            + "\nGo on with the old recipe, record the new one as a revision of this run by --new-recipe, begin "
            "another run by --data or --set name=, or remove this one by `headrace clean`"
        )
    if differing:
        return revision_of(newest.run_id, newest.revision + 1, recipe, store)
    if newest.store != store:
        return revision_of(newest.run_id, newest.revision, recipe, store, newest.ended)
    return None


def known_revisions(address: RunAddress) -> list[RecipeRevision]:
    """Return the revisions of a run, oldest first; none when its topic is not there."""
    admin = open_admin(address.connection)
    with kafka_errors("listing topics"):
        topics = admin.list_topics(timeout=10).topics  # of all: asking for one by name may create it
    return read_revisions(address) if Topics(address.run).recipe in topics else []


def revision_of(run_id: str, number: int, recipe: Recipe, store: str, ended: str = "") -> RecipeRevision:
    """Return a revision of today's recipe and schemas."""
    return RecipeRevision(
        run_id=run_id,
        revision=number,
        recipe=recipe.to_json(),
        schemas=codec.schema_texts(),
        store=store,
        ended=ended,
        created_ms=time.time_ns() // 1_000_000,
    )


def write_revision(connection: Connection, topic: str, revision: RecipeRevision) -> None:
    """Write a revision and return when the cluster has it. Raises HeadraceError when it does not take it."""
    producer = open_producer(connection, "launcher")
    refused: list[str] = []
    producer.produce(
        topic,
        codec.encode(revision),
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
