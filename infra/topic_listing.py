"""`headrace topics`: the topics of a recipe or a run in the order of the flow; on a cluster, made and checked."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from infra.kafka import Connection, parse_run
from infra.recipe_file import load_recipe
from infra.run import join
from infra.settings import Recipe
from infra.topic_admin import ensure_topics
from schemas.topics import TopicSpec


def listing_of_recipe(name_or_path: str, sets: Sequence[str]) -> Table:
    """Return the topics that a recipe needs; made and checked when it names a cluster."""
    recipe = load_recipe(name_or_path, sets)
    kafka = recipe.kafka
    if not kafka.bootstrap:
        return _table(_specs(recipe), None)
    connection = Connection(kafka.bootstrap, kafka.client, kafka.compression)
    return _table(_specs(recipe), ensure_topics(connection, _specs(recipe)))


def listing_of_run(address: str) -> Table:
    """Return the topics of a run, made and checked."""
    run = join(parse_run(address))
    return _table(_specs(run.recipe), ensure_topics(run.connection, _specs(run.recipe)))


def _specs(recipe: Recipe) -> tuple[TopicSpec, ...]:
    return recipe.topics.all(tuple(recipe.workflows), tuple(recipe.policies), recipe.kafka.partitions)


def _table(specs: Sequence[TopicSpec], created: list[str] | None) -> Table:
    table = Table("topic", "partitions", "kept", *(() if created is None else ("state",)), box=None, header_style="dim")
    for spec in specs:
        kept = "newest by key" if spec.config.get("cleanup.policy") == "compact" else "for ever"
        state = () if created is None else ("created" if spec.name in created else "ok",)
        table.add_row(spec.name, str(spec.partitions), kept, *state)
    return table
