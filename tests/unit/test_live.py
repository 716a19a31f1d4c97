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

from headrace.app.views import live
from headrace.app.views.live import LivePage
from headrace.infra.kafka.clients import Connection, Message, RunAddress
from headrace.infra.kafka.topic_reader import Place
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreAddress
from headrace.ops.figures.standstill import Surroundings
from headrace.schemas import codec
from headrace.schemas.ids import now_ms
from headrace.schemas.records import EpisodeError, Outcome, RecipeRevision, Snapshot, WeightsPublished

RECIPE = load_recipe("arithmetic")
RUN = Run(RunAddress(Connection("127.0.0.1:1"), RECIPE.name), "run-1", (RECIPE,), StoreAddress("h", "b", "k", "s"))
SURROUNDINGS = Surroundings()
WEIGHTS, RECIPES = RECIPE.topics.weights("solver"), RECIPE.topics.recipe


class MadeUpTopics:
    """Stands for the reader: a message per poll."""

    messages: list[Message] = []  # noqa: RUF012 - each test sets its own

    def __init__(self, _connection: Connection, positions: Mapping[Place, int], _name: str) -> None:
        self.positions = dict(positions)
        self._left = list(self.messages)

    def ends(self) -> dict[Place, int]:
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
        self.positions: Mapping[Place, int] = {}

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "TopicReader", MadeUpTopics)
    monkeypatch.setattr(live, "LagMeter", NoLag)
    monkeypatch.setattr(live, "whole_topics", lambda _connection, topics: dict.fromkeys(((t, 0) for t in topics), 0))


def past(monkeypatch: pytest.MonkeyPatch, *said: tuple[str, Any]) -> None:
    """Let records stand on the topics before the page begins."""
    ends: dict[str, int] = {}
    messages = []
    for topic, record in said:
        key = b"feed" if isinstance(record, Snapshot) else b""
        messages.append(Message(topic, 0, ends.setdefault(topic, 0), key, codec.encode(record)))
        ends[topic] += 1
    monkeypatch.setattr(MadeUpTopics, "messages", messages)


def published(version: int) -> tuple[str, WeightsPublished]:
    return WEIGHTS, WeightsPublished(run_id="run-1", policy="solver", version=version)


class Screen:
    """A terminal, or a pipe."""

    def __init__(
        self, *, terminal: bool, run: Run = RUN, around: Surroundings = SURROUNDINGS, colours: bool = False
    ) -> None:
        self._out = io.StringIO()
        console = Console(file=self._out, width=90, force_terminal=terminal or colours)
        self.page = LivePage(run, console, plain=not terminal, spent_s=100, around=lambda: around)

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


@pytest.mark.parametrize("terminal", [True, False])
def test_a_swap_is_told_once_when_the_feeder_issues_under_it(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool
) -> None:
    monkeypatch.setattr(live, "REFRESH_S", 0.0)
    monkeypatch.setattr(live, "BUSY_SHARE", math.inf)
    said = [revision(0), issued([0, 0]), revision(1), issued([0, 0], [1, 12]), issued([0, 0], [1, 12])]
    past(monkeypatch, *said)
    monkeypatch.setattr(MadeUpTopics, "ends", lambda _: {})
    screen = Screen(terminal=terminal)
    assert "revision" not in screen.shown_after(3), "it is written, and no task is issued under it yet"
    shown = screen.shown_after(2)
    told = "recipe revision 1 is in force from task sums:12 on: chain validate → my.rules:Kind words=[bold]"
    assert shown.replace("\n", "").count(told) == 1


def test_a_run_that_goes_on_tells_no_swap_of_its_past(monkeypatch: pytest.MonkeyPatch) -> None:
    past(monkeypatch, revision(0), revision(1), issued([0, 0], [1, 12]))
    assert "revision" not in Screen(terminal=False).shown_after(4)


def test_a_new_run_is_shown_at_once_and_is_not_resumed() -> None:
    [line] = Screen(terminal=False).shown_after(1).splitlines()

    assert "version -/80 (components start" in line


@pytest.mark.parametrize("terminal", [True, False])
def test_what_a_run_stands_still_for_is_on_the_page_or_told_once_beside_the_lines(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool
) -> None:
    for name in ("REFRESH_S", "LINE_S"):
        monkeypatch.setattr(live, name, 0.0)
    monkeypatch.setattr(live, "BUSY_SHARE", math.inf)
    past(monkeypatch, (WEIGHTS, WeightsPublished(run_id="run-1", policy="solver", created_ms=1)))
    screen = Screen(terminal=terminal, around=Surroundings(began_ms=1))
    shown = screen.shown_after(3)
    flat = " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|│", " ", shown).split())
    assert "solver has not made its first version since 1970-01-01 00:00:00 UTC: no worker is alive" in flat
    assert "What you can do: " in flat
    if not terminal:
        assert shown.count("What you can do: ") == 1
        assert shown.count("stands still (no_worker)") == 3
    assert "no worker is alive" in screen.page.standstill, "for whoever gives the run up"


