"""The beginning of a run: its topics and its recipe, written once; an existing run is joined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from rich.markup import escape

from headrace.app.launcher.components import list_components
from headrace.app.launcher.run_servers import RunServers
from headrace.infra.embedded.data_folder import data_folder_of
from headrace.infra.embedded.servers import ReportLine, Servers
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import RunAddress
from headrace.infra.kafka.topic_admin import ensure_topics
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.revisions import (
    plan_revision,
    read_first_revision,
    read_known_revisions,
    read_topic_specs,
    write_later_revision,
    write_revision,
)
from headrace.infra.run.run import Run, join
from headrace.infra.run.up_lease import Holder
from headrace.infra.utc import format_utc
from headrace.ledger.liveness import is_alive
from headrace.ops.lineage.lineage import decode_readable
from headrace.ops.preflight.cluster import Wanted, find_needs, refuse_unfit
from headrace.ops.preflight.table import check_names
from headrace.schemas import codec
from headrace.schemas.ids import now_ms
from headrace.schemas.records import RecipeRevision, UsedEnvironment, WorkerStatus


class RunOfAnother(UsageError):
    """The cluster holds a run of that name which was begun, or is running now, from somewhere else."""


def begin_or_join(  # noqa: PLR0913 - settings, each given by its name
    servers: Servers,
    recipe: Recipe,
    say: ReportLine,
    *,
    new_recipe: bool,
    environments: tuple[UsedEnvironment, ...] = (),
    own_run_id: str | None = None,
    parent: str = "",
    remember: Callable[[str], None] = lambda _: None,
    hold: Callable[[RunAddress], list[Holder]] = lambda _: [],
    starts_parts: bool = True,
    regions: Mapping[str, str] = MappingProxyType({}),
) -> Run:
    """Create the topics and write the recipe if they do not exist yet; return the run, joined.

    Args:
        servers: Servers that answer.
        recipe: Recipe of the run.
        say: Reports the address and the revision that was written.
        new_recipe: Whether a recipe that differs from the run's becomes its next revision. It does anyway as long as
            the run has trained nothing.
        environments: Environment and data of each workflow, as they are here.
        own_run_id: Id of the run that the data folder belongs to; None for a new folder, empty if an old one does
            not record it.
        parent: What the run begins with, if it is a branch: `RUN-ID solver@40`.
        remember: Called with the id of a new run before anything of it is written.
        hold: Claims the run for this process on a cluster that the recipe names, before anything is written; returns
            the other holders.
        starts_parts: Whether the caller starts the components of the run.
        regions: Region to its servers, as RecipeRevision has them.

    Raises UsageError with the keys that differ unless `new_recipe`; RunOfAnother; ClusterUnfit with all that the
    cluster lacks.
    """
    address = RunAddress(servers.connection, recipe.name)
    first = read_first_revision(address)
    if not servers.has_embedded_kafka:
        wanted = find_needs(recipe, read_topic_specs(first, recipe))
        refuse_unfit(address.connection, wanted, lambda words: say(f"[yellow]{escape(words)}[/]"))
        refuse_held(address, hold(address))
    elif first is not None:  # an embedded broker always fits; only its topics may have been changed
        refuse_unfit(address.connection, Wanted(read_topic_specs(first, recipe)))
    refuse_other = partial(refuse_run_of_another, embedded_store=servers.has_embedded_store, starts_parts=starts_parts)
    if first is not None and codec.decode(first, RecipeRevision).run_id != own_run_id:
        refuse_other(join(address), recipe, own_run_id)
    newest_before = 0
    settle = partial(
        plan_revision,
        address,
        recipe,
        servers.store_address,
        environments,
        new_recipe=new_recipe,
        parent=parent,
        regions=regions,
    )
    revision = settle()
    specs = read_topic_specs(first, recipe)
    if ensure_topics(address.connection, specs) and not servers.has_embedded_kafka:
        refuse_unfit(address.connection, Wanted(specs))  # rights on a topic are known once it exists
    if revision is not None and first is None:
        remember(own_run_id := revision.run_id)
        write_revision(address.connection, recipe.topics.recipe, revision)
    elif revision is not None:
        newest_before = read_known_revisions(address)[-1].revision
        revision = write_later_revision(address, settle)
    run = join(address)
    if first is None:  # another may have begun it at the same moment: the oldest revision is the run's
        refuse_other(run, recipe, own_run_id)
    if revision is not None and revision.revision and new_recipe and not revision.ended:
        say(f"recipe revision {revision.revision} is written")
    elif revision is not None and revision.revision > newest_before and not revision.ended:
        say(f"the recipe was changed, and this run has trained nothing yet: revision {revision.revision} is written")
    say(f"address: [bold]{escape(str(address))}[/]")
    return run


def refuse_held(address: RunAddress, others: list[Holder]) -> None:
    """Raise RunOfAnother where `headrace up` runs this run for another data folder."""
    if others:
        who = "; ".join(f"on {one.host}, in {one.folder}, since {format_utc(one.since_ms)}" for one in others)
        raise RunOfAnother(
            f"another `headrace up` runs run {address.run} on {address.connection.bootstrap}: {who}. Begin a new run "
            f"with --set name=ANOTHER-NAME, look at this run with `headrace status --run {address}`, or stop the other "
            "`headrace up`. If it was killed, wait a minute and give the same command again"
        )


def refuse_run_of_another(
    run: Run, recipe: Recipe, own_run_id: str | None, *, embedded_store: bool, starts_parts: bool = True
) -> None:
    """Raise RunOfAnother if resuming would disturb a running run, or lose its objects.

    A run of this data folder is never refused. Another run is refused if its objects cannot be in this folder's
    embedded store, or if a worker is running that this command would start a second time. If this command starts no
    parts, it also looks for the numbered workers of `headrace up`, but not for trainers: their names are the same
    wherever they are started.
    """
    if own_run_id in {"", run.run_id}:
        return
    newest = {status.worker: status for status in _read_statuses(run)}
    alive = [status for status in newest.values() if is_alive(status, now_ms())]
    started_here = {child.name for child in list_components(recipe, "", Path())}
    if not starts_parts:
        started_here -= {f"train-{policy_variant}" for policy_variant in recipe.policy_variants}
    taken = [status for status in alive if status.worker in started_here]
    if not embedded_store and not taken:
        return
    began = format_utc(read_known_revisions(run.address)[0].created_ms)
    who = "; ".join(f"{one.worker} is process {one.pid} on {one.host or 'an unknown host'}" for one in taken or alive)
    why = (
        f"It is running now: {who}"
        if who
        else "It is not running, and its objects are not in the embedded store of this data folder"
    )
    remedy = (
        "resume this run from its own folder"
        if embedded_store
        else "stop these processes or the `headrace up` that runs them, and give the same command again"
    )
    raise RunOfAnother(
        f"run {run.address.run} already exists on {run.address.connection.bootstrap}, begun {began}, but not from this "
        f"data folder. {why}. Begin a new run with --set name=ANOTHER-NAME, look at this run with `headrace status "
        f"--run {run.address}`, or {remedy}"
    )


def begin(recipe: Recipe, say: ReportLine, *, new_recipe: bool) -> Run:
    """Begin a run on servers that the recipe names, and start no component. Raises HeadraceError."""
    folder = data_folder_of(recipe.name, None)
    servers = Servers(recipe.kafka, recipe.store, folder, say)
    all_servers = RunServers(servers, recipe, folder, say)
    if unnamed := all_servers.list_unnamed():
        raise UsageError(
            f"`headrace begin` starts no servers, so the recipe must set {' and '.join(unnamed)}. `headrace servers` "
            "starts a Kafka and an object store, and prints these keys for the recipe. Or use `headrace up`, which "
            "starts everything"
        )
    environments = check_names(recipe)
    servers.start()
    return begin_or_join(
        servers,
        recipe,
        say,
        new_recipe=new_recipe,
        environments=environments,
        starts_parts=False,
        regions=all_servers.describe_regions(),
    )


def _read_statuses(run: Run) -> list[WorkerStatus]:
    """Return all statuses of a run's workers, oldest first."""
    messages = read_all(run.connection, [run.topics.workers])
    return [status for _, status in decode_readable(run, messages, WorkerStatus)]
