"""The live page: follows a run's topics, and shows the run as a page on a terminal, else as a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

import structlog
from rich.console import Console
from rich.live import Live
from rich.markup import escape

from headrace.app.views.lag_meter import LagMeter
from headrace.app.views.safe_text import Text
from headrace.app.views.say import say
from headrace.app.views.standstill_news import StandstillNews
from headrace.app.views.tables import describe_revision
from headrace.app.views.view import Moment, describe_so_far, line, list_warnings, page
from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.clients import KafkaAway, Message
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import Run
from headrace.ledger.follow import Follower, open_ledger
from headrace.ledger.ledger import LedgerRemade
from headrace.ledger.liveness import is_alive
from headrace.ledger.tallies import recount
from headrace.ops.episode_errors import ErrorSeen
from headrace.ops.figures.figures import Figures
from headrace.ops.figures.pulse import find_pulse
from headrace.ops.figures.run_figures import RunFigures
from headrace.ops.figures.standstill import Surroundings
from headrace.schemas.episode_errors import error_key_of
from headrace.schemas.ids import now_ms
from headrace.schemas.records import EvalResult

REFRESH_S = 0.5
BUSY_SHARE = 0.05
"""Largest share of a core to spend on figures, for any number of groups."""
PLAIN_INTERVAL_S = 5.0
"""Seconds between two lines of `--plain`."""
PAST_S = 60.0
"""Longest time to read a run's past before something is shown, in seconds."""
MOST_MESSAGES_A_POLL = 512

log = structlog.get_logger()


