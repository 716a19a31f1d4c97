from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from made_ledger import make_figures
from made_recipes import sums_recipe

from headrace.infra.kafka.clients import Message
from headrace.infra.recipe.settings import Recipe
from headrace.ops.figures.run_figures import RewardPoint, RunFigures, Selection
from headrace.ops.plain_json import plain
from headrace.schemas import codec
from headrace.schemas.records import (
    BatchTrained,
    EvalResult,
    GroupUse,
    Outcome,
    Position,
    RecipeRevision,
    Snapshot,
    WeightsPublished,
    WorkerStatus,
)

RECIPE = sums_recipe()
TOPICS = RECIPE.topics
NOW = 1_000_000


class Log:
    """Feeds records as messages with the next offset of their topic."""

    def __init__(self) -> None:
        self.figures = make_figures("r", RECIPE)
        self.messages: list[Message] = []
        self._ends = Counter[str]()

    def say(self, topic: str, record: Any, key: bytes = b"", at_ms: int = 0) -> None:
        value = b"" if record is None else codec.encode(record)
        self.messages.append(Message(topic, 0, self._ends[topic], key, value, timestamp_ms=at_ms))
        self._ends[topic] += 1
        self.figures.ledger.add([self.messages[-1]])

    def read(self, now_ms: int = NOW) -> RunFigures:
        return self.figures.compute_figures({}, now_ms)

    def fed(self, **body: Any) -> None:
        self.say(TOPICS.state, Snapshot(run_id="r", body=json.dumps(body).encode()), b"feed")

    def issued(self, number: int) -> None:
        self.fed(next={"sums": number})

    def group(self, number: int, head: int, *rewards: float, verdict: str = "kept", **more: Any) -> None:
        reason = "" if verdict == "kept" else "zero_variance"
        made = Outcome("r", "sums", number, policy="solver", verdict=verdict, reason=reason, component="curate", **more)
        self.say(TOPICS.outcomes("solver"), replace(made, rewards=rewards, head_version=head))

    def worker(self, name: str, state: str, updated_ms: int) -> None:
        status = WorkerStatus(run_id="r", worker=name, state=state, updated_ms=updated_ms)
        self.say(TOPICS.workers, status, name.encode())


def test_rewards_are_of_every_group_before_any_filter_by_head_version() -> None:
    log = Log()
    log.group(0, 0, 0.0, 0.0, verdict="dropped")
    log.group(1, 0, 1.0, 0.0)
    log.group(2, 1, 1.0)
    log.group(3, 1)  # every episode failed
    assert log.read().rewards == {"solver": (RewardPoint(0, 0.25, 2, 4), RewardPoint(1, 1.0, 1, 1))}


def test_first_and_last_reward_are_over_five_versions_each_and_none_counts_as_both() -> None:
    log, ends = Log(), []
    for version in (10, 0, 1, 2, 3, 4, 5, 9, 7, 6, 8):  # as workers finish, in any order
        log.group(version, version, float(version), float(version))
    log.group(11, 0, 10.0, 10.0, 10.0)
    found = log.read()
    assert found.reward_first == {"solver": pytest.approx((30 + 2 * (0 + 1 + 2 + 3 + 4)) / 13)}
    assert found.reward_last == {"solver": pytest.approx(8.0)}
    log = Log()
    for version in range(7):
        log.group(version, version, float(version))
        ends.append((log.read().reward_first.get("solver"), log.read().reward_last["solver"]))
    assert ends == [(None, 0.0), (None, 0.5), (None, 1.0), (None, 1.5), (None, 2.0), (0.0, 3.0), (0.5, 4.0)]


def chained(revision: int, *chain: dict[str, Any]) -> RecipeRevision:
    recipe = Recipe.model_validate({**RECIPE.model_dump(), "curate": {"chain": chain}})
    return RecipeRevision(run_id="r", revision=revision, recipe=recipe.to_json(), swapped=revision > 0)


