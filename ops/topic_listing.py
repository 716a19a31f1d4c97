"""`headrace topics`: the topics of a recipe or a run in the order of the flow; on a cluster, made and checked."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from headrace.infra.kafka.advertised import refuse_unreachable
from headrace.infra.kafka.client_settings import merge_client_settings
from headrace.infra.kafka.clients import Connection, RunAddress
from headrace.infra.kafka.topic_admin import ensure_topics
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.run.revisions import read_first_revision, read_topic_specs
from headrace.infra.run.run import Run
from headrace.schemas.topics import TopicSpec


def listing_of_recipe(name_or_path: str, sets: Sequence[str]) -> Table:
    """Return the topics that a recipe needs; made and checked when it names a cluster."""
    recipe = load_recipe(name_or_path, sets)
    kafka = recipe.kafka
    if not kafka.bootstrap:
        return _build_table(recipe.topic_specs_with(recipe.state_partitions), None)
    connection = Connection(kafka.bootstrap, merge_client_settings(kafka.client), kafka.compression)
    refuse_unreachable(connection)
    specs = read_topic_specs(read_first_revision(RunAddress(connection, recipe.name)), recipe)
    return _build_table(specs, ensure_topics(connection, specs))


def listing_of_run(run: Run) -> Table:
    """Return the topics of a run, made and checked."""
    return _build_table(run.topic_specs, ensure_topics(run.connection, run.topic_specs))


def _build_table(specs: Sequence[TopicSpec], created: list[str] | None) -> Table:
    table = Table("topic", "partitions", "kept", *(() if created is None else ("state",)), box=None, header_style="dim")
    for spec in specs:
        kept = "newest by key" if spec.config.get("cleanup.policy") == "compact" else "for ever"
        state = () if created is None else ("created" if spec.name in created else "ok",)
        table.add_row(spec.name, str(spec.partitions), kept, *state)
    return table
