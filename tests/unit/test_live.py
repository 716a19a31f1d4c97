"""When the live page begins to show a run, and what it leaves on the terminal. The topics are made up."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from rich.panel import Panel

from headrace.app.views import live
from headrace.app.views.live import LivePage
from headrace.app.views.standstill_news import StandstillNews
from headrace.infra.kafka.clients import Connection, KafkaAway, Message, RunAddress
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreAddress
from headrace.ledger import follow
from headrace.ops.figures.standstill import Standstill, Surroundings
from headrace.schemas import codec
from headrace.schemas.ids import now_ms
from headrace.schemas.records import (
    EpisodeError,
    EvalResult,
    Outcome,
    RecipeRevision,
    Snapshot,
    WeightsPublished,
    WorkerStatus,
)

RECIPE = load_recipe("arithmetic")
RUN = Run(RunAddress(Connection("127.0.0.1:1"), RECIPE.name), "run-1", (RECIPE,), StoreAddress("h", "b", "k", "s"))
SURROUNDINGS = Surroundings()
WEIGHTS, RECIPES = RECIPE.topics.weights("solver"), RECIPE.topics.recipe


class MadeUpTopics:
    """Stands for the reader: a message per poll."""

    messages: list[Message] = []  # noqa: RUF012 - each test sets its own

    def __init__(self, _connection: Connection, positions: Mapping[PartitionId, int], _name: str) -> None:
        self.positions = dict(positions)
        self._left = [one for one in self.messages if one.offset >= positions.get((one.topic, one.partition), 0)]

    def ends(self) -> dict[PartitionId, int]:
        return {(message.topic, message.partition): message.offset + 1 for message in self.messages}

    def poll(self, _most: int, _timeout_s: float) -> list[Message]:
        some, self._left = self._left[:1], self._left[1:]
        self.positions |= {(message.topic, message.partition): message.offset + 1 for message in some}
        return some

    def close(self) -> None:
        pass


class NoLag:
    """Stands for the meter of lag."""

    newest: Mapping[str, int] = {}

    def __init__(self, _run: Run) -> None:
        self.positions: Mapping[PartitionId, int] = {}

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "TopicReader", MadeUpTopics)
    monkeypatch.setattr(live, "LagMeter", NoLag)
    monkeypatch.setattr(follow, "list_partitions", lambda _connection, topics: [(topic, 0) for topic in topics])
    monkeypatch.setattr(
        follow, "find_start_positions", lambda _connection, topics: dict.fromkeys(((t, 0) for t in topics), 0)
    )


def past(monkeypatch: pytest.MonkeyPatch, *said: tuple[str, Any], all_new: bool = False) -> None:
    """Let records stand on the topics before the page begins; `all_new` shows each as one that came after that."""
    ends: dict[str, int] = {}
    messages = []
    for topic, record in said:
        key = b"feed" if isinstance(record, Snapshot) else b""
        messages.append(Message(topic, 0, ends.setdefault(topic, 0), key, codec.encode(record)))
        ends[topic] += 1
    monkeypatch.setattr(MadeUpTopics, "messages", messages)
    if all_new:
        monkeypatch.setattr(MadeUpTopics, "ends", lambda _: {})


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw a page or a line after every turn."""
    for name in ("REFRESH_S", "PLAIN_INTERVAL_S"):
        monkeypatch.setattr(live, name, 0.0)
    monkeypatch.setattr(live, "BUSY_SHARE", math.inf)


def published(version: int) -> tuple[str, WeightsPublished]:
    return WEIGHTS, WeightsPublished(run_id="run-1", policy="solver", version=version)


class Screen:
    """A terminal, or a pipe."""

    def __init__(
        self,
        *,
        terminal: bool,
        run: Run = RUN,
        around: Surroundings = SURROUNDINGS,
        colours: bool = False,
        opening: str = "resumed",
    ) -> None:
        self._out = io.StringIO()
        console = Console(file=self._out, width=90, force_terminal=terminal or colours)
        plain = not terminal
        self.page = LivePage(run, console, plain=plain, spent_s=100, around=lambda: around, opening=opening)

    def shown_after(self, turns: int) -> str:
        for _ in range(turns):
            self.page.turn(0)
        return self._out.getvalue()

    def shown_at_the_end(self) -> str:
        self.page.close()
        return self._out.getvalue()


