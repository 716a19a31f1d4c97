"""A run as the processes of one of its regions see it: with the region's own Kafka and object store."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from dataclasses import replace

from headrace.infra.errors import Unavailable, UsageError
from headrace.infra.kafka.client_settings import merge_client_settings
from headrace.infra.kafka.clients import Connection, RunAddress
from headrace.infra.kafka.cluster_topics import fetch_topics
from headrace.infra.process.signals import JOIN_PATIENCE_S, MustRestart
from headrace.infra.run.revisions import join_and_write_schemas
from headrace.infra.run.run import Run, join, parse_store, read_revisions
from headrace.schemas.records import RecipeRevision

LISTING_S = 30.0


def move_to_region(run: Run, region: str) -> Run:
    """Return a run that was joined at home with Kafka and store of a region. Raises UsageError for an unknown one."""
    servers, settings = _read_servers(run, region), run.recipe.regions[region].kafka
    connection = Connection(servers["bootstrap"], merge_client_settings(settings.client), run.recipe.kafka.compression)
    return replace(use_store_of(run, region), address=RunAddress(connection, run.address.run))


def use_store_of(run: Run, region: str) -> Run:
    """Return a run with the store of a region. Raises UsageError for an unknown region."""
    record = RecipeRevision(run.run_id, run.revision, store=_read_servers(run, region)["store"])
    return replace(run, store_address=parse_store(record), region=region)


def join_in_region(address: RunAddress, region: str, stop: threading.Event) -> Run:
    """Join a run as a worker at home, or in a region of its recipe: by the region's Kafka, with the region's store.

    Raises as `join`; and UsageError for the address of the run at home, and for another build in a region, as nobody at
    home would read its schemas there.
    """
    found = join(address, JOIN_PATIENCE_S, stop)
    if region not in found.recipe.regions:
        return join_and_write_schemas(address, JOIN_PATIENCE_S, stop)
    if found.topics.state in fetch_topics(address.connection, LISTING_S).topics:
        raise UsageError(
            f"{address} is the run at home, where a worker of region {region} would play tasks that the mirror also "
            f"brings into the region: give the address of the run in the region's own Kafka, or leave out --region"
        )
    if not found.has_schemas:
        raise UsageError(
            f"this build of Headrace writes records in another form than run {address.run} knows: start any part of "
            f"the run with this build at home once, or use the run's build in region {region}"
        )
    return use_store_of(found, region)


def refuse_newer_revision(run: Run) -> None:
    """Raise MustRestart if the run has a newer recipe than when it was joined; a Kafka that is away says nothing."""
    with suppress(Unavailable):
        if (newest := read_revisions(run.address)[-1].revision) > run.revision:
            raise MustRestart(f"recipe revision {newest} is written, and may have other policies and workflows")


def _read_servers(run: Run, region: str) -> dict[str, str]:
    if region not in run.regions:
        there = ", ".join(run.regions) or "none"
        raise UsageError(f"run {run.address.run} has no region {region!r}; its regions: {there}")
    found: dict[str, str] = json.loads(run.regions[region])
    return found