@pytest.mark.parametrize("terminal", [True, False])
def test_an_error_of_episodes_is_on_the_page_or_told_once_beside_the_lines(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool
) -> None:
    for name in ("REFRESH_S", "LINE_S"):
        monkeypatch.setattr(live, name, 0.0)
    monkeypatch.setattr(live, "BUSY_SHARE", math.inf)
    error = EpisodeError("error", "KeyError: '[7]'", "own.py:5 in judge", "solver", 1, 8)
    failed = Outcome(
        run_id="run-1", stream="sums", policy="solver", component="curate", verdict="dropped", errors=(error,)
    )
    topic = RECIPE.topics.outcomes("solver")
    past(monkeypatch, *((topic, replace(failed, number=number)) for number in range(3)))
    monkeypatch.setattr(MadeUpTopics, "ends", lambda _: {})
    shown = Screen(terminal=terminal).shown_after(3)
    flat = " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|│", " ", shown).split())
    assert "8 episodes failed: KeyError: '[7]' at own.py:5 in judge (solver, turn 1); the first in" in flat
    assert terminal == ("24 episodes failed: " in flat)
    if not terminal:
        assert shown.count("own.py:5") == 1
        assert "24 episodes failed" in shown


@pytest.mark.parametrize("terminal", [True, False])
def test_that_every_episode_fails_is_said_in_red(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> None:
    for name in ("REFRESH_S", "LINE_S"):
        monkeypatch.setattr(live, name, 0.0)
    monkeypatch.setattr(live, "BUSY_SHARE", math.inf)
    error = EpisodeError("error", "KeyError: '[7]'", "own.py:5 in judge", "solver", 1, 32)
    at_ms = now_ms()
    failed = Outcome(run_id="run-1", stream="sums", policy="solver", component="curate", errors=(error,))
    value = codec.encode(failed)
    message = Message(RECIPE.topics.outcomes("solver"), 0, 0, b"", value, timestamp_ms=at_ms)
    monkeypatch.setattr(MadeUpTopics, "messages", [message])
    screen = Screen(terminal=terminal, colours=True, around=Surroundings(began_ms=at_ms - 10_000))
    shown = screen.shown_after(2)
    assert "\x1b[1;31m" in shown.partition("gets no episode: all 32")[0][-60:], "in bold red"
    assert screen.page.hopeless == ""
    late = replace(message, offset=1, timestamp_ms=at_ms + 301_000)
    monkeypatch.setattr(MadeUpTopics, "messages", [message, late])
    monkeypatch.setattr(live, "now_ms", lambda: at_ms + 301_000)
    screen = Screen(terminal=terminal, around=Surroundings(began_ms=at_ms - 10_000))
    screen.shown_after(3)
    assert "none has ever succeeded" in screen.page.hopeless


def test_advice_is_told_once_beside_the_lines_and_not_of_a_run_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REFRESH_S", "LINE_S"):
        monkeypatch.setattr(live, name, 0.0)
    monkeypatch.setattr(live, "BUSY_SHARE", math.inf)
    same = Outcome(
        run_id="run-1", stream="sums", policy="solver", component="curate", verdict="kept", rewards=(0.0,) * 4
    )
    topic = RECIPE.topics.outcomes("solver")
    groups = [(topic, replace(same, number=number)) for number in range(20)]
    past(monkeypatch, *groups)
    monkeypatch.setattr(MadeUpTopics, "ends", lambda _: {})
    assert Screen(terminal=False).shown_after(22).count("have reward 0") == 1
    past(monkeypatch, (RECIPES, RecipeRevision(run_id="run-1", ended="steps")), *groups)
    assert "have reward 0" not in Screen(terminal=False).shown_after(22)


def test_a_page_that_ends_before_it_began_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    past(monkeypatch, published(0), published(1))
    screen = Screen(terminal=True)
    screen.shown_after(1)

    assert "version" not in screen.shown_at_the_end()


@pytest.mark.parametrize("over", [True, False])
def test_the_last_page_of_a_run_that_is_over_gives_way_to_the_closing_page(
    monkeypatch: pytest.MonkeyPatch, *, over: bool
) -> None:
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
    past(monkeypatch, (recipe.topics.state, issued), (recipe.topics.outcomes("solver"), dropped))
    screen = Screen(terminal=False, run=run)
    assert "shadow solver.unfiltered has not begun" in screen.shown_after(2)
    assert screen.page.in_flight == 1
    past(
        monkeypatch,
        (recipe.topics.state, issued),
        (recipe.topics.outcomes("solver"), dropped),
        (recipe.topics.outcomes("solver.unfiltered"), dropped),
    )
    screen = Screen(terminal=False, run=run)
    screen.shown_after(3)
    assert screen.page.in_flight == 0