def test_a_run_that_goes_on_is_shown_when_its_past_is_read_beginning_with_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    past(monkeypatch, published(0), published(1), published(2))
    screen = Screen(terminal=False)

    assert screen.shown_after(2) == "", "half of a past would look like a loss"
    first, second = screen.shown_after(1).splitlines()
    assert first.startswith("headrace: resumed: solver at version 2 of 80")
    assert "1:40  solver version 2/80" in second


CHAINS: dict[int, list[dict[str, Any]]] = {
    0: [{"use": "validate"}],
    1: [{"use": "validate"}, {"use": "my.rules:Kind", "words": "[bold]"}],
}


def revision(number: int) -> tuple[str, RecipeRevision]:
    recipe = Recipe.model_validate({**RECIPE.model_dump(), "curate": {"chain": CHAINS[number]}})
    return RECIPES, RecipeRevision(run_id="run-1", revision=number, recipe=recipe.to_json(), swapped=number > 0)


def issued(*begins: list[int]) -> tuple[str, Snapshot]:
    body = {"next": {"sums": 50}, "revisions": {"sums": begins}}
    return RECIPE.topics.state, Snapshot(run_id="run-1", component="feed", body=json.dumps(body).encode())


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("terminal", [True, False])
def test_a_swap_is_told_once_when_the_feeder_issues_under_it(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool
) -> None:
    said = [revision(0), issued([0, 0]), revision(1), issued([0, 0], [1, 12]), issued([0, 0], [1, 12])]
    past(monkeypatch, *said, all_new=True)
    screen = Screen(terminal=terminal)
    assert "revision" not in screen.shown_after(3), "it is written, and no task is issued under it yet"
    shown = screen.shown_after(2)
    told = "recipe revision 1 is in force from task sums:12 on: chain validate → my.rules:Kind words=[bold]"
    assert shown.replace("\n", "").count(told) == 1


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("terminal", [True, False])
def test_what_a_run_stands_still_for_is_on_the_page_or_told_once_beside_the_lines(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool
) -> None:
    past(monkeypatch, (WEIGHTS, WeightsPublished(run_id="run-1", policy="solver", created_ms=1)))
    screen = Screen(terminal=terminal, around=Surroundings(began_ms=1))
    shown = screen.shown_after(3)
    flat = " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|│", " ", shown).split())
    assert "solver has not made its first version since 1970-01-01 00:00:00 UTC: no worker is alive" in flat
    if not terminal:
        assert shown.count("What you can do: ") == 1
        assert shown.count("no progress (no_worker)") == 3
    assert "no worker is alive" in screen.page.standstill, "for whoever gives the run up"


@pytest.mark.usefixtures("_at_once")
def test_errors_and_advice_are_told_once_beside_the_lines_and_not_of_a_run_that_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = EpisodeError("error", "KeyError: '[7]'", "own.py:5 in judge", "solver", 1, 8)
    same = Outcome("run-1", stream="sums", policy="solver", component="curate", verdict="kept", rewards=(0.0,) * 4)
    topic = RECIPE.topics.outcomes("solver")
    groups = [(topic, replace(same, number=number, errors=(error,))) for number in range(20)]
    held_out = EvalResult(run_id="run-1", policy="solver", workflow="sums", errors=(error, replace(error, at="b.py")))
    past(monkeypatch, *groups, (RECIPE.topics.evals("solver"), held_out), all_new=True)
    shown = Screen(terminal=False).shown_after(23)
    assert (shown.count("have reward 0"), shown.count("own.py:5 in judge (solver, turn 1)")) == (1, 1)
    assert shown.count("held-out episodes of sums failed: KeyError: '[7]' at b.py (") == 1
    past(monkeypatch, (RECIPES, RecipeRevision(run_id="run-1", ended="steps")), *groups, all_new=True)
    assert "have reward 0" not in Screen(terminal=False).shown_after(22)