class LivePage:
    """Follows a run from its beginning.

    Args:
        run: The run, joined.
        console: Where to show it.
        plain: Lines even on a terminal.
        around: What is known of the run beside its topics.
        spent_s: Seconds that the run has taken so far.
        opening: First words of the line that reports the state of a run that has begun before.
        ledger: File of the run's ledger; None to keep it in memory.
    """

    def __init__(  # noqa: PLR0913 - each named at the call
        self,
        run: Run,
        console: Console,
        *,
        plain: bool,
        around: Callable[[], Surroundings] = Surroundings,
        spent_s: float = 0.0,
        opening: str = "resumed",
        ledger: Path | None = None,
    ) -> None:
        self._run = run
        self._console = console
        self._around = around
        self._opening = opening
        rows = open_ledger(run, ledger)
        self._fold = Figures(rows)
        self._follower = Follower(run.connection, rows, rows.topics, "page")
        self._past = Past(self._follower.ends())
        self._stage: Literal["past", "shown", "lost"] = "past"
        """Whether it reads the past, shows the run, or has lost its ledger, so that all is to be read again."""
        self._revision = 0
        """The revision in force at the last look."""
        self._standstill_news = StandstillNews()
        self._reported: set[tuple[str, ...]] = set()
        """Lines that were printed and are printed only once."""
        self._errors = PageErrors(self._say)
        self._lag = LagMeter(run)
        self._began = time.monotonic() - spent_s
        self._due = self._line_due = 0.0
        with suppress(LedgerRemade):  # a ledger that was made anew is empty
            recount(rows)
        self._figures = self._fold.compute_figures({}, 0)
        self._pulse = find_pulse(self._fold.ledger, 0)
        self._last_line: object = None
        """Progress of the run that the newest line reported."""
        live = console.is_terminal and not plain
        self._live = Live(console=console, auto_refresh=False, transient=False) if live else None

    def turn(self, timeout_s: float) -> None:
        """Read what is new, waiting at most that long for it, and show it when a redraw is due."""
        try:
            if self._stage == "lost":
                self._start_again()
            with self._errors.suppress_own_errors():
                self._follower.poll(MOST_MESSAGES_A_POLL, timeout_s, lambda one: 0 if self._past.has(one) else now_ms())
            if self._stage == "past" and self._past.is_read(self._follower.positions):
                self._begin()
            if self._stage == "shown" and time.monotonic() >= self._due:
                self._refresh()
        except LedgerRemade:
            self._stage = "lost"

    def _start_again(self) -> None:
        """Read the past again, after the ledger was made anew. While Kafka is away, the next turn tries it again."""
        with suppress(KafkaAway):
            self._follower.begin_again()
            self._past, self._stage = Past(self._follower.ends()), "past"

    def _begin(self) -> None:
        """Report the state of a run that has begun before, and show it from now on."""
        self._stage = "shown"
        with self._errors.suppress_own_errors():
            figures = self._fold.compute_figures({}, 0)
            if figures.versions:
                self._say(f"{self._opening}: {describe_so_far(self._run.recipe, figures)}")
            if figures.in_force is not None:
                self._revision = figures.in_force.revision
        if self._live is not None:
            self._live.start()

    def _say(self, words: str, style: str = "none") -> None:
        say(self._console, escape(words), style)

    def _print_swap(self, figures: RunFigures) -> None:
        """Show a revision of the recipe that came into force."""
        found = figures.in_force
        if found is not None and found.revision != self._revision:
            self._revision = found.revision
            self._say(describe_revision(found))

    def _print_errors(self, errors: Sequence[ErrorSeen]) -> None:
        """Print each error once, without a live page. Held-out episodes may have one that was not printed before."""
        for error in errors:
            what = (error.stream, error.component, *error_key_of(error.first))
            if error.version < 0 or what not in self._reported:
                self._print_once(("held out", *what) if error.version >= 0 else what, error.sentence, "red")

    def _print_once(self, what: tuple[str, ...], sentence: str, style: str) -> None:
        """Print a line once, without a live page."""
        if what not in self._reported and self._live is None:
            self._say(sentence, style)
        self._reported.add(what)

    @property
    def ended(self) -> str:
        """Why the run is over; empty while it is running."""
        with suppress(LedgerRemade):
            return self._fold.ended if self._errors.has_reported else self._figures.ended
        self._stage = "lost"
        return self._figures.ended

    @property
    def in_flight(self) -> int:
        """Number of tasks that are issued and not concluded, over all policies and shadows."""
        return self._figures.in_flight

    @property
    def awaited_evaluations(self) -> tuple[str, ...]:
        """Evaluations of the last version of a policy that are still to come, in words, by workflow.

        A workflow of which a policy has no version cannot be played.
        """
        if not self._run.recipe.evaluate.every or not self.ended:
            return ()
        newest = {policy: pulse.newest_published for policy, pulse in self._pulse.policies.items()}
        return tuple(_list_awaited(self._run.recipe, newest, self._figures.evals))

    @property
    def work(self) -> object:
        """How many episodes and groups each worker has concluded, and how many evaluations are complete."""
        workers = self._figures.workers
        done = {one.worker: (one.episodes_done, one.episodes_failed, one.groups_done) for one in workers}
        return done, len(self._figures.evals)

    @property
    def has_starting_worker(self) -> bool:
        """Whether a worker is starting and plays no episode yet."""
        now = now_ms()
        return any(one.state == "starting" and is_alive(one, now) for one in self._figures.workers)

    @property
    def progress(self) -> object:
        """How far the run is: the newest version of each policy and shadow, and how often they were evaluated."""
        found = self._figures
        shadows = {name: shadow.version for name, shadow in found.shadows.items()}
        return {**found.versions, **shadows}, len(found.evals)

    @property
    def standstill(self) -> str:
        """Why the run makes no further version, even before one is overdue; empty once it has ended."""
        now, standstill = now_ms(), None
        with suppress(LedgerRemade), self._errors.suppress_own_errors():
            found = self._fold.compute_figures(self._lag.newest, now)
            standstill = self._fold.standstill(found, self._around(), now, at_once=True)
        return "" if standstill is None else standstill.sentence

    @property
    def hopeless(self) -> str:
        """Why to give up the run (no episode has ever succeeded); empty otherwise."""
        found = self._figures.standstill
        return found.sentence if found is not None and found.hopeless else ""

    def close(self) -> None:
        """Show the last state and restore the terminal; after a run's end the closing page follows instead."""
        try:
            if not (self.ended and self._last_line == self._measure_progress):
                self._line_due = 0.0
            with suppress(LedgerRemade):
                if self._stage == "shown":
                    self._refresh()
        finally:
            if self._live is not None:
                self._live.transient = bool(self.ended)
                self._live.stop()
            self._lag.close()
            self._follower.close()
            self._fold.ledger.close()

    @property
    def _measure_progress(self) -> object:
        return self.ended, self.in_flight, self.progress

    def _refresh(self) -> None:
        began, worked = time.monotonic(), time.thread_time()
        with self._errors.suppress_own_errors():
            self._show(began)
        self._due = time.monotonic() + max(REFRESH_S, (time.thread_time() - worked) / BUSY_SHARE)

    def _show(self, began: float) -> None:
        now = now_ms()
        self._lag.positions = self._fold.trainer_positions
        around, found = self._around(), self._fold.compute_figures(self._lag.newest, now)
        self._pulse = find_pulse(self._fold.ledger, now)
        self._figures = replace(found, standstill=self._fold.standstill(found, around, now))
        self._print_swap(self._figures)
        self._print_errors(self._figures.errors)
        for advice in self._figures.advice:
            self._print_once((advice.policy, advice.name, advice.stream), advice.sentence, "yellow")
        stand = self._figures.standstill, began, self._figures.versions
        if self._live is None and (words := self._standstill_news.take_sentence(*stand)):
            self._say(words, "bold red" if self._standstill_news.cause == "failing" else "none")
        moment = Moment(
            recipe=self._run.recipe,
            figures=self._figures,
            pulse=self._pulse,
            rates=self._pulse.rates,
            elapsed_s=began - self._began,
            now_ms=now,
            processes=around.processes,
        )
        if self._live is not None:
            self._draw(self._live, moment)
        elif began >= self._line_due:
            for name, sentence in list_warnings(moment).items():  # the regular lines show only their names
                self._print_once(("warning", name), sentence, "yellow")
            self._console.print(line(moment), highlight=False, markup=False, soft_wrap=True)
            self._line_due, self._last_line = began + PLAIN_INTERVAL_S, self._measure_progress

    def _draw(self, drawn: Live, moment: Moment) -> None:
        """Draw the page. If that fails, print lines instead: the run must continue."""
        try:
            drawn.update(page(moment, self._console.width), refresh=True)
        except Exception as error:
            drawn.update(Text())  # it draws once more when it stops, and with each line of a log until then
            drawn.stop()
            self._live = None
            # `up` prints lines instead of its page.
            log.exception("page.not_drawn")
            self._say(
                f"a defect of Headrace: the page cannot be drawn ({type(error).__name__}: {error}). The run continues, "
                "and lines are printed instead of the page",
                "yellow",
            )