def test_a_revision_is_in_force_once_the_feeder_issues_under_it() -> None:
    log = Log()
    log.say(TOPICS.recipe, chained(0, {"use": "validate"}))
    assert log.read().in_force is None
    for begins, in_force in (([[0, 0]], 0), ([[0, 0], [1, 12]], 1), ([[0, 0], [1, 12], [3, 40]], 3)):
        log.say(TOPICS.recipe, chained(in_force + 1, {"use": "replay_latest", "ratio": 0.5, "max_uses": 2}))
        log.say(TOPICS.recipe, chained(in_force, {"use": "pods", "m": 4}))
        log.fed(next={"sums": 50}, revisions={"sums": begins})
        found = log.read().in_force
        assert found is not None
        assert (found.revision, found.begins) == (in_force, {"sums": begins[-1][1]})
    told = [(one.begins.get("sums"), one.in_force) for one in log.read().revisions]
    assert told == [(0, False), (12, False), (None, False), (40, True), (None, False)]
    assert log.read().revisions[1].chain == ("replay_latest ratio=0.5 max_uses=2",), "settings in the recipe's order"
    json.dumps(plain(log.read()))


def test_the_time_to_a_version_counts_from_the_first_recipe_to_when_it_was_made_last() -> None:
    log = Log()
    assert log.figures.seconds_to_versions("solver") == {}
    log.say(TOPICS.recipe, RecipeRevision(run_id="r", recipe="{}", created_ms=10_000))
    log.say(TOPICS.recipe, RecipeRevision(run_id="r", recipe="{}", revision=1, created_ms=90_000))
    log.say(TOPICS.weights("solver"), WeightsPublished(run_id="r", policy="solver", version=0, created_ms=14_500))
    for version, created_ms in ((1, 15_000), (-1, 15_500), (2, 16_000), (2, 17_000)):  # -1 only tells of evictions
        log.say(
            TOPICS.batches("solver"),
            BatchTrained(run_id="r", policy="solver", version=version, created_ms=created_ms),
        )
    assert log.figures.seconds_to_versions("solver") == {0: 4.5, 1: 5.0, 2: 7.0}


def test_what_a_selector_said_is_told_and_of_what_it_remembers_how_much_that_is() -> None:
    log = Log()
    assert log.read().selection == {}
    remembers = {"greso": {"p_easy": 0.4, "counts": [1, 2, 3], "streaks": dict.fromkeys(map(str, range(17)), 1)}}
    source = {"cursors": {"": 9}, "selected": 5, "rejected": 3, "forced": 1, "skipped": 2, "selector": remembers}
    log.fed(next={"sums": 6}, sources={"sums": source})
    told = {"greso": {"p_easy": 0.4, "counts": [1, 2, 3], "streaks": 17}}
    assert log.read().selection == {"sums": Selection(5, 3, 1, told, 2)}
    log.fed(next={"sums": 7}, sources={"sums": {**source, "skipped_why": "KeyError: 'x'"}})
    assert log.read().selection["sums"].why_unbuilt == "KeyError: 'x'"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b"{}", b'{"next": {"sums": 9}, "revisions": {"sums": [7]}}',
        b'{"next": {"sums": 9}, "sources": [7]}', b'{"next": {"sums": 9}, "sources": {"sums": {"selected": "many"}}}',
        b'{"next": {"sums": Infinity}}',
    ],
)  # fmt: skip
def test_a_state_of_the_feeder_that_cannot_be_read_leaves_the_one_before(body: bytes) -> None:
    log = Log()
    log.fed(next={"sums": 6}, sources={"sums": {"selected": 5}})
    before = log.read()
    log.say(TOPICS.state, Snapshot(run_id="r", body=body), b"feed")
    assert log.read() == before
    assert (before.groups.issued, before.selection["sums"].selected) == (6, 5)


def test_a_repeated_message_changes_nothing() -> None:
    log = Log()
    log.issued(3)
    log.group(0, 0, 1.0, 0.0)
    log.say(TOPICS.evals("solver"), EvalResult(run_id="r", policy="solver", version=0))
    before = log.read()
    for message in log.messages:
        log.figures.ledger.add([message])
    assert log.read() == before


