"""`headrace up`: servers, topics, recipe, components, page, summary, and the way back down."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

import structlog
from rich.console import Console
from rich.markup import escape

from headrace.infra.atomic_files import write_atomically
from headrace.infra.embedded.data_folder import UP, DataFolder, RunNotes
from headrace.infra.embedded.servers import Servers
from headrace.infra.environment import KAFKA_CLIENT_VARIABLE
from headrace.infra.errors import HeadraceError, Unavailable, UsageError
from headrace.infra.kafka.topic_admin import ensure_topics
from headrace.infra.log import configure_logging
from headrace.infra.process.signals import INTERRUPTED, STOP_WITHIN_S, signals_ignored, signals_interrupt
from headrace.infra.process.supervisor import Child, Patience, Supervisor
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.revisions import first_message, settled, write_revision
from headrace.infra.run.run import Run, join
from headrace.ops.recipe_check import check_names
from headrace.schemas.topics import policy_of, variant_of

TURN_S = 0.25
AWAY_PAUSE_S = 1.0
NOTE_EVERY_S = 5.0
COMPONENTS_STOP_S = 8.0
GROUPS_DRAIN_S = 30.0
"""After the end of a run: workers conclude what they hold within 10 s, and the tasks of one that was killed are another
worker's after 8 s."""
EVALUATION_DRAIN_S = 60.0
"""The last version's evaluation may take longer than that: it is half of what a run is for."""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--max-restarts", "0", "--nproc-per-node")
"""Starts the processes of one trainer on this machine; when one dies all end, and the supervisor begins them anew."""

log = structlog.get_logger()

T = TypeVar("T")


class Page(Protocol):
    """Follows a run's topics and shows them."""

    def turn(self, timeout_s: float) -> None:
        """Read what is new, waiting so long for something, and show it."""

    @property
    def ended(self) -> str:
        """Why the run is over; empty while it goes on."""

    @property
    def in_flight(self) -> int:
        """Numbers that are issued and not concluded, over all policies and shadows."""

    @property
    def awaits_evaluation(self) -> bool:
        """Whether the last version's evaluation is still to come."""

    def close(self) -> None:
        """Leave the terminal as it was."""


@dataclass(frozen=True, slots=True)
class Order:
    """What `headrace up` was asked for."""

    recipe: Recipe
    data: Path
    summary: Path | None = None
    new_recipe: bool = False
    plain: bool = False
    program: str = "headrace"
    """How this user calls it."""
    again: str = "headrace up …"
    """The command line, for telling how to go on."""


def up(order: Order, console: Console) -> int:
    """Run a recipe from where it is to its end; return the exit code. Raises HeadraceError."""
    folder = DataFolder(order.data)
    check_names(order.recipe)
    with folder.owned(UP), signals_interrupt():
        notes = folder.read()
        if notes is not None and notes.run != order.recipe.name:
            raise UsageError(
                f"{folder.root} holds run {notes.run}, the recipe's name is {order.recipe.name}: give another --data, "
                f"or --set name={notes.run}"
            )
        _check_summary_path(order.summary)
        with redirected_log(folder.logs / "up.log"):
            launch = Launch(order, folder, notes, console)
            try:
                return launch.run()
            except KeyboardInterrupt:
                with signals_ignored():
                    console.print("\n[bold]Stopping[/]: nothing is lost, at most 10 s …")
                    launch.stop(STOP_WITHIN_S)
                _tell_how_to_go_on(order, console, "Stopped. To go on from here:")
                return INTERRUPTED
            except HeadraceError:
                if launch.has_begun:
                    _tell_how_to_go_on(
                        order, console, "Stopped by the error below. Once that is mended, to go on from here:"
                    )
                raise
            finally:
                with signals_ignored():
                    launch.stop(STOP_WITHIN_S)


def _tell_how_to_go_on(order: Order, console: Console, words: str) -> None:
    console.print(f"{words}\n  {order.again}", highlight=False, soft_wrap=True, markup=False)


