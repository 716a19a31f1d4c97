from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from drawn_page import drawn
from made_ledger import make_figures

from headrace.app.views.chart import by_version, chart
from headrace.app.views.closing import Signs, explain_no_rise
from headrace.app.views.tables import status_table
from headrace.app.views.view import Moment, line, page
from headrace.infra.kafka.clients import Message
from headrace.infra.process.child_life import ChildState
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.settings import Recipe
from headrace.ops.figures.pulse import find_pulse
from headrace.ops.figures.run_figures import Advice, RunFigures
from headrace.ops.figures.standstill import Standstill
from headrace.ops.figures.status import Status
from headrace.ops.plain_json import plain
from headrace.schemas import codec
from headrace.schemas.records import (
    BatchTrained,
    DeadLetter,
    EvalResult,
    Outcome,
    TierResult,
    WeightsPublished,
    WorkerStatus,
)

RUN_ID = "arithmetic-1"
NOW_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return load_recipe("arithmetic")


class Log:
    """Messages as the broker would give them: offsets count per partition."""

    def __init__(self, *folds: Any) -> None:
        self._folds = folds
        self._offsets: dict[str, int] = {}

    def say(self, topic: str, record: Any, at_ms: int = NOW_MS, key: bytes = b"") -> Message:
        offset = self._offsets.setdefault(topic, 0)
        self._offsets[topic] += 1
        message = Message(topic, 0, offset, key, codec.encode(record), [], at_ms)
        for fold in self._folds:
            fold.ledger.add([message])
        return message


def outcome(number: int, rewards: tuple[float, ...] = (1.0, 0.0), version: int = 0, **more: Any) -> Outcome:
    fields: dict[str, Any] = {"verdict": "kept", "component": "curate", "lengths": (5, 5), **more}
    return Outcome(
        run_id=RUN_ID, stream="sums", number=number, policy="solver", rewards=rewards, head_version=version, **fields
    )


def status_of(figures: RunFigures) -> Status:
    """What `headrace status` finds of a run whose workers are there."""
    return Status(figures, (False,) * len(figures.workers), wasted_is_all=False)


def signs(rewards: list[float], **more: Any) -> Signs:
    usual = Signs(
        concluded=1000, discarded={}, staleness_mean=0.5, max_staleness=1, logprob_gap_mean=1e-6, rewards=rewards
    )
    return replace(usual, **more)


FLAT = [0.35] * 20


def test_reward_that_does_not_rise_is_explained() -> None:
    for seen, words in (
        (signs([0.35] * 14), ""),
        (signs([n / 20 for n in range(20)]), ""),
        (signs([0.95] * 20), ""),
        (signs(FLAT, logprob_gap_mean=0.3), "disagree on log-probabilities"),
        (signs([0.02] * 20, discarded={"zero_variance": 900}), "too hard"),
        (signs([0.8] * 20, discarded={"zero_variance": 900}), "too easy"),
        (signs(FLAT, discarded={"expired": 900, "zero_variance": 10}), "discarded, most often as expired"),
        (signs(FLAT, staleness_mean=7.0, max_staleness=8), "lower trainer.max_staleness"),
        (signs(FLAT), "learning_rate"),
        (signs(FLAT, discarded={"zero_variance": 250}), "25% of the groups discarded"),
    ):
        why = explain_no_rise(seen)
        assert words in why
        assert bool(why) == bool(words)


def test_a_chart_has_a_bar_per_value_and_a_dot_where_nothing_is_known() -> None:
    values = by_version([(3, 1.0), (4, 0.0), (7, 0.5)])
    assert values == [1.0, 0.0, None, None, 0.5]
    for shown, width, height, rows in (
        ([0.0, 0.5, 1.0], 10, 4, ["  █", "  █", " ██", "▁██"]),
        (values, 10, 2, ["█    ", "█▁··█"]),
        ([math.nan, None], 10, 1, ["··"]),
        ([0.9, None, None, None], 2, 1, ["▇·"]),
        ([0.0, 1.0] * 50, 10, 2, [" " * 10, "█" * 10]),
    ):
        assert [line.partition("┤")[2] for line in chart(shown, width=width, height=height)] == rows


def test_rates_are_of_the_newest_seconds_and_repeated_messages_do_not_count(recipe: Recipe) -> None:
    figures = make_figures(RUN_ID, recipe)
    log = Log(figures)
    topic = recipe.topics.outcomes("solver")
    log.say(topic, outcome(0), NOW_MS - 60_000)
    for number in range(1, 11):
        message = log.say(topic, outcome(number), NOW_MS - 5_000)
        figures.ledger.add([message])

    rates = find_pulse(figures.ledger, NOW_MS).rates

    assert (rates.samples, rates.tokens) == (2.0, 10.0)