def test_groups_versions_and_evaluations() -> None:
    log = Log()
    log.issued(4)
    log.group(0, 0, 1.0, 1.0, verdict="dropped")
    for version, kind in ((0, "anchor"), (9, "merged")):
        log.say(TOPICS.weights("solver"), WeightsPublished("r", "solver", version=version, kind=kind))
    batch = BatchTrained("r", "solver", version=1, groups=(GroupUse("sums", 1),), positions=(Position(2, 7),))
    log.say(TOPICS.batches("solver"), batch)
    log.say(TOPICS.batches("solver"), BatchTrained("r", "solver", positions=(Position(2, 9),)))
    log.say(TOPICS.evals("solver"), EvalResult(run_id="r", policy="solver", version=0, avg_at_k=0.3))
    found = log.read()
    assert found.versions == {"solver": 1}
    assert (found.groups.issued, found.groups.trained, found.groups.discarded) == (4, 1, {"zero_variance": 1})
    assert (found.groups.dead, found.groups.in_flight) == (0, 2)
    assert found.policies["solver"].produced == 1, "a curator saw one group; of the other only its batch tells"
    assert [result.avg_at_k for result in found.evals] == [0.3]
    assert log.figures.trainer_positions == {(TOPICS.curated("solver"), 2): 9}
    json.dumps(plain(found))


def test_an_evaluation_without_sound_figures_is_passed_over() -> None:
    log, infinite = Log(), ({"mean_length": math.inf}, {"mean_length": 1e308})
    sound = EvalResult(run_id="r", policy="solver", problems=2**40, samples=2, mean_length=3.0)
    log.say(TOPICS.evals("solver"), replace(sound, problems=10))
    for spoilt in (*infinite, {"avg_at_k": math.nan}, {"pass_at_k": {"4": math.nan}}):
        log.say(TOPICS.evals("solver"), replace(sound, **spoilt))
    found = log.read()
    assert [result.problems for result in found.evals] == [10]
    assert found.delivered_tokens == 60
    json.dumps(plain(found), allow_nan=False)


def test_a_run_runs_while_a_worker_is_there_and_is_stopped_when_none_is() -> None:
    log = Log()
    assert log.read().state == "stopped"
    log.say(TOPICS.recipe, RecipeRevision(run_id="r"), at_ms=NOW - 1_000)
    assert log.read().state == "running"  # no worker yet, but somebody just spoke
    log.worker("a", "rolling", NOW - 1_000)
    assert log.read().state == "running"
    assert log.read(NOW + 60_000).state == "stopped"
    log.worker("a", "stopped", NOW)
    assert log.read().state == "stopped"
    log.worker("b", "waiting", NOW)
    log.say(TOPICS.workers, None, b"a")
    assert [worker.worker for worker in log.read().workers] == ["b"]
    assert log.read().state == "running"


def test_a_worker_that_was_killed_before_the_clock_was_set_back_is_not_there() -> None:
    log = Log()
    log.say(TOPICS.recipe, RecipeRevision(run_id="r"), at_ms=NOW + 3_600_000)
    assert log.read().state == "stopped"
    log.worker("a", "rolling", NOW + 3_600_000)
    assert log.read().state == "stopped"
    log.worker("b", "rolling", NOW + 10_000)
    assert log.read().state == "running", "clocks of two machines differ by seconds"


@pytest.mark.parametrize("apart_ms", [-20_000, 20_000])
def test_a_worker_whose_clock_goes_otherwise_is_there_while_its_heartbeats_come(apart_ms: int) -> None:
    log, topic = Log(), TOPICS.workers
    for at, arrived_ms in enumerate((0, NOW)):
        status = WorkerStatus(
            run_id="r", worker="a", state="rolling", versions={"solver": at}, updated_ms=NOW + apart_ms
        )
        log.figures.ledger.add([Message(topic, 0, at, b"a", codec.encode(status))], arrived_ms)
        assert log.read().state == ("running" if arrived_ms else "stopped")
    assert log.read(NOW + 20_000).state == "stopped"


def test_a_run_that_ended_is_finished_once_it_is_drained_or_nobody_is_left() -> None:
    log = Log()
    log.issued(1)
    log.worker("a", "draining", NOW)
    log.say(TOPICS.recipe, RecipeRevision(run_id="r", ended="steps"))
    assert (log.read().state, log.read().ended) == ("running", "steps")
    assert log.read(NOW + 60_000).state == "finished"
    log.group(0, 0, 1.0, verdict="dropped")
    assert log.read().state == "finished"
    log.say(TOPICS.recipe, RecipeRevision(run_id="r", revision=1, recipe="{}"))
    assert log.read().state == "running"


def test_other_runs_and_unreadable_bytes_are_passed_over() -> None:
    log = Log()
    log.say(TOPICS.weights("solver"), WeightsPublished(run_id="old", policy="solver", version=9))
    log.figures.ledger.add([Message(TOPICS.weights("solver"), 0, 1, b"", b"no record")])
    log.figures.ledger.add([Message("another.topic", 0, 0, b"", b"")])
    assert log.read().versions == {}


