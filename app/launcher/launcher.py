"""`headrace up`: start servers, topics, recipe, components and page, write the summary, stop all again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import structlog
from rich.console import Console
from rich.markup import escape

from headrace.app.launcher.beginning import begin_or_join
from headrace.app.launcher.components import list_components
from headrace.app.launcher.drained import AllFailed, Drain, RunPage, describe_rest
from headrace.app.launcher.early_imports import make_fork_server
from headrace.app.launcher.look_before import check_before_start
from headrace.app.launcher.redirected_log import redirect_log
from headrace.app.launcher.run_servers import RunServers
from headrace.app.launcher.scaling import Scaling
from headrace.app.views.say import say
from headrace.infra.embedded.data_folder import UP, DataFolder, RunNotes
from headrace.infra.embedded.servers import Servers
from headrace.infra.environment import KAFKA_CLIENT_VARIABLE, PLUG_INS_VARIABLE
from headrace.infra.errors import HeadraceError, Unavailable, UsageError
from headrace.infra.kafka.clients import RunAddress
from headrace.infra.kafka.topic_admin import fetch_session_timeout_s
from headrace.infra.plug_ins import search_folders
from headrace.infra.process.child_life import Child, GaveUp
from headrace.infra.process.fork_client import ForkServer
from headrace.infra.process.fork_start import start_fork_server
from headrace.infra.process.patience import Patience
from headrace.infra.process.signals import INTERRUPTED, STOP_WITHIN_S, ignore_signals, interrupt_on_signals
from headrace.infra.process.supervisor import Supervisor
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import Run, join
from headrace.infra.run.up_lease import Holder, UpLease
from headrace.ops.figures.standstill import Surroundings
from headrace.schemas.ids import now_ms
from headrace.schemas.records import UsedEnvironment

if TYPE_CHECKING:
    from headrace.ops.figures.summary import AuditVerdict

LAUNCHER_TURN_S = 0.25
AWAY_PAUSE_S = 1.0
NOTE_EVERY_S = 5.0
COMPONENTS_STOP_S = 8.0

log = structlog.get_logger()

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UpRequest:
    """The options of `headrace up`."""

    recipe: Recipe
    data: Path
    summary: Path | None = None
    new_recipe: bool = False
    plain: bool = False
    program: str = "headrace"
    """The command by which this user calls Headrace."""
    again: str = "headrace up …"
    """The command line that resumes the run."""
    branch: str = ""
    """Version of another run to begin with: `RUN@VERSION`; empty to begin as the recipe says."""
    parent: str = ""
    """The version that `branch` was found to name, with its run id."""
    forks: ForkServer | None = None
    """A fork server that is already importing what every component needs; stopped if it is not used."""


def up(request: UpRequest, console: Console) -> int:
    """Start or resume the run of a recipe, and follow it to its end; return the exit code. Raises HeadraceError."""
    folder = DataFolder(request.data)
    request = _begin_at_branch(request, folder)  # before the checks, as they must see the recipe that begins
    looked = check_before_start(request.recipe, folder, request.summary)
    for doubt in looked.doubts:
        say(console, escape(doubt), "yellow")
    with folder.hold(UP), interrupt_on_signals(), UpLease(Holder.of_folder(folder.root)) as lease:
        notes = folder.read()
        if notes is not None and notes.run != request.recipe.name:
            raise UsageError(
                f"{folder.root} holds run {notes.run}, but the recipe's name is {request.recipe.name}: give another "
                f"--data, or --set name={notes.run}"
            )
        with redirect_log(folder.logs / "up.log"):
            launch = Launcher(request, folder, notes, console, looked.environments, lease.take)
            try:
                return launch.run()
            except KeyboardInterrupt:
                with ignore_signals():
                    console.print("\n[bold]Stopping[/] (up to 10 s); no data is lost …")
                    launch.stop(STOP_WITHIN_S)
                _print_how_to_resume(request, console, "Stopped. Resume with:")
                return INTERRUPTED
            except HeadraceError:
                if launch.has_begun:
                    _print_how_to_resume(
                        request,
                        console,
                        "Stopped by the error below. After fixing it (add --new-recipe if you changed the recipe or "
                        "your own module), resume with:",
                    )
                raise
            finally:
                with ignore_signals():
                    launch.stop(STOP_WITHIN_S)


def _begin_at_branch(request: UpRequest, folder: DataFolder) -> UpRequest:
    """Return a request whose recipe begins with what `--branch` names, copied into its folder. Raises UsageError.

    A run that began as a branch continues as one, with or without `--branch`.
    """
    if not request.branch and not folder.branch.exists():
        return request
    from headrace.ops.branch import branch

    with folder.hold(UP):
        found = branch(request.recipe, request.branch, folder)
    return replace(request, recipe=found.recipe, parent=found.parent)


def _print_how_to_resume(request: UpRequest, console: Console, words: str) -> None:
    console.print(f"{words}\n  {request.again}", highlight=False, soft_wrap=True, markup=False)


class Launcher:
    """One `headrace up`, from the first server to the last."""

    def __init__(
        self,
        request: UpRequest,
        folder: DataFolder,
        notes: RunNotes | None,
        console: Console,
        environments: tuple[UsedEnvironment, ...] = (),
        hold: Callable[[RunAddress], list[Holder]] = lambda _: [],
    ) -> None:
        self._request, self._environments, self._hold = request, environments, hold
        self._recipe = request.recipe
        self._folder = folder
        self._before = notes
        self._console = console
        self._began = time.monotonic()
        self._scaling = Scaling(request.recipe, folder)
        self._servers = Servers(request.recipe.kafka, request.recipe.store, folder, self._say)
        self._all_servers = RunServers(self._servers, request.recipe, folder, self._say)
        self._supervisor: Supervisor | None = None
        self._run_is_over = False
        self._progress: object = None
        """Progress of the run; None while a server does not answer, because it cannot progress then."""
        self._run: Run | None = None
        self._notes = notes
        self._noted = 0.0

    @property
    def has_begun(self) -> bool:
        """Whether there is a run that the same command resumes."""
        return self._run is not None

    def run(self) -> int:
        """Run to the end and show the result. Raises HeadraceError and KeyboardInterrupt."""
        self._say(f"run [bold]{self._recipe.name}[/] in {escape(str(self._folder.root))}")
        self._all_servers.claim()
        early = self._before is None and self._servers.has_embedded_kafka
        if early:  # a new run: their imports take as long as the broker's start, and they wait for the recipe
            self._start_components()
        self._servers.fetch_jars()
        own = (("Kafka", self._servers.has_embedded_kafka), ("the object store", self._servers.has_embedded_store))
        if names := [name for name, embedded in own if embedded]:
            self._say(f"starting {' and '.join(names)}")
        self._all_servers.start()
        run = self._run = begin_or_join(
            self._servers,
            self._recipe,
            self._say,
            new_recipe=self._request.new_recipe,
            environments=self._environments,
            own_run_id=self._before.run_id if self._before else None,
            parent=self._request.parent,
            remember=self._record_run,
            hold=self._hold,
            regions=self._all_servers.describe_regions(),
        )
        self._record_state(run)
        rest = ""
        if run.ended and self._before is not None and self._before.finished:
            self._console.print(f"Run [bold]{self._recipe.name}[/] is finished ({escape(run.ended)}).")
        else:
            if not early:
                self._start_components()
            rest = self._supervise_until_drained(run)
            self._run = None
            self._end_components()
            self._record_state(run, finished=not rest)
            if rest:
                self._say(f"[yellow]{escape(rest)}[/]")
        verdict = self._call_when_reachable(lambda: self._summarize(join(self._address), rest))
        self._all_servers.stop()
        if verdict.exit_code:
            self._say(f"the audit of this run {verdict.advice}")
        return verdict.exit_code

    def stop(self, within_s: float) -> None:
        """Stop all processes; components first, as their last commits need the broker."""
        end = time.monotonic() + within_s
        if self._supervisor is not None:
            self._end_components(min(COMPONENTS_STOP_S, within_s))
        if self._run is not None:
            self._record_state(self._run)
            self._run = None
        self._all_servers.stop(max(1.0, end - time.monotonic()))

    # ------------------------------------------------------------------------------------------------------- the way up

    @property
    def _address(self) -> RunAddress:
        """Address of the run; that of an embedded Kafka is known once its folder is claimed."""
        return RunAddress(self._servers.connection, self._recipe.name)

    def _start_components(self) -> None:
        environment = dict(os.environ)
        environment[PLUG_INS_VARIABLE] = os.pathsep.join(search_folders())
        if client := self._servers.client:
            environment[KAFKA_CLIENT_VARIABLE] = json.dumps(client)
        if self._before is not None:
            self._say_all(self._scaling.begin(self._before.run_id))
        children, logs, wanted = self._list_children(), self._folder.logs, self._recipe.launch.fork
        forks = start_fork_server(self._request.forks or make_fork_server(), children, environment, logs, wanted=wanted)
        self._supervisor = Supervisor(
            children,
            logs,
            environment,
            patience=Patience(most_short_lives=self._recipe.launch.most_short_lives),
            is_over=lambda: self._run_is_over,
            progress=lambda: self._progress,
            other_pids=lambda: {**self._all_servers.pids(), "up": os.getpid()},
            forks=forks,
        )
        self._supervisor.start()

    def _list_children(self) -> list[Child]:
        counts, regions = self._scaling.counts, self._all_servers.list_region_addresses()
        return list_components(self._recipe, str(self._address), self._folder.logs, counts, regions)

    # --------------------------------------------------------------------------------------------------- while it runs

    def _supervise_until_drained(self, run: Run) -> str:
        """Show the run until it has drained, or nothing more is expected; return in words what is missing."""
        from headrace.app.views.live import LivePage

        assert self._supervisor is not None  # noqa: S101 - started by `run`
        states, began_ms, logs = self._supervisor.states, now_ms(), str(self._folder.logs)
        before = self._before.effort.wall_s if self._before and self._before.run_id == run.run_id else 0.0
        page: RunPage = self._call_when_reachable(
            lambda: LivePage(
                run,
                self._console,
                plain=self._request.plain,
                around=lambda: Surroundings(began_ms, self._servers.watch(), states(), logs),
                spent_s=before + time.monotonic() - self._began,
                ledger=self._folder.ledger,
            )
        )
        try:
            self._turn_until_drained(run, page, self._supervisor)
        except GaveUp as error:
            raise type(error)("\n".join(filter(None, (str(error), page.standstill)))) from error
        else:
            return describe_rest(page)
        finally:
            page.close()

    def _turn_until_drained(self, run: Run, page: RunPage, supervisor: Supervisor) -> None:
        """Show the run until nothing more can be expected of it. Raises GaveUp and AllFailed."""
        session_s = lambda: self._call_when_reachable(lambda: fetch_session_timeout_s(run.connection))  # noqa: E731
        drain = Drain(page, session_s, self._recipe.rollout.episode_limit_s, self._servers.is_answering)
        while not drain.is_over():
            page.turn(LAUNCHER_TURN_S)
            supervisor.raise_failure()
            if page.hopeless:
                raise AllFailed(page.hopeless)
            is_away = any((self._all_servers.revive(), self._servers.watch()))
            self._progress = None if is_away else page.progress
            if is_away:
                drain.restart_clocks()
            self._say_all(supervisor.take_news(), "red")
            self._run_is_over = self._run_is_over or bool(page.ended)
            if not self._run_is_over and (changes := self._scaling.follow(run.run_id)):
                supervisor.set_children(self._list_children())
                self._say_all(changes)
            if time.monotonic() - self._noted > NOTE_EVERY_S:
                self._record_state(run)

    def _call_when_reachable(self, call: Callable[[], T]) -> T:
        """Return the call's result, waiting as long as a server is unreachable."""
        said = False
        while True:
            try:
                return call()
            except Unavailable as error:
                if not said:
                    self._say(f"waiting: {escape(str(error))}")
                said = True
                self._servers.revive()
                time.sleep(AWAY_PAUSE_S)

    def _record_run(self, run_id: str) -> None:
        """Record the run of this folder before anything of it is written to the cluster."""
        own, connection = self._servers.has_embedded_kafka, self._servers.connection
        self._folder.write(RunNotes(self._recipe.name, connection.bootstrap, own, run_id))

    def _record_state(self, run: Run, *, finished: bool | None = None) -> None:
        """Record the state of the run, so that a killed launcher loses only some seconds of its accounting."""
        self._noted = time.monotonic()
        before = self._before
        cpu = self._supervisor.cpu_seconds() if self._supervisor else {}
        notes = RunNotes(
            run=self._recipe.name,
            bootstrap=self._servers.connection.bootstrap,
            embedded_kafka=self._servers.has_embedded_kafka,
            run_id=run.run_id,
            finished=bool(run.ended and before and before.finished) if finished is None else finished,
        )
        if before is not None and before.run_id == run.run_id:
            notes = replace(notes, effort=before.effort)
        if self._supervisor is not None:
            notes = replace(notes, effort=notes.effort.add(time.monotonic() - self._began, cpu))
        self._notes = notes
        try:
            self._folder.write(notes)
        except OSError as error:  # a full disk: a later call may succeed, and only a killed launcher loses accounting
            # `run.json` in the data folder, by which commands find the run.
            log.warning("notes.not_written", error=str(error))

    # ----------------------------------------------------------------------------------------------------- the way down

    def _end_components(self, timeout_s: float = COMPONENTS_STOP_S) -> None:
        if self._supervisor is not None:
            self._supervisor.stop(timeout_s)

    def _summarize(self, run: Run, rest: str) -> AuditVerdict:
        """Show the summary and write its file, both from topics and store; return the verdict of the audit."""
        from headrace.app.views.closing import show_summary
        from headrace.ops.figures.summary import summarize
        from headrace.ops.summary_file import write_summary

        assert self._notes is not None  # noqa: S101 - written by `run`
        summary = summarize(run, self._notes.effort, self._folder, rest)
        show_summary(summary, self._console, self._request.program, "" if self._folder.sweep() else self._request.again)
        write_summary(self._request.summary, summary)
        return summary.audit

    def _say(self, words: str) -> None:
        say(self._console, words)

    def _say_all(self, sentences: Sequence[str], style: str = "none") -> None:
        for words in sentences:
            say(self._console, escape(words), style)
