"""`headrace topics`: the topics of a recipe or a run in the order of the flow; on a cluster, made and checked."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from headrace.infra.kafka.clients import Connection, parse_run
from headrace.infra.kafka.topic_admin import ensure_topics
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.run.run import join
from headrace.schemas.topics import TopicSpec


def listing_of_recipe(name_or_path: str, sets: Sequence[str]) -> Table:
    """Return the topics that a recipe needs; made and checked when it names a cluster."""
    recipe = load_recipe(name_or_path, sets)
    kafka = recipe.kafka
    if not kafka.bootstrap:
        return _table(recipe.topic_specs, None)
    connection = Connection(kafka.bootstrap, kafka.client, kafka.compression)
    return _table(recipe.topic_specs, ensure_topics(connection, recipe.topic_specs))


def listing_of_run(address: str) -> Table:
    """Return the topics of a run, made and checked."""
    run = join(parse_run(address))
    return _table(run.recipe.topic_specs, ensure_topics(run.connection, run.recipe.topic_specs))


def _table(specs: Sequence[TopicSpec], created: list[str] | None) -> Table:
    table = Table("topic", "partitions", "kept", *(() if created is None else ("state",)), box=None, header_style="dim")
    for spec in specs:
        kept = "newest by key" if spec.config.get("cleanup.policy") == "compact" else "for ever"
        state = () if created is None else ("created" if spec.name in created else "ok",)
        table.add_row(spec.name, str(spec.partitions), kept, *state)
    return table
