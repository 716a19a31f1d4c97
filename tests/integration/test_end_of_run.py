"""A curator and a feeder that outlive their run say so, whoever started them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from made_run import make_run, tiny_recipe
from patience import PATIENCE_S
from said import say
from structlog.testing import capture_logs

from headrace.consumers.curate.curator import open_curator
from headrace.consumers.curate.issued_numbers import IssuedNumbers
from headrace.consumers.curate.published_versions import PublishedVersions
from headrace.infra.kafka.clients import Outgoing
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.run import end_watch
from headrace.infra.run.run import Run, read_revisions
from headrace.infra.stopwatch import Stopwatch
from headrace.infra.store.object_store import ObjectStore
from headrace.producers.feed.feeder import open_feeder
from headrace.schemas import codec


def mark(run: Run, ended: str) -> None:
    """Write what the feeder does at the end of a run, or the launcher when it goes on."""
    revision = replace(read_revisions(run.address)[-1], ended=ended)
    say(run, Outgoing(run.topics.recipe, codec.encode(revision), partition=0))


def over(said: list[Any]) -> list[str]:
    return [one["why"] for one in said if one["event"] == "run.over"]


def turn_until(turn: Callable[[], object], condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it was not said in time"
        turn()


@pytest.mark.servers
def test_a_curator_that_has_nothing_to_do_says_once_that_the_run_is_over(
    bootstrap: str, store: ObjectStore, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_watch, "END_LOOK_EVERY_S", 0.0)
    run = make_run(bootstrap, store, tiny_recipe(run_name))
    given = PublishedVersions(run, "solver"), IssuedNumbers(run)
    with closing(open_curator(run, "solver", *given)) as consumer, capture_logs() as said:

        def turn() -> object:
            return consumer.poll(Stopwatch())

        turn_until(turn, lambda: any(one["event"] == "state.restored" for one in said))
        turn()
        assert over(said) == []
        mark(run, "steps")
        turn_until(turn, lambda: over(said) == ["steps"])
        turn()
        assert over(said) == ["steps"]
        mark(run, "")
        mark(run, "solved")
        turn_until(turn, lambda: over(said) == ["steps", "solved"])


@pytest.mark.servers
def test_a_feeder_of_a_run_that_is_over_says_so(bootstrap: str, store: ObjectStore, run_name: str) -> None:
    run = make_run(bootstrap, store, tiny_recipe(run_name))
    writer = TransactionalWriter(run.connection, f"{run_name}.feed")
    with closing(writer), closing(open_feeder(run, writer)) as feeder:
        feeder.state.ended = "steps"
        say(run, *feeder.before_commit(()))
    mark(run, "steps")
    with closing(open_feeder(run, writer)) as feeder, capture_logs() as said:
        for _ in range(3):
            list(feeder.tick())
    assert over(said) == ["steps"]