def test_the_last_page_of_a_run_that_is_over_gives_way_to_the_closing_page(monkeypatch: pytest.MonkeyPatch) -> None:
    for over in (True, False):
        ended = [(RECIPES, RecipeRevision(run_id="run-1", ended="steps"))] if over else []
        past(monkeypatch, published(0), *ended)
        screen = Screen(terminal=True)
        screen.shown_after(3)
        shown = screen.shown_at_the_end()
        assert "0/80" in shown
        assert shown.endswith("\x1b[1A\x1b[2K") == over, "erased, line by line"


def test_a_run_is_not_drained_while_a_shadow_holds_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe("arithmetic-shadow")
    run = replace(RUN, revisions=(recipe,))
    issued = Snapshot(run_id="run-1", component="feed", body=json.dumps({"next": {"sums": 1}}).encode())
    dropped = Outcome(run_id="run-1", stream="sums", number=0, policy="solver", verdict="dropped", component="curate")
    said = [(recipe.topics.state, issued), (recipe.topics.outcomes("solver"), dropped)]
    for in_flight in (1, 0):
        past(monkeypatch, *said)
        screen = Screen(terminal=False, run=run)
        screen.shown_after(len(said))
        assert screen.page.in_flight == in_flight
        said.append((recipe.topics.outcomes("solver.unfiltered"), dropped))


def test_lines_tell_a_standstill_once_and_its_end_only_when_it_lasts() -> None:
    def found(cause: str) -> Standstill:
        return Standstill("solver", cause, 0, f"because of {cause}")

    news = StandstillNews()
    dropped, failing, well = found("dropped"), found("failing"), None
    looks = [
        (0, well, ""),
        (1, dropped, "because of dropped"),
        (2, dropped, ""),
        (3, well, ""),
        (4, dropped, ""),  # again within WELL_S
        (5, failing, "because of failing"),
        (6, well, ""),
        (11, well, "episodes succeed again"),
        (17, well, ""),
        (18, dropped, "because of dropped"),
        (19, well, ""),
        (24, well, "groups are trained again"),
        (25, found("server"), "because of server"),
        (26, well, "new versions are made again"),
        (27, found("no_worker"), "because of no_worker"),
        (28, dropped, "because of dropped"),  # what the worker played while it was frozen
        (29, well, ""),
        (34, well, "new versions are made again"),
        (35, dropped, "because of dropped"),
        (41, well, ""),
        (46, well, "groups are trained again"),
        *((47, one, words) for one, words in ((failing, "because of failing"), (dropped, "because of dropped"))),
        *((48, one, "") for one in (failing, dropped)),  # the same error in turn
    ]
    versions = [{"solver": sum(one is well for _, one, _ in looks[: at + 1])} for at in range(len(looks))]
    said = [news.take_sentence(one, now_s, made) for (now_s, one, _), made in zip(looks, versions, strict=True)]
    assert said == [told for _, _, told in looks]