def test_tokens_of_all_lives_of_all_workers_are_added_up() -> None:
    log = Log()
    for worker, started_ms, tokens, wasted in (("a", 1, 50, 0), ("a", 1, 100, 10), ("a", 2, 30, 5), ("b", 1, 7, 0)):
        status = WorkerStatus(
            run_id="r", worker=worker, started_ms=started_ms, tokens=tokens, wasted_tokens=wasted, updated_ms=NOW
        )
        log.say(TOPICS.workers, status, worker.encode())
    assert (log.read().tokens, log.read().wasted_tokens) == (137, 15)


def test_what_no_group_brought_to_its_reader_was_wasted_once_the_run_has_drained() -> None:
    log = Log()
    log.issued(1)
    for started_ms, tokens, wasted in ((1, 60, 0), (2, 50, 3)):  # of the first life nobody told what it had under way
        status = WorkerStatus(run_id="r", worker="a", started_ms=started_ms, tokens=tokens, wasted_tokens=wasted)
        log.say(TOPICS.workers, status, b"a")
    result = EvalResult(run_id="r", policy="solver", problems=3, samples=2, failures=1, mean_length=4.0)
    log.say(TOPICS.evals("solver"), result)
    assert (log.read().delivered_tokens, log.read().count_wasted_tokens()) == (20, 3), (
        "the run goes on: some may be on its way"
    )
    log.say(TOPICS.recipe, RecipeRevision(run_id="r", ended="steps"))
    assert log.read().count_wasted_tokens() == 3, "a group is in flight"
    log.group(0, 0, 1.0, 1.0, verdict="dropped", lengths=(30, 40))
    assert (log.read().delivered_tokens, log.read().count_wasted_tokens()) == (90, 20)


def test_tokens_of_groups_that_came_too_late_to_the_trainer_were_wasted() -> None:
    log = Log()
    status = WorkerStatus(run_id="r", worker="a", started_ms=1, tokens=200, wasted_tokens=5)
    log.say(TOPICS.workers, status, b"a")
    kept = Outcome(run_id="r", stream="sums", policy="solver", verdict="kept", component="curate", lengths=(30, 10))
    for number, (verdict, use) in enumerate((("expired", 0), ("surplus", 0), ("expired", 1), ("run_end", 0))):
        log.say(TOPICS.outcomes("solver"), replace(kept, number=number))
        left = replace(kept, number=number, component="train", verdict=verdict, use=use)
        log.say(TOPICS.outcomes("solver"), left)
    assert (log.read().wasted_tokens, log.read().delivered_tokens) == (85, 80), "a replay's were of use before"


def test_a_shadow_is_told_of_by_itself_and_counts_in_no_other_figure() -> None:
    log = Log()
    log.figures = make_figures("r", Recipe.model_validate({**RECIPE.model_dump(), "shadows": {"free": {}}}))
    log.issued(2)
    for number, topic in enumerate((TOPICS.batches("solver"), TOPICS.batches("solver.free"))):
        gap = {"off_policy_gap": 0.1 + number}
        groups = (GroupUse("sums", 0),)
        variant = "free" * number
        log.say(
            topic, BatchTrained(run_id="r", policy="solver", variant=variant, version=1, groups=groups, metrics=gap)
        )
    log.group(0, 0, 1.0)
    kept = Outcome(run_id="r", stream="sums", number=0, policy="solver", verdict="kept", component="curate")
    log.say(TOPICS.outcomes("solver.free"), replace(kept, rewards=(0.0,), lengths=(9,)))
    log.say(TOPICS.weights("solver.free"), WeightsPublished(run_id="r", policy="solver", variant="free", version=7))

    found = log.read()

    assert found.versions == {"solver": 1}
    assert found.rewards["solver"] == (RewardPoint(0, 1.0, 1, 1),)
    assert (found.weights["solver"].published, found.delivered_tokens) == (0, 0)
    assert found.groups.trained == 1
    assert (found.groups.in_flight, found.in_flight) == (1, 2)
    shadow = found.shadows["solver.free"]
    assert (shadow.version, shadow.groups.trained, shadow.gaps) == (7, 1, ((1, 1.1),))
    assert (shadow.off_policy_gap, shadow.off_policy_gap_beside) == (1.1, 0.1)
