"""Writes the recipe topic: when a run begins, continues, or gets a changed recipe."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import structlog

from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.kafka.client_settings import hide_secrets
from headrace.infra.kafka.clients import Connection, Fenced, KafkaAway, Outgoing, RunAddress, open_producer
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.kafka.transactions import Aborted, TransactionalWriter
from headrace.infra.recipe.plug_in_sources import (
    all_plug_ins,
    find_source_differences,
    hash_sources,
    newest_sources,
    sources_of,
)
from headrace.infra.recipe.server_settings import Region
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.progress import read_progress
from headrace.infra.run.recorded_data import find_data_differences, newest_environments
from headrace.infra.run.run import (
    RUNS_LISTING_S,
    Run,
    describe_store,
    find_missing_schemas,
    join,
    list_runs,
    parse_store,
    read_revision,
    read_revisions,
)
from headrace.infra.store.object_store import StoreAddress
from headrace.schemas import codec
from headrace.schemas.ids import now_ms
from headrace.schemas.records import RecipeRevision, UsedEnvironment
from headrace.schemas.topics import Topics, TopicSpec

WRITE_TIMEOUT_S = 30
SWAP = "swap"
"""Component of the transactional id that all writers of later revisions share."""

log = structlog.get_logger()


def plan_revision(  # noqa: PLR0913 - settings, each given by its name
    address: RunAddress,
    recipe: Recipe,
    where: StoreAddress,
    environments: tuple[UsedEnvironment, ...] = (),
    *,
    new_recipe: bool,
    parent: str = "",
    regions: Mapping[str, str] = MappingProxyType({}),
) -> RecipeRevision | None:
    """Return the revision to write before the run can go on; None if there is nothing to write.

    A first revision begins a run, whose objects are under its run id: runs that share a bucket, also from several
    clusters, are distinguished by it. A changed recipe, or one whose plug-ins have another source, becomes the next
    revision if the user says so, or if the run has trained nothing yet. A store at another address, and sources without
    a record, are recorded by the same revision once more. A recipe whose chain `headrace swap` replaced does not count
    as changed.
    Data that has another content than recorded counts as a changed recipe, as other problems would be drawn from it.
    Raises UsageError with the keys that differ.

    Args:
        address: The run.
        recipe: As the user gives it.
        where: The store.
        environments: Environment and data of each workflow, as they are here.
        new_recipe: Whether the user says so.
        regions: Region to its servers, as RecipeRevision has them.
    """
    before = read_known_revisions(address)
    if not before:
        run_id = f"{address.run}-{secrets.token_hex(4)}"
        store = describe_store(replace(where, prefix=f"{run_id}/"))
        first = build_revision(run_id, 0, recipe, store, regions)
        return replace(
            first,
            plug_ins=hash_sources(all_plug_ins(recipe)),
            environments=environments,
            asks_for_published=True,
            asks_for_issued=True,
            state_partitions=recipe.state_partitions,
            parent=parent,
        )
    newest = before[-1]
    old = Recipe.from_json(newest.recipe)
    store = describe_store(replace(where, prefix=parse_store(newest).prefix))
    swapped, recipe = _keep_swapped_chain(before, recipe)
    known, here = newest_sources(before), sources_of(all_plug_ins(recipe))
    hashes = {top: source.hash for top, source in here.items()}
    differing = [*find_differences(old, recipe), *find_source_differences(known, here)]
    differing += find_data_differences(newest_environments(one.environments for one in before), environments)
    if differing and not new_recipe and not read_progress(address, old).can_take(differing):
        # `headrace clean` and another folder leave the topics of a Kafka that the recipe names.
        others = (
            "or begin another run (--set name=)"
            if recipe.kafka.bootstrap
            else "begin another run (--data or --set name=); or remove this run (`headrace clean`)"
        )
        raise UsageError(
            f"run {address.run} has another recipe (revision {newest.revision}):\n"
            + "\n".join(f"  {line}" for line in differing)
            + "\nChoose one: go on with the old recipe, its plug-ins and its data; record the new recipe as a revision "
            f"of this run (--new-recipe); {others}"
        )
    if differing:
        _refuse_other_adapters(old, recipe)
        made = build_revision(newest.run_id, newest.revision + 1, recipe, store, regions)
        return replace(made, swapped=swapped, plug_ins=hashes, environments=environments)
    if (
        (newest.store, newest.regions) != (store, dict(regions))
        or find_missing_schemas(before)
        or hashes.keys() - known.keys()
    ):
        # The recipe's own text: another build may not know the keys that this one has.
        resent = replace(newest, store=store, regions=dict(regions), schemas=codec.schema_texts(), plug_ins=hashes)
        return replace(resent, created_ms=now_ms())
    return None


def _keep_swapped_chain(before: Sequence[RecipeRevision], recipe: Recipe) -> tuple[bool, Recipe]:
    """Return whether a swap's chain stays in force, and the recipe with it (until the next swap or another chain).

    After a swap, a run is resumed with the command that began it, whose recipe still has the old chain.
    """
    newest = before[-1]
    asked = next((one for one in reversed(before) if not one.swapped), newest)
    if not newest.swapped or recipe.curate.chain != Recipe.from_json(asked.recipe).curate.chain:
        return False, recipe
    return True, replace_chain(recipe, Recipe.from_json(newest.recipe))


def _refuse_other_adapters(old: Recipe, new: Recipe) -> None:
    """Raise UsageError for a changed adapter of a policy, because checkpoints and engines have the old shape."""
    for name, policy in old.policies.items():
        if name in new.policies and policy.lora != new.policies[name].lora:
            raise UsageError(
                f"policies.{name}.lora cannot change within a run, because the run's checkpoints and weights belong to "
                "the adapter that it began with: set lora back, or begin another run by --set name="
            )


def join_and_write_schemas(address: RunAddress, patience_s: float, stop: threading.Event) -> Run:
    """`join` for a component that writes: first puts the schemas of its build on the recipe topic.

    Components of an older build look there when they meet an unknown schema. Several processes may write the same
    schemas at once.
    """
    run = join(address, patience_s, stop)
    if not run.has_schemas:
        schemas = RecipeRevision(run_id=run.run_id, revision=run.revision, schemas=codec.schema_texts())
        write_revision(run.connection, run.topics.recipe, schemas, read_first_revision(run.address))
        # The schemas of this build went to the recipe topic, for older builds.
        log.info("schemas.told", run=address.run, records=len(schemas.schemas))
    return run


def read_known_revisions(address: RunAddress) -> list[RecipeRevision]:
    """Return the revisions of a run, oldest first; none if its topic does not exist."""
    return read_revisions(address) if _is_there(address) else []


def read_topic_specs(first: bytes | None, recipe: Recipe) -> tuple[TopicSpec, ...]:
    """Return the topics that a run should have, from its first revision: a run that has begun keeps its own.

    Raises SchemaError.
    """
    of_first = 0 if first is None else codec.decode(first, RecipeRevision).state_partitions or 1
    return recipe.build_topic_specs(of_first or recipe.state_partitions)


def read_first_revision(address: RunAddress) -> bytes | None:
    """Return the oldest revision of a run as bytes; None if there is none."""
    if not _is_there(address):
        return None
    messages = read_all(address.connection, [Topics(address.run).recipe])
    return next((message.value for message in messages if read_revision(message) is not None), None)


def _is_there(address: RunAddress) -> bool:
    return address.run in list_runs(address.connection, RUNS_LISTING_S)


def build_revision(
    run_id: str, number: int, recipe: Recipe, store: str, regions: Mapping[str, str] = MappingProxyType({})
) -> RecipeRevision:
    """Return a revision of a recipe with the current schemas; `regions` are those of the run, with their servers."""
    return RecipeRevision(
        run_id=run_id,
        revision=number,
        recipe=recipe.to_json(),
        schemas=codec.schema_texts(),
        store=store,
        regions=dict(regions),
        created_ms=now_ms(),
    )


def write_revision(connection: Connection, topic: str, revision: RecipeRevision, first: bytes | None = None) -> None:
    """Write a run's first revision, or one without news, and return when the cluster has it.

    Raises HeadraceError if the cluster refuses it. Use `write_later_revision` for a later revision.

    Args:
        connection: The cluster.
        topic: The recipe topic.
        revision: What to write.
        first: Result of `read_first_revision`. The revision is written in its schema, so every reader of the first
            revision can read this one, and learns from it the schemas of later records.
    """
    value = codec.encode(revision) if first is None else codec.encode_like(revision, first)
    # An idempotent producer waits a second for its id from a broker that has just started, and everybody waits for the
    # first revision. Written twice it means the same; a later one must not come again after what others wrote since.
    producer = open_producer(connection, "launcher", acks="all", enable_idempotence=first is not None)
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
        kind = HeadraceError if refused else KafkaAway
        raise kind(f"cannot write the recipe to topic {topic}: {why}; check that Kafka runs and lets this client write")


def write_later_revision(address: RunAddress, settle: Callable[[], RecipeRevision | None]) -> RecipeRevision | None:
    """Write a later revision of a run and return it; None if there is nothing to write.

    All writers of later revisions share one transactional id, and each reads the topic after it has fenced the others.
    So no number gets two contents.

    Args:
        address: The run.
        settle: Returns the revision to write, from the topic's content at its call.

    Raises the errors of `settle`; Fenced if another writer took over, and Aborted; then nothing was written.
    """
    topic = Topics(address.run).recipe
    with closing(TransactionalWriter(address.connection, f"{address.run}.{SWAP}", [topic])) as writer:
        revision = settle()
        if revision is None:
            return None
        first = read_first_revision(address)
        value = codec.encode(revision) if first is None else codec.encode_like(revision, first)
        try:
            writer.begin()
            writer.produce([Outgoing(topic, value, str(revision.revision).encode(), partition=0)])
            writer.commit()
        except (Fenced, Aborted) as error:
            raise type(error)(
                f"revision {revision.revision} of run {address.run} was not written, because another command wrote one "
                "at the same time or Kafka was unreachable: give the command again"
            ) from error
    return revision


def find_differences(old: Recipe, new: Recipe) -> list[str]:
    """Return `key: old -> new` for every key that differs, in the order of the recipe; secrets of 0.1 are left out."""
    before, after = (_flatten(_hide_secrets(recipe).model_dump(mode="json")) for recipe in (old, new))
    return [
        f"{key}: {_show_value(before, key)} -> {_show_value(after, key)}"
        for key in {**before, **after}
        if before.get(key) != after.get(key)
    ]


def is_chain_change(old: Recipe, new: Recipe) -> bool:
    """Return whether two recipes differ only in their chains, so that a running run can switch."""
    return replace_chain(new, old) == old


def replace_chain(recipe: Recipe, other: Recipe) -> Recipe:
    """Return a recipe with the chain of another."""
    curate = recipe.curate.model_copy(update={"chain": other.curate.chain})
    return recipe.model_copy(update={"curate": curate})


def replace_experiment(recipe: Recipe, other: Recipe) -> Recipe:
    """Return a recipe with the chain, the trainer settings and the seed of another of the same policies; no shadows."""
    policies = {
        name: policy.model_copy(update={"trainer": other.policies[name].trainer} if name in other.policies else {})
        for name, policy in recipe.policies.items()
    }
    changed = {"seed": other.seed, "trainer": other.trainer, "policies": policies, "shadows": {}}
    return replace_chain(recipe, other).model_copy(update=changed)


def _hide_secrets(recipe: Recipe) -> Recipe:
    def hide(of: Recipe | Region) -> dict[str, Any]:
        return {"kafka": of.kafka.model_copy(update={"client": hide_secrets(of.kafka.client)})}

    regions = {name: region.model_copy(update=hide(region)) for name, region in recipe.regions.items()}
    return recipe.model_copy(update={**hide(recipe), "regions": regions})


def _flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and value:
            found |= _flatten(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _show_value(table: dict[str, Any], key: str) -> str:
    text = json.dumps(table[key]) if key in table else "(not set)"
    return text if len(text) <= 60 else f"{text[:57]}..."
