"""A run as the processes of one of its regions see it: with the region's own Kafka and object store."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

from headrace.infra.errors import UsageError
from headrace.infra.kafka.client_settings import merge_client_settings
from headrace.infra.kafka.clients import Connection, RunAddress
from headrace.infra.process.signals import JOIN_PATIENCE_S
from headrace.infra.run.revisions import join_and_write_schemas
from headrace.infra.run.run import Run, join, parse_store
from headrace.schemas.records import RecipeRevision


def move_to_region(run: Run, region: str) -> Run:
    """Return a run that was joined at home with Kafka and store of a region. Raises UsageError for an unknown one."""
    servers, settings = _read_servers(run, region), run.recipe.regions[region].kafka
    connection = Connection(servers["bootstrap"], merge_client_settings(settings.client), run.recipe.kafka.compression)
    return replace(use_store_of(run, region), address=RunAddress(connection, run.address.run))


def use_store_of(run: Run, region: str) -> Run:
    """Return a run with the store of a region. Raises UsageError for an unknown region."""
    record = RecipeRevision(run.run_id, run.revision, store=_read_servers(run, region)["store"])
    return replace(run, store_address=parse_store(record))


def join_in_region(address: RunAddress, region: str, stop: threading.Event) -> Run:
    """Join a run as a worker at home, or in a region of its recipe: by the region's Kafka, with the region's store.

    Raises as `join`; and UsageError for another build in a region, as nobody at home would read its schemas there.
    """
    found = join(address, JOIN_PATIENCE_S, stop)
    if region not in found.recipe.regions:
        return join_and_write_schemas(address, JOIN_PATIENCE_S, stop)
    if not found.has_schemas:
        raise UsageError(
            f"this build of Headrace writes records in another form than run {address.run} knows: start any part of "
            f"the run with this build at home once, or use the run's build in region {region}"
        )
    return use_store_of(found, region)


def _read_servers(run: Run, region: str) -> dict[str, str]:
    if region not in run.regions:
        there = ", ".join(run.regions) or "none"
        raise UsageError(f"run {run.address.run} has no region {region!r}; its regions: {there}")
    found: dict[str, str] = json.loads(run.regions[region])
    return found