class Launch:
    """One `headrace up`, from the first server to the last."""

    def __init__(self, order: Order, folder: DataFolder, notes: RunNotes | None, console: Console) -> None:
        self._order = order
        self._recipe = order.recipe
        self._folder = folder
        self._before = notes
        self._console = console
        self._began = time.monotonic()
        self._servers = Servers(order.recipe, folder, self._say)
        self._supervisor: Supervisor | None = None
        self._run_is_over = False
        self._run: Run | None = None
        self._notes = notes
        self._noted = 0.0

    @property
    def has_begun(self) -> bool:
        """Whether there is a run, which the same command goes on with."""
        return self._run is not None

    def run(self) -> int:
        """Bring the run to its end and show what came of it. Raises HeadraceError, and KeyboardInterrupt."""
        self._say(f"run [bold]{self._recipe.name}[/] in {self._folder.root}")
        self._servers.claim()
        early = self._before is None and self._servers.embedded_kafka
        if early:  # a new run: their imports take as long as the broker's start, and they wait for the recipe
            self._start_components()
        self._servers.fetch()
        own = (("Kafka", self._servers.embedded_kafka), ("the object store", self._servers.embedded_store))
        if names := [name for name, embedded in own if embedded]:
            self._say(f"starting {' and '.join(names)}")
        self._servers.start()
        run = self._run = self._settle()
        self._note(run)
        if run.ended and self._before is not None and self._before.finished:
            self._console.print(f"Run [bold]{self._recipe.name}[/] is finished ({run.ended}).")
        else:
            if not early:
                self._start_components()
            in_flight = self._follow(run)
            self._run = None
            self._end_components()
            self._note(run, finished=not in_flight)
            if in_flight:
                self._say(
                    f"{in_flight} groups are still in flight {GROUPS_DRAIN_S:.0f} s after the end of the run: the same "
                    "command goes on with them"
                )
        self._patiently(lambda: self._summarize(join(self._servers.address)))
        self._servers.stop()
        return 0

    def stop(self, within_s: float) -> None:
        """Stop all that runs; components first, as their last commits need the broker."""
        end = time.monotonic() + within_s
        if self._supervisor is not None:
            self._end_components(min(COMPONENTS_STOP_S, within_s))
        if self._run is not None:
            self._note(self._run)
            self._run = None
        self._servers.stop(max(1.0, end - time.monotonic()))

    # ------------------------------------------------------------------------------------------------------- the way up

    def _settle(self) -> Run:
        """Create the topics and write the recipe, where they are not there yet."""
        address = self._servers.address
        store, is_ours = self._servers.store_address, self._servers.embedded_store
        first = first_message(address)
        revision = settled(address, self._recipe, store, with_keys=is_ours, new_recipe=self._order.new_recipe)
        topics = self._recipe.topics
        ensure_topics(address.connection, self._recipe.topic_specs)
        if revision is not None:
            write_revision(address.connection, topics.recipe, revision, first)
            if revision.revision and self._order.new_recipe and not revision.ended:
                self._say(f"recipe revision {revision.revision} is written")
        self._say(f"address: [bold]{address}[/]")
        return join(address)

    def _start_components(self) -> None:
        environment = dict(os.environ)
        if client := self._servers.client:
            environment[KAFKA_CLIENT_VARIABLE] = json.dumps(client)
        self._supervisor = Supervisor(
            components_of(self._recipe, str(self._servers.address), self._folder.logs),
            self._folder.logs,
            environment,
            patience=Patience(most_short_lives=self._recipe.launch.most_short_lives),
            is_over=lambda: self._run_is_over,
            also=lambda: {**self._servers.pids(), "up": os.getpid()},
        )
        self._supervisor.start()

    # --------------------------------------------------------------------------------------------------- while it runs

    def _follow(self, run: Run) -> int:
        """Show the run until it has ended and drained, or should have; return how many numbers are in flight then."""
        from headrace.app.views.live import LivePage

        assert self._supervisor is not None  # noqa: S101 - started by `run`
        states = self._supervisor.states
        before = self._before.effort.wall_s if self._before and self._before.run_id == run.run_id else 0.0
        page: Page = self._patiently(
            lambda: LivePage(
                run,
                self._console,
                plain=self._order.plain,
                processes=states,
                spent_s=before + time.monotonic() - self._began,
            )
        )
        try:
            ended_at: float | None = None
            while ended_at is None or not is_drained(page, time.monotonic() - ended_at):
                page.turn(TURN_S)
                self._supervisor.raise_failure()
                self._servers.revive()
                if page.ended and ended_at is None:
                    ended_at, self._run_is_over = time.monotonic(), True
                if time.monotonic() - self._noted > NOTE_EVERY_S:
                    self._note(run)
            return page.in_flight
        finally:
            page.close()

    def _patiently(self, call: Callable[[], T]) -> T:
        """Return what the call returns, waiting as long as a server is away."""
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

    def _note(self, run: Run, *, finished: bool | None = None) -> None:
        """Write down what is known; a launcher that is killed loses some seconds of accounts, nothing else."""
        self._noted = time.monotonic()
        before = self._before
        cpu = self._supervisor.cpu_seconds() if self._supervisor else {}
        notes = RunNotes(
            run=self._recipe.name,
            bootstrap=self._servers.connection.bootstrap,
            embedded_kafka=self._servers.embedded_kafka,
            run_id=run.run_id,
            finished=bool(run.ended and before and before.finished) if finished is None else finished,
        )
        if before is not None and before.run_id == run.run_id:
            notes = replace(notes, effort=before.effort)
        if self._supervisor is not None:
            notes = replace(notes, effort=notes.effort.plus(time.monotonic() - self._began, cpu))
        self._notes = notes
        try:
            self._folder.write(notes)
        except OSError as error:  # a full disk: the next note tells it, and a launcher that is killed loses accounts
            log.warning("notes.not_written", error=str(error))

    # ----------------------------------------------------------------------------------------------------- the way down

    def _end_components(self, timeout_s: float = COMPONENTS_STOP_S) -> None:
        if self._supervisor is not None:
            self._supervisor.stop(timeout_s)

    def _summarize(self, run: Run) -> None:
        """Write the summary file and show the summary, both from the topics."""
        from headrace.app.views.closing import show_summary
        from headrace.ops.figures.summary import summarize

        assert self._notes is not None  # noqa: S101 - written by `run`
        summary = summarize(run, self._notes.effort, self._folder)
        if self._order.summary is not None:
            write_atomically(self._order.summary, (json.dumps(summary, indent=1) + "\n").encode())
        show_summary(summary, self._console, self._order.program, self._order.again)

    def _say(self, words: str) -> None:
        self._console.print(f"[dim]headrace:[/] {words}", highlight=False, soft_wrap=True)


