"""`headrace topics`: lists the topics of a recipe or a run in the order of the flow; creates and checks them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.infra.kafka.advertised import refuse_unreachable
from headrace.infra.kafka.client_settings import merge_client_settings
from headrace.infra.kafka.clients import Connection, RunAddress
from headrace.infra.kafka.topic_admin import ensure_topics
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.run.revisions import read_first_revision, read_topic_specs
from headrace.infra.run.run import Run
from headrace.schemas.topics import TopicSpec


@dataclass(frozen=True, slots=True)
class ListedTopic:
    """A topic, with all settings that it is created with."""

    name: str
    partitions: int
    settings: dict[str, str]
    state: str = ""
    """`created` by this command, or `ok` if it existed; empty if no cluster was asked."""


def list_topics_of_recipe(name_or_path: str, sets: Sequence[str], *, only_list: bool) -> list[ListedTopic]:
    """Return the topics that a recipe needs. Create and check them if it names a cluster, unless `only_list`."""
    recipe = load_recipe(name_or_path, sets)
    kafka = recipe.kafka
    if only_list or not kafka.bootstrap:
        return _list(recipe.build_topic_specs(recipe.state_partitions), None)
    connection = Connection(kafka.bootstrap, merge_client_settings(kafka.client), kafka.compression)
    refuse_unreachable(connection)
    specs = read_topic_specs(read_first_revision(RunAddress(connection, recipe.name)), recipe)
    return _list(specs, ensure_topics(connection, specs))


def list_topics_of_run(run: Run, *, only_list: bool) -> list[ListedTopic]:
    """Return the topics of a run. Create and check them, unless `only_list`."""
    return _list(run.topic_specs, None if only_list else ensure_topics(run.connection, run.topic_specs))


def _list(specs: Sequence[TopicSpec], created: list[str] | None) -> list[ListedTopic]:
    def state_of(name: str) -> str:
        return "" if created is None else "created" if name in created else "ok"

    return [
        ListedTopic(
            spec.name, spec.partitions, dict(sorted({**spec.config, **spec.made_with}.items())), state_of(spec.name)
        )
        for spec in specs
    ]