def test_no_version_is_told_while_a_killed_worker_starts_again() -> None:
    news, blocked = StandstillNews(), Standstill("solver", "blocked", 0, "blocked at shop.py:43")
    looks = [(blocked, 0), (None, 0), (blocked, 0), (None, 1)]
    said = [news.take_sentence(one, 1.0, {"solver": version}) for one, version in looks]
    assert said == ["blocked at shop.py:43", "", "", "new versions are made again"]


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("why", ["steps", "solved", "early_stop"])
def test_the_evaluation_of_the_last_version_is_awaited_until_it_is_there_and_each_episode_of_it_is_seen(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_work(state: str, episodes: int) -> tuple[str, WorkerStatus]:
        status = WorkerStatus(
            run_id="run-1", worker="rollout-sums-0", state=state, episodes_done=episodes, updated_ms=now_ms()
        )
        return RECIPE.topics.workers, status

    result = EvalResult(run_id="run-1", policy="solver", workflow="sums", version=80)
    ended = RecipeRevision(run_id="run-1", revision=0, recipe=RECIPE.to_json(), ended=why)
    topics = RECIPE.topics
    past(
        monkeypatch,
        published(80),
        (RECIPES, ended),
        at_work("starting", 0),
        at_work("rolling", 1),
        (topics.evals("solver"), result),
        all_new=True,
    )
    screen = Screen(terminal=False)
    seen = list[tuple[tuple[str, ...], bool]]()
    work = list[object]()
    for _ in range(5):
        screen.shown_after(1)
        seen.append((screen.page.awaited_evaluations, screen.page.has_starting_worker))
        work.append(screen.page.work)
    missing = ("solver at version 80 on sums",)
    assert seen == [((), False), (missing, False), (missing, True), (missing, False), ((), False)]
    assert len({repr(one) for one in work[1:]}) == 4


@pytest.mark.usefixtures("_at_once")
def test_no_evaluation_is_awaited_that_cannot_be_played_because_a_policy_has_no_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = RecipeRevision(run_id="run-1", revision=0, recipe=RECIPE.to_json(), ended="solved")
    past(monkeypatch, (RECIPES, ended), published(0), all_new=True)
    screen = Screen(terminal=False)
    seen = []
    for _ in range(2):
        screen.shown_after(1)
        seen.append((screen.page.ended, screen.page.awaited_evaluations))
    assert seen == [("solved", ()), ("solved", ("solver at version 0 on sums",))]


@pytest.mark.usefixtures("_at_once")
def test_a_worker_whose_clock_is_behind_is_there_once_a_heartbeat_of_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    status = WorkerStatus(run_id="run-1", worker="w", state="starting", updated_ms=now_ms() - 20_000)
    past(monkeypatch, (RECIPE.topics.workers, status), (RECIPE.topics.workers, status))
    monkeypatch.setattr(MadeUpTopics, "ends", lambda _: {(RECIPE.topics.workers, 0): 1})
    screen = Screen(terminal=False)
    found = []
    for _ in range(2):
        screen.shown_after(1)
        found.append(screen.page.has_starting_worker)
    assert found == [False, True]


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("what", ["compute_figures", "add", "standstill"])
def test_an_error_of_the_page_is_told_once_and_ends_no_run_but_the_runs_end_is_seen(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    past(monkeypatch, published(0), published(1), (RECIPES, RecipeRevision(run_id="run-1", ended="steps")))
    screen = Screen(terminal=False)
    broken: Any = screen.page._fold.ledger if what == "add" else screen.page._fold
    real = getattr(broken, what)

    def fail(*given: Any, **more: Any) -> None:
        if what == "add":
            real(*given, **more)
        raise TypeError("[/odd]")

    monkeypatch.setattr(broken, what, fail)
    shown = screen.shown_after(5)
    assert shown.count("the page cannot be updated (TypeError: [/odd])") == 1
    assert (screen.page.ended, screen.page.standstill) == ("steps", "")
    assert screen.shown_at_the_end().startswith(shown)


@pytest.mark.parametrize("error", [KafkaAway("it is away"), BrokenPipeError("its reader is gone")])
def test_the_page_hides_no_error_that_the_launcher_waits_on_or_ends_by(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    past(monkeypatch)
    screen = Screen(terminal=False)

    def fail(*_given: Any, **_more: Any) -> None:
        raise error

    monkeypatch.setattr(screen.page._fold, "standstill", fail)
    with pytest.raises(type(error)):
        screen.page.turn(0)


@pytest.mark.usefixtures("_at_once")
def test_a_page_that_cannot_be_drawn_ends_no_run_and_lines_come_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    past(monkeypatch, published(0), published(1), all_new=True)
    monkeypatch.setattr(live, "page", lambda _moment, _width: Panel("", title="[/x]"))
    shown = Screen(terminal=True, colours=True).shown_after(3)

    assert shown.count("the page cannot be drawn") == 1
    assert "solver version 1/80" in shown