def _check_summary_path(path: Path | None) -> None:
    """Refuse a summary file that cannot be written before the run, not after it."""
    if path is None:
        return
    folder = path.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"the summary cannot be written to {path}: {folder} is no folder that this user may write to")


def is_drained(page: Page, since_end_s: float) -> bool:
    """Tell whether nothing more can be expected of a run that has ended."""
    if page.in_flight and since_end_s < GROUPS_DRAIN_S:
        return False
    return not (page.awaits_evaluation and since_end_s < EVALUATION_DRAIN_S)


def components_of(recipe: Recipe, address: str, logs: Path) -> list[Child]:
    """Return the component processes of a run on one machine, as the recipe's `launch` says."""

    def child(name: str, *words: str, torch_processes: int = 0) -> Child:
        together = ["-m"]
        if torch_processes > 1:  # without a folder for it, torchrun leaves one in /tmp
            together = [*TORCHRUN, str(torch_processes), "--log-dir", str(logs / "torchrun"), "-m", "--"]
        return Child(name, [sys.executable, *together, "headrace", *words, "--run", address], torch_processes)

    trainers = {line: recipe.trainer_of(line).processes for line in recipe.lines}
    children = [
        child(f"train-{line}", "train", *_options_of(line), torch_processes=processes)
        for line, processes in trainers.items()
        if processes
    ]
    children += [
        child(name, "rollout", "--workflow", workflow, "--name", name, torch_processes=1)
        for workflow in recipe.workflows
        for name in (f"rollout-{workflow}-{n}" for n in range(recipe.launch.workers))
    ]
    children.append(child("feed", "feed"))
    children += [
        child(f"curate-{line}-{n}", "curate", *_options_of(line), "--slot", str(n))
        for line in recipe.lines
        for n in range(1 if variant_of(line) else recipe.launch.curators)
    ]
    if recipe.evaluate.every:
        children.append(child("evaluate", "evaluate"))
    return children


def _options_of(line: str) -> list[str]:
    """Return how the command line names a policy or a shadow."""
    variant = variant_of(line)
    return ["--policy", policy_of(line), *(["--variant", variant] if variant else [])]


@contextmanager
def redirected_log(path: Path) -> Iterator[None]:
    """Log to a file: the terminal is the page's, which log lines would tear."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", buffering=1) as file:
        with redirect_stderr(file):  # structlog keeps the stream that it finds when it is configured
            configure_logging("up")
        try:
            yield
        finally:
            structlog.reset_defaults()