def test_the_pulse_counts_groups_once_and_other_runs_never(recipe: Recipe) -> None:
    figures = make_figures(RUN_ID, recipe)
    log, topics = Log(figures), recipe.topics
    for more in ({}, {"component": "train", "verdict": "expired"}, {"level": "trajectory"}, {"use": 1}):
        log.say(topics.outcomes("solver"), outcome(0, **more), NOW_MS)
    for run_id, reason in ((RUN_ID, ""), ("another", ""), (RUN_ID, "redriven")):
        log.say(topics.dead_letters, DeadLetter(run_id=run_id, reason=reason))
    for version, metrics in ((1, {"kl": 0.5}), (-1, {})):
        log.say(topics.batches("solver"), BatchTrained(RUN_ID, "solver", version=version, metrics=metrics))
    for version, kind in ((1, "anchor"), (9, "merged")):
        log.say(topics.weights("solver"), WeightsPublished(RUN_ID, "solver", version=version, kind=kind))

    pulse = find_pulse(figures.ledger, NOW_MS)
    solver = pulse.policies["solver"]
    assert pulse.rates.samples == 2.0
    assert pulse.dead_letters == 1
    assert (dict(solver.metrics), solver.published, solver.newest_published) == ({"kl": 0.5}, 1, 1)


@pytest.fixture
def moment(recipe: Recipe) -> Moment:
    figures = make_figures(RUN_ID, recipe)
    log, topics = Log(figures), recipe.topics
    for number in range(40):
        log.say(topics.outcomes("solver"), outcome(number, (0.4, 0.4), version=number // 2, lengths=(3, 4)))
    metrics = {"staleness_mean": 0.75, "staleness_max": 1.0, "logprob_gap_mean": 3e-6}
    metrics |= {"length_mean": 12.25, "turns_mean": 2.0, "reward_part_calls": 1.5}
    log.say(topics.batches("solver"), BatchTrained(run_id=RUN_ID, policy="solver", version=20, metrics=metrics))
    log.say(topics.weights("solver"), WeightsPublished(run_id=RUN_ID, policy="solver", version=20))
    log.say(topics.evals("solver"), EvalResult(run_id=RUN_ID, policy="solver", workflow="sums", avg_at_k=0.31))
    worker = WorkerStatus(
        run_id=RUN_ID, worker="rollout-sums-0", state="behind", detail="two versions", tokens=200, wasted_tokens=5,
        updated_ms=NOW_MS,
    )  # fmt: skip
    log.say(topics.workers, worker, key=b"rollout-sums-0")
    lasting = ChildState("running", 1, 1, None)
    restarted = ChildState("running", 2, 3, -9, "KeyError: 'x' at own.py:5 in loss")
    found = figures.compute_figures({f"{recipe.name}.tasks.sums": 12}, NOW_MS)
    processes = {"feed": lasting, "train-solver": restarted}
    return Moment(recipe, found, (pulse := find_pulse(figures.ledger, NOW_MS)), pulse.rates, 75, NOW_MS, processes)


def test_the_page_shows_what_a_user_looks_for(moment: Moment) -> None:
    shown = drawn(page(moment))

    for words in (
        "version 20/80",
        "reward 0.40",
        "trajectories/s",
        "tokens/s · 2.5% of all tokens wasted",
        "staleness 0.75",
        "1 weights published",
        "answer tokens 12.25 · turns 2 · calls 1.5",
        "tasks.sums 12",
        "0.31 at version 0",
        "rollout-sums-0 behind (two versions)",
        "started again: train-solver 2x (last: KeyError: 'x' at own.py:5 in loss)",
        "Reward does not rise (0.40 → 0.40)",
        "1:15",
    ):
        assert words in shown


def test_status_and_page_tell_what_the_run_stands_still_for_and_advice(moment: Moment) -> None:
    stands = Standstill("solver", "no_worker", NOW_MS, "solver has not made a version: no worker is alive.")
    advice = (Advice("solver", "one_reward", "All have reward 0: look."),)
    figures = replace(moment.figures, standstill=stands, advice=advice)
    for shown in (drawn(page(replace(moment, figures=figures))), drawn(status_table(status_of(figures)))):
        for words in ("no progress", "solver has not made a version: no worker is alive.", "All have reward 0: look."):
            assert words in shown
    assert "no progress (no_worker)" in line(replace(moment, figures=figures))
    assert plain(status_of(figures))["standstill"]["cause"] == "no_worker"
    in_part = replace(figures, standstill=Standstill("solver", "failing", NOW_MS, "solver gets none", in_part=True))
    for shown in (line(replace(moment, figures=in_part)), drawn(status_table(status_of(in_part)))):
        assert "no progress" not in shown, "versions come of the other workflows"
    assert "a workflow fails" in line(replace(moment, figures=in_part))


def test_the_status_tells_what_a_worker_made_and_wasted(moment: Moment) -> None:
    [worker] = moment.figures.workers
    twice = replace(moment.figures, workers=(worker, worker))

    shown = drawn(status_table(Status(twice, (False, True), wasted_is_all=False)), 110)

    assert "at least 2.5% of 200 generated tokens: failed, cancelled, too late or done twice" in shown
    assert "rollout-sums-0 behind (two versions), 200 tokens since it started" in shown
    assert "rollout-sums-0 gone; its last status, at 2023-11-14 22:13:20 UTC, was behind" in shown


def test_page_and_status_show_a_worker_whose_time_is_none_and_what_was_wasted_of_unknown_tokens(moment: Moment) -> None:
    worker = replace(moment.figures.workers[0], updated_ms=NOW_MS * 1000)
    odd = replace(moment.figures, workers=(worker,), tokens=0, wasted_tokens=5)
    assert "wasted" in drawn(page(replace(moment, figures=odd)))
    assert "unknown time" in drawn(status_table(Status(odd, (True,), wasted_is_all=False)))


def test_a_dead_letter_of_no_number_is_shown_beside_the_groups(recipe: Recipe) -> None:
    figures = make_figures(RUN_ID, recipe)
    log = Log(figures)
    log.say(recipe.topics.dead_letters, DeadLetter(run_id=RUN_ID, reason="undecodable"))
    found = figures.compute_figures({}, NOW_MS)
    moment = Moment(recipe, found, (pulse := find_pulse(figures.ledger, NOW_MS)), pulse.rates, 0, NOW_MS, {})
    words = "1 dead letter not tied to a task (1 undecodable)"
    assert plain(found)["unnumbered_letters"] == {"undecodable": 1}
    for shown in (drawn(page(moment)), line(moment), drawn(status_table(status_of(found)))):
        assert words in shown

    log.say(recipe.topics.dead_letters, DeadLetter(run_id=RUN_ID, reason="redriven", redrives=0))
    assert "dead letter" not in drawn(status_table(status_of(figures.compute_figures({}, NOW_MS))))


def test_a_pipe_gets_the_same_in_one_line(moment: Moment) -> None:
    assert "solved" in line(replace(moment, figures=replace(moment.figures, state="finished", ended="solved")))
    shown = line(moment)

    assert "\n" not in shown
    for words in ("solver version 20/80", "reward 0.40", "eval 0.31 at 0", "lag 12", "trajectories/s"):
        assert words in shown


def test_a_run_that_has_nothing_to_show_says_what_it_is_at(recipe: Recipe) -> None:
    figures = make_figures(RUN_ID, recipe)
    log = Log(figures)

    def moment(now_ms: int = NOW_MS) -> Moment:
        running = {"feed": ChildState("running", 1, 1, None)}
        pulse = find_pulse(figures.ledger, now_ms)
        return Moment(recipe, figures.compute_figures({}, now_ms), pulse, pulse.rates, 0, now_ms, running)

    assert "version -/80 (components start, then the supervised warm start)" in line(moment())
    assert "starting" in drawn(page(moment()))
    status = WorkerStatus(
        run_id=RUN_ID, worker="train-solver", state="warming up", detail="exact match 0.12", updated_ms=NOW_MS
    )
    log.say(recipe.topics.workers, status, key=b"train-solver")
    assert "version -/80 (warming up: exact match 0.12)" in line(moment())
    assert "warming up: exact match 0.12" in drawn(page(moment()))
    assert "components start" in line(moment(NOW_MS + 3_600_000)), "a trainer that was killed says nothing more"


def test_text_that_is_not_ours_is_shown_as_it_is_and_never_read_as_markup(moment: Moment) -> None:
    odd = "sandbox [/run/sbx.sock] is [away]"
    tier = TierResult("[hard]", 2, 2, 0.5)
    counts = moment.figures.groups
    figures = replace(
        moment.figures,
        workers=tuple(replace(one, detail=odd) for one in moment.figures.workers),
        evals=tuple(replace(one, tiers=(tier,)) for one in moment.figures.evals),
        groups=replace(counts, discarded={"[/own]": 2}),
        ended="[/end]",
    )
    about = moment.recipe.model_copy(update={"about": "all about [/x] [y]"})
    seen = replace(moment, recipe=about, figures=figures)

    for shown in (drawn(page(seen), 100), drawn(status_table(status_of(figures)), 200)):
        for words in (odd, "[hard] 0.50", "2 [/own]", "[/end]"):
            assert words in shown
    assert "all about [/x] [y]" in drawn(page(seen), 100)
