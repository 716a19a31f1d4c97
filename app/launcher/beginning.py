"""The beginning of a run: its topics and its recipe, written once; a run that is there is joined."""

from __future__ import annotations

from functools import partial

from headrace.infra.embedded.data_folder import data_folder_of
from headrace.infra.embedded.servers import ReportLine, Servers
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import RunAddress
from headrace.infra.kafka.topic_admin import ensure_topics
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.revisions import first_message, settled, topic_specs_of, write_later, write_revision
from headrace.infra.run.run import Run, join
from headrace.ops.recipe_check import check_names


def begun(servers: Servers, recipe: Recipe, say: ReportLine, *, new_recipe: bool) -> Run:
    """Create the topics and write the recipe, where they are not there yet; return the run, joined.

    Args:
        servers: They answer.
        recipe: Of the run.
        say: Reports the address, and which revision was written.
        new_recipe: Whether a recipe that differs from the run's becomes its next revision.

    Raises UsageError with the keys that differ, otherwise.
    """
    address = RunAddress(servers.connection, recipe.name)
    first = first_message(address)
    settle = partial(settled, address, recipe, servers.store_address, new_recipe=new_recipe)
    revision = settle()
    ensure_topics(address.connection, topic_specs_of(first, recipe))
    if revision is not None and first is None:
        write_revision(address.connection, recipe.topics.recipe, revision)
    elif revision is not None:
        revision = write_later(address, settle)
    if revision is not None and revision.revision and new_recipe and not revision.ended:
        say(f"recipe revision {revision.revision} is written")
    say(f"address: [bold]{address}[/]")
    return join(address)


def begin(recipe: Recipe, say: ReportLine, *, new_recipe: bool) -> Run:
    """Begin a run on servers that the recipe names, and start no component. Raises HeadraceError."""
    servers = Servers(recipe.kafka, recipe.store, data_folder_of(recipe.name, None), say)
    unnamed = [
        key
        for key, embedded in (("kafka.bootstrap", servers.embedded_kafka), ("store.endpoint", servers.embedded_store))
        if embedded
    ]
    if unnamed:
        raise UsageError(
            f"the recipe names no {' and no '.join(unnamed)}, and what `begin` started would end with it: `headrace "
            "servers` starts a Kafka and an object store and prints the lines for a recipe; or `headrace up` runs all"
        )
    check_names(recipe)
    servers.start()
    return begun(servers, recipe, say, new_recipe=new_recipe)
