"""Opens a run for a command, by its address or folder; the servers of a stopped run are started meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.infra.embedded.data_folder import (
    LAUNCHERS,
    LOOKING,
    RESTING,
    SUMMARY,
    DataFolder,
    RunNotes,
    find_only_folder,
)
from headrace.infra.errors import Unavailable, UsageError
from headrace.infra.kafka.advertised import refuse_unreachable
from headrace.infra.kafka.clients import KafkaAway, RunAddress
from headrace.infra.kafka.run_address import parse_run
from headrace.infra.run.run import NoSuchRun, Run, join, list_runs, require_run
from headrace.ledger.follow import find_ledger_file

OPENING_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run to look at, and its state."""

    run: Run
    rests: bool
    """Whether the run is stopped."""
    began_ms: int = 0
    """When the launcher that runs it now began, in ms since the epoch; 0 if unknown."""
    ledger: Path | None = None
    """File of its ledger."""
    is_alone: bool = False
    """Whether the run is stopped and no other command looks at it, so that its servers were started for this one."""


@contextmanager
def open_run(address: str | None, data: Path | None, *, store: bool = False) -> Iterator[OpenedRun]:
    """Join the run of that address or data folder, or the only one below the working directory.

    An address that is only a name, without `/` or `:` (`retrain --into` makes such runs), is looked for on the folder's
    cluster. For a stopped run, this starts its embedded broker, and with `store` its embedded object store, and stops
    them again; while another command does that, its servers are used. Raises UsageError, which names the existing runs
    if this one does not exist, and what `join` raises.
    """
    named = address is not None and "/" not in address and ":" not in address
    if address and data and not named:
        raise UsageError(
            "give either --run with an address, or --data with a folder; together with --data, --run must be the bare "
            "name of a run on the cluster of that folder"
        )
    if address and not named:
        run = _join(parse_run(address))
        yield OpenedRun(run, rests=False, ledger=find_ledger_file(run.run_id))
        return
    folder = DataFolder(data) if data else find_only_folder()
    notes = replace(folder.require_notes(), run=address) if address else folder.require_notes()
    if not address and (swept := folder.list_runs_of_sweep()):
        raise UsageError(f"{folder.root} is the folder of a sweep: add --run with one of {', '.join(swept)}")
    if (owner := folder.find_holder()) is not None:
        _, holder = owner
        began_ms = folder.find_holder_start_ms() if holder in LAUNCHERS else 0
        with _explain_unreachable(folder):
            run = _join(parse_run(notes.address), folder)
            is_written_offline = bool(run.source) and not run.ended  # by `retrain --into`, which holds it as a look
            ledger = find_ledger_file(run.run_id) if address else folder.ledger
            yield OpenedRun(run, holder in RESTING and not is_written_offline, began_ms, ledger)
        return
    _refuse_servers_elsewhere(folder)
    with ExitStack() as started:
        if notes.embedded_kafka or store:
            started.enter_context(folder.hold(LOOKING))
        run = _start_and_join(folder, notes, started)
        if store and (folder.store.is_dir() or not run.recipe.store.endpoint):  # the runs of a sweep use its store
            from headrace.infra.embedded.store_server import EmbeddedStore

            server = started.enter_context(EmbeddedStore(folder.store))
            run = replace(run, store_address=server.address(run.recipe.store.bucket, run.store_address.prefix))
        ledger = find_ledger_file(run.run_id) if address else folder.ledger
        yield OpenedRun(run, rests=True, ledger=ledger, is_alone=True)


@contextmanager
def _explain_unreachable(folder: DataFolder) -> Iterator[None]:
    """Add a hint to errors of unreachable servers: a run's servers stop shortly before `up` releases its folder."""
    try:
        yield
    except Unavailable as error:
        again = f"the run in {folder.root} does not answer, and may be starting or stopping now: give the command again"
        raise type(error)(f"{again}. If that does not help: {error}") from error


def _start_and_join(folder: DataFolder, notes: RunNotes, started: ExitStack) -> Run:
    """Join a stopped run, after starting its broker if that is embedded."""
    if not notes.embedded_kafka:
        return _join(parse_run(notes.address), folder)
    from headrace.infra.embedded.kafka_server import (
        EmbeddedKafka,  # for a running run these are not needed
    )
    from headrace.infra.embedded.servers import await_leaders

    kafka = started.enter_context(EmbeddedKafka(folder.kafka, for_a_look=True))
    resting = parse_run(f"kafka://{kafka.bootstrap}/{notes.run}")
    await_leaders(resting.connection)
    return _join(resting, folder)


def _refuse_servers_elsewhere(folder: DataFolder) -> None:
    """Raise UsageError for the folder of one run of a sweep, because its servers are in the sweep's folder."""
    sweep = folder.sweep()
    notes = sweep.read() if sweep else None
    if sweep and notes and notes.embedded_kafka:
        raise UsageError(
            f"{folder.root} is one run of a sweep, and its servers are in {sweep.root}: give --data {sweep.root} "
            f"--run {folder.root.name}"
        )


def _join(address: RunAddress, folder: DataFolder | None = None) -> Run:
    """Join a run. If it does not exist, raise UsageError with the runs that do, and for a sweep why it is gone."""
    try:
        refuse_unreachable(address.connection)
        require_run(address, list_runs(address.connection, OPENING_PATIENCE_S))
    except KafkaAway as error:
        raise KafkaAway(f"{address.connection.bootstrap}: {error}") from error
    except NoSuchRun as error:
        raise UsageError(f"{error}{_describe_deleted(folder, address.run) if folder else ''}") from error
    return join(address, OPENING_PATIENCE_S)


def _describe_deleted(folder: DataFolder, run: str) -> str:
    """Return the sentence that a sweep deleted a run's topics, if the folder shows this; else an empty text."""
    sweep = folder.sweep() or folder
    if not sweep.list_runs_of_sweep():
        return ""
    if not (sweep.root / run / SUMMARY).exists():
        return (
            f". {sweep.root} is the folder of a sweep: `headrace compare` deletes the topics of finished runs, unless "
            "the sweep file says `keep = true`"
        )
    return (
        f". In fact run {run} is a finished run of the sweep in {sweep.root}, so its topics were deleted. Its result "
        f"is in {sweep.root / run / SUMMARY}, and `headrace compare` shows it. To look at its groups, put `keep = "
        f"true` into the sweep file, remove {sweep.root / run}, and give `headrace compare` again: it then plays the "
        "run again"
    )