def _list_awaited(recipe: Recipe, newest: Mapping[str, int], evals: Sequence[EvalResult]) -> Iterator[str]:
    """Yield the missing evaluations of the newest versions, in words."""
    done = {(one.workflow, one.policy, one.version) for one in evals}
    for workflow in recipe.workflows:
        policies = recipe.policies_of(workflow)
        if all(newest[policy] >= 0 for policy in policies):
            yield from (
                f"{policy} at version {newest[policy]} on {workflow}"
                for policy in policies
                if (workflow, policy, newest[policy]) not in done
            )


class Past:
    """The records that were on the topics when the page began."""

    def __init__(self, ends: Mapping[PartitionId, int]) -> None:
        self._ends, self._due = ends, time.monotonic() + PAST_S

    def has(self, message: Message) -> bool:
        """Return whether a message was there."""
        return message.offset < self._ends.get((message.topic, message.partition), 0)

    def is_read(self, positions: Mapping[PartitionId, int]) -> bool:
        """Return whether the past is read (half of it would look like a loss), or the wait has been long enough."""
        behind = any(positions[partition_id] < end for partition_id, end in self._ends.items())
        return not behind or time.monotonic() > self._due


class PageErrors:
    """Errors in the page's own code. They never end a run; the first one is reported."""

    def __init__(self, say: Callable[[str, str], None]) -> None:
        self._say = say
        self.has_reported = False
        """Whether there was an error, so that the page may be incomplete."""

    @contextmanager
    def suppress_own_errors(self) -> Iterator[None]:
        """Go on after an error of the page. Errors that the launcher handles are raised."""
        try:
            yield
        except (HeadraceError, OSError, LedgerRemade):  # a server is away, an output has no reader, rows are read again
            raise
        except Exception as odd:
            if not self.has_reported:
                # The page keeps its older figures; logged once.
                log.exception("page.not_computed")
                why = f"{type(odd).__name__}: {odd}"
                self._say(
                    f"a defect of Headrace: the page cannot be updated ({why}). The run continues, but from now on the "
                    "page may be incomplete",
                    "yellow",
                )
            self.has_reported = True
