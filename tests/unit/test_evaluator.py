"""How an evaluator takes its role, and when its positions are committed."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from made_groups import group
from made_recipes import sums_recipe
from structlog.testing import capture_logs

from headrace.consumers.evaluate import evaluator as evaluators
from headrace.consumers.evaluate.evaluator import Evaluator
from headrace.infra.kafka.clients import Connection, Message, Outgoing, RunAddress
from headrace.infra.process.signals import MustRestart
from headrace.infra.run import own_positions
from headrace.infra.run.end_watch import EndWatch
from headrace.infra.run.own_positions import OwnPositions
from headrace.infra.run.run import Run
from headrace.schemas import codec
from headrace.schemas.headers import Stamp
from headrace.schemas.ids import LONGEST_NAME
from headrace.schemas.records import DeadLetter, EvalResult, RecipeRevision
from headrace.schemas.topics import Topics


def test_an_evaluator_fences_any_other_before_it_reads_where_that_one_was(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    left, stop = SimpleNamespace(close=lambda: None), threading.Event()

    def write(_connection: Connection, transactional_id: str, _topics: object) -> Any:
        order.append(transactional_id)
        return left

    def read(_run: object) -> Any:
        order.append("reads")
        return left

    def run_loop(*_: object) -> None:
        order.append("runs")
        stop.set()

    run = SimpleNamespace(connection=Connection("nowhere:1"), topic_names=())
    monkeypatch.setattr(own_positions, "configure_logging", lambda *_, **__: None)
    monkeypatch.setattr(own_positions, "stop_on_signals", lambda: stop)
    monkeypatch.setattr(own_positions, "join_and_write_schemas", lambda *_: run)
    monkeypatch.setattr(own_positions, "TransactionalWriter", write)
    monkeypatch.setattr(evaluators, "open_evaluator", read)
    monkeypatch.setattr(own_positions, "run_loop", run_loop)

    evaluators.main("kafka://nowhere:1/r")

    assert order == ["r.evaluate", "reads", "runs"]


def test_a_result_and_the_positions_that_it_follows_from_are_written_in_one_turn() -> None:
    """A result without them would come again after a restart."""
    recipe = sums_recipe(evaluate={"every": 1, "problems": 2, "samples": 1})
    run = SimpleNamespace(
        run_id="one", recipe=recipe, revisions=(recipe,), revision=0, topics=Topics("r"), get_group=None
    )
    own = SimpleNamespace(restored=None, snapshot=lambda body: [Outgoing("r.state", body)])
    looks = list[str]()
    found = Evaluator(cast("Run", run), cast("OwnPositions", own), lambda: looks.append("for the end"))
    found.tick()
    assert looks == ["for the end"]

    def take(number: int) -> list[Outgoing]:
        made = replace(group([1.0], number=number), run_id="one", stream="eval.sums", purpose="eval", asked_version=1)
        return list(found.handle(Message("r.eval-groups.solver", 0, number, b"", codec.encode(made))))

    assert take(0) == []
    assert found.is_commit_due, "the first snapshot is due"
    assert [record.topic for record in found.before_commit(())] == ["r.state"]
    [result] = take(1)
    assert codec.decode(result.value, EvalResult).avg_at_k == 1.0
    assert not found.is_commit_due, "a snapshot is not due, and comes with the result"
    assert [record.topic for record in found.before_commit(())] == ["r.state"]


def test_an_evaluation_that_was_asked_under_a_recipe_of_fewer_problems_concludes_with_those() -> None:
    before, now = (sums_recipe(evaluate={"problems": problems, "samples": 1}) for problems in (2, 3))
    run = SimpleNamespace(
        run_id="one", recipe=now, revisions=(before, now), revision=1, topics=Topics("r"), get_group=None
    )
    found = Evaluator(cast("Run", run), cast("OwnPositions", SimpleNamespace(restored=None)))

    def take(number: int, revision: int, value: bytes = b"") -> list[Outgoing]:
        version = 1 + revision
        made = replace(group([1.0], number=number), run_id="one", stream="eval.sums", asked_version=version)
        stamp = Stamp("one", "eval.sums", number, revision=revision, policy="solver", min_version=version)
        value = value or codec.encode(replace(made, revision=revision))
        return list(found.handle(Message("r.eval-groups.solver", 0, number, b"", value, stamp.to_headers())))

    assert not take(0, 0)
    _, result = take(1, 0, b"unreadable")
    concluded = codec.decode(result.value, EvalResult)
    assert (concluded.asked, concluded.failures) == (2, 1), "what cannot be read counts as failed"
    [*none, result] = [one for number in (2, 3, 4) for one in take(number, 1)]
    assert (none, codec.decode(result.value, EvalResult).asked) == ([], 3)


def test_an_evaluator_that_meets_a_later_recipe_starts_again_and_counts_by_that_one() -> None:
    recipes = tuple(sums_recipe(evaluate={"problems": problems, "samples": 1}) for problems in (2, 3))
    news = [RecipeRevision("other", 1), RecipeRevision("one", 0, ended="steps"), RecipeRevision("one", 1)]
    snapshots, looks = list[bytes](), list[int]()

    def open_at(newest: int, restored: bytes | None = None) -> Evaluator:
        known = recipes[: newest + 1]
        run = Run(RunAddress(Connection("k:1"), "r"), "one", known, cast("Any", None))
        own = SimpleNamespace(restored=restored, snapshot=lambda body: snapshots.append(body) or [])
        new = news[: 3 - newest]  # the last is known to who joined after it

        def look() -> list[RecipeRevision]:
            looks.append(newest)
            return new

        return Evaluator(run, cast("OwnPositions", own), lambda: None, look)

    def take(found: Evaluator, number: int, revision: int, value: bytes = b"") -> list[Outgoing]:
        made = replace(group([1.0], number=number), run_id="one", stream="eval.sums", asked_version=1)
        stamp = Stamp("one", "eval.sums", number, revision=revision, policy="solver", min_version=1)
        value = value or codec.encode(replace(made, revision=revision))
        return list(found.handle(Message("r.eval-groups.solver", 0, number, b"", value, stamp.to_headers())))

    first = open_at(0)
    for value in (b"", b"unreadable"):
        with pytest.raises(MustRestart, match="recipe revision 1 was written"):
            take(first, 0, 1, value)
    assert looks == [0, 0]
    later = open_at(1)
    assert not take(later, 0, 1)
    assert not take(later, 1, 1)
    assert looks == [0, 0], "nothing is asked for a revision that is known"
    [result] = take(later, 2, 1)
    assert codec.decode(result.value, EvalResult).asked == 3
    [*_, letter] = take(later, 3, 9, b"unreadable")
    assert looks == [0, 0, 1]
    assert codec.decode(letter.value, DeadLetter).number == 3, (
        "a revision that nobody wrote is no reason to start again"
    )


def test_a_group_with_names_of_any_length_is_a_dead_letter_and_leaves_no_long_name_in_the_snapshot() -> None:
    recipe = sums_recipe(evaluate={"problems": 9, "samples": 1})
    run = Run(RunAddress(Connection("k:1"), "r"), "one", (recipe,), cast("Any", None))
    found = Evaluator(run, cast("OwnPositions", SimpleNamespace(restored=None)))
    whole = replace(group([1.0]), run_id="one", stream="eval.sums", asked_version=1)
    vast = "x" * (LONGEST_NAME + 1)
    for number, changes in enumerate(({"stream": vast}, {"tier": vast}, {"task_id": vast}, {"reason": vast})):
        made = replace(whole, number=number, **changes)  # type: ignore[arg-type]
        stamp = Stamp("one", made.stream, number, policy="solver", min_version=1)
        message = Message("r.eval-groups.solver", 0, number, b"", codec.encode(made), stamp.to_headers())
        [letter] = found.handle(message)
        dead = codec.decode(letter.value, DeadLetter)
        assert dead.reason == "unusable"
        assert f"has {LONGEST_NAME + 1} characters, and may have at most {LONGEST_NAME}" in dead.detail
    assert [row[3] for row in found.fold.snapshot()["open"]] == [1, 2, 3], "those that their headers name are answered"
    assert len(json.dumps(found.fold.snapshot())) < LONGEST_NAME


def test_an_evaluator_that_outlives_its_run_says_what_to_do_with_it() -> None:
    watch = EndWatch(cast("Run", SimpleNamespace(address=None, recipe_end=0, ended="steps", run_id="one")), "stop it")
    watch._news = cast("Any", SimpleNamespace(look=list))
    with capture_logs() as said:
        watch.look()
        watch._due = 0.0
        watch.look()
    assert said == [{"event": "run.over", "log_level": "info", "why": "steps", "now": "stop it"}]
