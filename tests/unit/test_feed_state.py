from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from made_recipes import sums_recipe
from structlog.testing import capture_logs

from headrace.envs.contract import Problem, Score, Split
from headrace.envs.payload import problem_from_json
from headrace.infra.kafka.clients import Connection, Message, RunAddress
from headrace.infra.recipe.settings import Feed, Recipe
from headrace.infra.run.run import Run
from headrace.infra.stopwatch import Stopwatch
from headrace.infra.store.object_store import StoreAddress
from headrace.producers.feed.evaluation_schedule import EvaluationSchedule
from headrace.producers.feed.feed_state import FeedState
from headrace.producers.feed.feeder import Feeder
from headrace.producers.feed.open_evaluations import Answer
from headrace.producers.feed.overdue import MOST_ATTEMPTS
from headrace.producers.feed.planned import Planned
from headrace.producers.feed.selectors.contract import AcceptAll
from headrace.producers.feed.solved import WINDOW, SolvedWatch
from headrace.producers.feed.task_source import TaskSource
from headrace.schemas import codec
from headrace.schemas.ids import GroupId, derive_task_seed
from headrace.schemas.records import (
    BatchTrained,
    DeadLetter,
    EvalResult,
    GroupUse,
    Outcome,
    RecipeRevision,
    WeightsPublished,
)


class Counting:
    name = "counting"

    def __init__(self, tiers: tuple[str, ...] | list[str] = ("low",)) -> None:
        self._tier = tiers[0]

    def size(self, split: Split) -> int | None:
        return None if split == "train" else 100

    def problem(self, split: Split, index: int) -> Problem:
        return Problem(f"{self._tier}-{split}-{index}", f"{index}?", str(index), self._tier)

    def score(self, problem: Problem, text: str) -> Score:
        return Score(float(text == problem.answer))


class Tiered(Counting):
    def tiers(self) -> tuple[str, ...]:
        return ("low", "high")

    def asked(self) -> tuple[str, ...]:
        return (self._tier,)


class Watching(AcceptAll):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.seen: list[Any] = []

    def observe(self, outcome: Outcome) -> None:
        self.seen.append(outcome.number)

    def on_version(self, version: int) -> None:
        self.seen.append(f"v{version}")


def recipe(task_partitions: int = 0, **trainer: Any) -> Recipe:
    env = {"use": "arithmetic"}
    return sums_recipe(
        policies={"solver": {"path": "x"}, "judge": {"path": "y"}},
        workflows={
            "sums": {"env": env, "policies": {"solver": "solver"}},
            "debate": {"env": env, "policies": {"s": "solver", "j": "judge"}},
        },
        trainer={"groups_per_batch": 4, "minibatches": 1, "max_staleness": 1, "steps": 3, **trainer},
        evaluate={"every": 2, "problems": 3, "samples": 2},
        rollout={"group_size": 5},
        kafka={"partitions": 2, "task_partitions": task_partitions},
    )


def state(environment: type[Counting] = Counting, ended: str = "", **trainer: Any) -> FeedState:
    found = recipe(**trainer)
    sources = {w: TaskSource(w, lambda more: environment(**more), Watching(1)) for w in found.workflows}
    return FeedState(found, RecipeRevision(run_id="r", revision=2, ended=ended), sources)


def restore(second: FeedState, first: FeedState) -> None:
    """Have another take what is written of one."""
    chunks = {name: chunk for name, chunk in json.loads(json.dumps(first.take_changes())).items() if chunk is not None}
    second.restore(json.loads(json.dumps(first.snapshot())), chunks)


def names(planned: list[Planned]) -> list[tuple[str, int]]:
    return [(one.task.stream, one.task.number) for one in planned]


def dropped(stream: str, number: int, reward: float, **more: Any) -> Outcome:
    common = {"run_id": "r", "component": "curate", "verdict": "dropped", "reason": "zero_variance", "policy": "solver"}
    return Outcome(**{**common, "stream": stream, "number": number, "rewards": (reward, reward), **more})


def version(policy: str, number: int) -> WeightsPublished:
    return WeightsPublished(run_id="r", policy=policy, version=number)


def test_a_task_says_all_that_a_worker_needs() -> None:
    feed = state()
    planned = feed.plan()
    # 8 open for the solver fill it; the judge still has room, and pace is any
    assert len([one for one in planned if one.task.stream == "debate"]) == 8
    task = planned[1].task
    assert (task.run_id, task.revision, task.workflow, task.purpose) == ("r", 2, "debate", "train")
    assert (task.stream, task.number, task.attempt, task.n_asked, task.versions) == ("debate", 0, 0, 5, {})
    assert (task.task_id, task.tier) == ("low-train-0", "low")
    assert problem_from_json(task.payload).answer == "0"
    assert task.seed == derive_task_seed(1, "debate", 0) != derive_task_seed(1, "debate", 1)
    assert 0 <= task.seed < 2**63


def test_a_seed_never_changes() -> None:
    assert derive_task_seed(1, "sums", 7) == 6313955248914724937


def test_trained_expired_and_dead_numbers_make_room() -> None:
    feed = state()
    feed.plan()
    assert feed.plan() == []
    feed.fold_outcome(Outcome(stream="debate", number=0, policy="judge", verdict="kept", component="curate"))
    assert feed.plan() == []
    feed.fold_batch(BatchTrained(policy="judge", version=1, groups=(GroupUse("debate", 0),)))
    assert names(feed.plan()) == [("debate", 8)]
    feed.fold_outcome(Outcome(stream="debate", number=1, policy="judge", verdict="expired", component="train"))
    assert names(feed.plan()) == [("debate", 9)]
    feed.fold_dead_letter(DeadLetter(stream="debate", number=2, policy="judge"))
    assert names(feed.plan()) == [("debate", 10)]
    feed.fold_dead_letter(DeadLetter(stream="debate", number=3))  # the task itself could not be read
    assert names(feed.plan()) == [("debate", 11)]


def test_a_number_that_is_sent_back_is_open_again_for_its_policy_or_for_all() -> None:
    feed = state()
    feed.plan()
    for letter in (
        DeadLetter(stream="debate", number=2, policy="judge", topic="t.trajectories.judge"),
        DeadLetter(stream="debate", number=3, topic="t.tasks.debate"),
        DeadLetter(stream="", number=-1),
        DeadLetter(stream="nowhere", number=1),
    ):
        feed.fold_dead_letter(letter)
        feed.fold_dead_letter(replace(letter, reason="redriven", partition=1, offset=70))
    assert feed.pacing.count_open("judge") == 8
    assert feed.pacing.tasks["debate", 2].open == {"solver", "judge"}
    assert feed.pacing.tasks["debate", 2].offset == -1
    assert (feed.pacing.tasks["debate", 3].partition, feed.pacing.tasks["debate", 3].offset) == (1, 70)


def test_a_lost_or_dead_number_is_asked_again_with_its_problem_and_seed_over_a_restart() -> None:
    first, second = state(), state()
    before = {(one.task.stream, one.task.number): one.task for one in first.plan()}
    letter = DeadLetter(stream="debate", number=3)
    first.fold_dead_letter(letter)
    restore(second, first)
    second.fold_dead_letter(replace(letter, reason="redriven"))
    with capture_logs() as logs:
        again = [one.task for one in second.reissue_lost([GroupId("debate", 3), GroupId("debate", 4)])]
    for number, task in zip((3, 4), again, strict=True):
        old = before["debate", number]
        assert (task.attempt, task.seed, task.payload, task.n_asked) == (1, old.seed, old.payload, 5)
    assert [line["event"] for line in logs] == ["task.reissued"] * 2


def test_replays_and_single_trajectories_make_no_room() -> None:
    feed = state()
    feed.plan()
    before = feed.pacing.count_open("judge")
    feed.fold_batch(BatchTrained(policy="judge", version=1, groups=(GroupUse("debate", 0, use=1),)))
    feed.fold_outcome(Outcome(stream="debate", number=1, policy="judge", verdict="dropped", level="trajectory"))
    feed.fold_outcome(Outcome(stream="debate", number=1, policy="judge", verdict="expired", use=1))
    feed.fold_dead_letter(DeadLetter(stream="debate", number=1, policy="judge", use=1))
    feed.fold_outcome(Outcome(stream="eval.debate", number=1, policy="judge", verdict="dropped"))
    assert feed.pacing.count_open("judge") == before
    assert feed.plan() == []


def test_the_selector_sees_every_finished_group_once_and_every_new_version() -> None:
    feed = state()
    feed.plan()
    selector = feed.sources["debate"].selector
    feed.fold_outcome(dropped("debate", 0, 1.0))
    feed.fold_outcome(dropped("debate", 0, 1.0))
    feed.fold_outcome(dropped("debate", 0, 1.0, policy="judge", verdict="kept", reason=""))
    feed.fold_weights(version("solver", 1))
    feed.fold_batch(BatchTrained(policy="solver", version=1))
    feed.fold_weights(version("judge", 1))
    feed.fold_weights(version("judge", 2))
    assert isinstance(selector, Watching)
    assert selector.seen == [0, 0, "v1", "v2"], "a version is new once, whichever policy comes to it first"


def test_a_group_that_was_trained_while_the_feeder_was_away_teaches_it() -> None:
    feed = state()
    feed.plan()
    kept = Outcome(run_id="r", stream="sums", number=0, policy="solver", verdict="kept", component="curate")
    batch = BatchTrained(run_id="r", policy="solver", version=1, groups=(GroupUse("sums", 0),))
    come = [
        Message(topic, 0, offset, b"", codec.encode(record))
        for topic, offset, record in (
            ("t.batches.solver", 0, batch),
            ("t.outcomes.solver", 0, kept),
            ("t.outcomes.solver", 1, dropped("sums", 1, 1.0)),
        )
    ]
    address, store = RunAddress(Connection("127.0.0.1:1"), "t"), StoreAddress("127.0.0.1:1", "bin", "k", "s")
    own = SimpleNamespace(restored=None, catch_up=lambda: iter(come), poll=lambda *_: come)
    feeder = Feeder(Run(address, "r", (feed.recipe,), store), cast("Any", own), feed)
    found = feeder.poll(Stopwatch())
    assert [(message.topic, message.offset) for message in feeder.poll(Stopwatch())] == [
        ("t.outcomes.solver", 0),
        ("t.outcomes.solver", 1),
        ("t.batches.solver", 0),
    ]
    for message in found:
        assert feeder.handle(message) == ()
    assert cast("Watching", feed.sources["sums"].selector).seen == [0, 1, "v1"]
    assert feed.watches["sums"].snapshot() == ".e"


def test_evaluations_have_their_own_stream_numbers_and_exact_versions() -> None:
    feed = state()
    feed.plan()
    feed.fold_weights(version("solver", 0))
    feed.fold_weights(replace(version("solver", 7), kind="merged"))
    assert feed.pacing.versions["solver"] == 0
    planned = feed.plan()
    assert names(planned) == [("eval.sums", n) for n in range(3)]
    task = planned[0].task
    assert (task.purpose, task.workflow, task.n_asked, task.versions) == ("eval", "sums", 2, {"solver": 0})
    assert task.task_id == "low-held_out-0"
    feed.fold_weights(version("solver", 1))
    feed.fold_weights(version("judge", 0))
    # debate waited for the judge; both its policies are now evaluated at version 0, the partner being the newest
    assert [(t.task.number, t.task.versions) for t in feed.plan()][::3] == [
        (0, {"solver": 0, "judge": 0}),
        (3, {"solver": 1, "judge": 0}),
    ]


def test_all_partitions_of_tasks_get_some_however_few_those_of_groups_are() -> None:
    feed = state(task_partitions=3)
    assert {one.open.partition for one in feed.plan()} == {0, 1, 2}
    feed.fold_weights(version("solver", 0))
    assert [(one.task.stream, one.open.partition) for one in feed.plan()] == [("eval.sums", n) for n in range(3)]


def evaluating(feed: FeedState) -> list[tuple[str, int]]:
    feed.plan()
    feed.fold_weights(version("solver", 0))
    return names(feed.plan())


def test_a_lost_task_of_an_evaluation_is_asked_again_with_its_problem_and_version_over_a_restart() -> None:
    first, feed = state(), state()
    assert evaluating(first) == [("eval.sums", n) for n in range(3)]
    first.evaluating.tasks[GroupId("eval.sums", 2)].offset = 7
    restore(feed, first)
    feed.fold_weights(version("solver", 1))
    partition_id = ("eval.sums", 0)
    assert [one.group.number for one in feed.evaluating.find_passed({partition_id: 7})] == []
    assert list(feed.evaluating.find_passed({partition_id: 8})) == [(("eval.sums", 2), 0, ("solver",))]
    [again] = feed.reissue_lost([GroupId("eval.sums", 2)])
    task = again.task
    assert (task.purpose, task.number, task.attempt, task.versions) == ("eval", 2, 1, {"solver": 0})
    assert (task.task_id, task.workflow, task.n_asked) == ("low-held_out-2", "sums", 2)
    old = feed.snapshot()
    del old["evaluating"]
    state().restore(old, {})  # of a build that did not keep them


def test_an_evaluation_is_closed_by_its_result_by_the_evaluators_answers_or_in_the_end_by_none() -> None:
    feed = state()
    evaluating(feed)
    feed.evaluating.note_answered(
        {Answer("sums", "solver", 0, 1), Answer("sums", "solver", 1), Answer("sums", "judge", 0)}
    )
    assert [number for _, number in feed.evaluating.tasks] == [0, 2]
    feed.fold_result(EvalResult(policy="solver", workflow="sums", version=1))
    assert len(feed.evaluating.tasks) == 2, "that is another one's"
    group = GroupId("eval.sums", 2)
    for _ in range(MOST_ATTEMPTS - 1):
        assert feed.conclude_unanswered([group]) == []
        feed.reissue_lost([group])
    with capture_logs() as logs:
        assert names(feed.conclude_unanswered([group])) == [group]
    assert feed.reissue_lost([group]) == []
    assert [(line["event"], line["number"]) for line in logs] == [("evaluation.unanswered", 2)]
    feed.fold_result(EvalResult(policy="solver", workflow="sums", version=0))
    assert feed.snapshot()["evaluating"] == []
    assert feed.take_changes()["eval.sums|0"] is None
    evaluating(other := state())
    other.evaluating.note_answered({Answer("sums", "solver", 0)})
    assert not other.evaluating.tasks


def test_the_end_waits_for_the_last_versions_and_their_evaluations_and_is_said_once() -> None:
    feed = state()
    feed.plan()
    feed.fold_weights(version("solver", 3))
    feed.fold_batch(BatchTrained(policy="judge", version=3))
    assert feed.plan() != []
    assert feed.end() == ""
    feed.fold_weights(version("judge", 3))
    assert feed.end() == ""  # an evaluation is not planned yet
    assert all(one.task.purpose == "eval" for one in feed.plan())
    assert feed.end() == "steps"
    assert feed.end() == ""
    assert feed.plan() == []


def test_solved_tasks_close_their_stream_and_in_the_end_the_run() -> None:
    feed = state()
    with capture_logs() as logs:
        answer_all(feed, "sums", 1.0)
        assert feed.end() == ""
        answer_all(feed, "debate", 1.0)
    assert [line["workflow"] for line in logs if line["event"] == "tasks.solved"] == ["sums", "debate"]
    assert feed.plan() == []
    assert feed.end() == "solved"


def test_a_run_whose_held_out_reward_rises_no_more_ends_when_its_newest_version_is_to_be_evaluated() -> None:
    feed, again = state(steps=9), state(steps=9)
    feed.early_stop.after = again.early_stop.after = 1
    for number, reward in enumerate((0.4, 0.3)):
        feed.fold_weights(version("solver", number))
        feed.fold_weights(version("judge", number))
        feed.plan()
        assert feed.end() == ""
        for workflow, policies in feed.pacing.policies_of.items():
            for policy in policies:
                one = EvalResult(policy=policy, workflow=workflow, version=number, avg_at_k=reward, played=2)
                feed.fold_result(one)
    feed.fold_weights(version("solver", 2))
    assert feed.end() == "", "its newest version is to be evaluated first"
    assert {one.task.purpose for one in feed.plan()} >= {"eval"}
    assert feed.end() == "early_stop"
    assert feed.plan() == []
    restore(again, feed)
    assert again.end() == "", "who goes on with it has all evaluations before it again"


def test_a_version_that_is_published_while_a_run_ends_early_is_evaluated_too() -> None:
    feed = state(steps=9)
    for policy in ("solver", "judge"):
        feed.fold_weights(version(policy, 0))
    feed.pacing.closed |= {"sums", "debate"}
    feed.plan()
    assert feed.end() == "solved"
    feed.fold_weights(version("solver", 1))  # its trainer had begun it; it would be due only at version 2
    assert {(one.task.purpose, one.task.versions["solver"]) for one in feed.plan()} == {("eval", 1)}
    assert feed.plan() == []


def test_solved_tasks_raise_the_tier_where_there_is_one_and_the_recipe_asks_for_it() -> None:
    unasked, feed = state(Tiered), climbing()
    answer_all(unasked, "sums", 1.0)
    assert "sums" in unasked.pacing.closed
    answer_all(feed, "sums", 1.0)
    answer_all(feed, "debate", 1.0)
    assert {one.task.tier for one in feed.plan()} == {"high"}
    answer_all(feed, "sums", 1.0, tier="low")  # old tasks that finish late do not count
    assert "sums" not in feed.pacing.closed
    answer_all(feed, "sums", 1.0, tier="high")
    assert "sums" in feed.pacing.closed


def climbing() -> FeedState:
    feed = state(Tiered)
    feed.recipe = feed.recipe.model_copy(update={"feed": Feed(raise_tier=True)})
    return feed


def answer_all(feed: FeedState, stream: str, reward: float, **more: Any) -> None:
    """Conclude all tasks over and over, until those of one stream have filled its window."""
    for _ in range(WINDOW):
        feed.plan()
        for name, number in list(feed.pacing.tasks):
            if name == stream:
                feed.fold_outcome(dropped(name, number, reward, **more))
            feed.pacing.conclude(GroupId(name, number))


def test_a_share_below_the_limit_is_no_verdict_and_above_it_is() -> None:
    watch = SolvedWatch(0.95)
    for number in range(25):
        watch.observe(dropped("sums", number, 1.0, verdict="kept", reason=""))
    verdicts = [watch.observe(dropped("sums", number, 1.0)) for number in range(WINDOW)]
    assert verdicts.index("solved") == WINDOW - 25  # the first kept group has left the window: 476 of 500
    assert watch.observe(dropped("sums", 0, 1.0)) == "solved"


def test_a_restored_feeder_plans_what_the_first_one_would_have() -> None:
    first = climbing()
    answer_all(first, "sums", 1.0)
    first.fold_weights(version("solver", 0))
    second = climbing()
    restore(second, first)
    assert [_same(one) for one in second.plan()] == [_same(one) for one in first.plan()]
    assert second.snapshot() == first.snapshot()


def _same(planned: Planned) -> tuple[Any, ...]:
    task = planned.task
    return task.stream, task.number, task.payload, task.seed, task.versions, planned.open.partition


def test_a_run_that_ended_stays_ended_unless_a_later_revision_goes_on() -> None:
    first = state()
    for policy in ("solver", "judge"):
        first.fold_weights(version(policy, 3))
    first.plan()
    assert first.end() == "steps"
    for ended in ("", "steps"):
        again = state(ended=ended, steps=5)
        restore(again, first)
        assert bool(again.plan()) == (not ended)


DEBATE_ALONE = {"env": {"use": "arithmetic"}, "policies": {"s": "solver"}}
"""The workflow debate, in which only solver is trained."""


def changed(first: FeedState, **tables: Any) -> FeedState:
    """Return the feeder of the next revision, with other tables, that goes on where the first one was."""
    found = Recipe.model_validate({**first.recipe.model_dump(mode="json"), **tables})
    sources = {w: TaskSource(w, lambda more: Counting(**more), Watching(1)) for w in found.workflows}
    again = FeedState(found, replace(first.revision, revision=first.revision.revision + 1), sources)
    restore(again, first)
    return again


def test_a_recipe_without_a_workflow_forgets_what_is_open_of_it_and_goes_on() -> None:
    first = state()
    planned = names(first.plan())
    kept = [one for one in planned if one[0] == "debate"]
    with capture_logs() as logs:
        again = changed(first, workflows={"debate": first.recipe.model_dump()["workflows"]["debate"]})
    assert sorted(again.pacing.tasks) == [GroupId(*one) for one in kept]
    assert [(one["workflow"], one["numbers"]) for one in logs] == [("sums", len(planned) - len(kept))]
    assert again.plan() == [], "judge has no room"
    assert again.snapshot()["next"] == first.snapshot()["next"], "its groups that are on the way were issued"
    assert again.snapshot()["revisions"] == {"sums": [[2, 0]], "debate": [[2, 0], [3, len(kept)]]}
    assert [name for name, chunk in again.take_changes().items() if chunk is None] == ["sums|0"]

    for group in again.pacing.tasks:
        again.pacing.table.note_change(group)  # the chunks that were written before are read too
    back = changed(again, workflows=first.recipe.model_dump()["workflows"])
    back.fold_batch(BatchTrained("r", "solver", version=1, groups=tuple(GroupUse(*one) for one in kept)))
    assert min(number for stream, number in names(back.plan()) if stream == "sums") == 4
    assert [back.revision_of("sums", number) for number in (3, 4)] == [2, 4]


def test_a_recipe_without_a_policy_waits_for_it_no_more() -> None:
    first = state()
    planned = [one for one in first.plan() if one.task.stream == "debate"]
    for one in planned:
        one.open.offset = 7
    first.fold_outcome(replace(dropped("debate", 0, 1.0), verdict="expired"))
    first.fold_dead_letter(DeadLetter(run_id="r", stream="debate", number=1))
    again = changed(first, policies={"solver": {"path": "x"}}, workflows={"debate": DEBATE_ALONE})
    passed = list(again.pacing.find_passed({("debate", 0): 8, ("debate", 1): 8}))
    assert {policy for one in passed for policy in one.policies} == {"solver"}
    assert [one.group.number for one in passed] == list(range(2, len(planned))), "the first was judge's alone"
    again.fold_dead_letter(DeadLetter(run_id="r", stream="debate", number=1, reason="redriven"))
    assert again.pacing.tasks[GroupId("debate", 1)].open == {"solver"}


def test_the_end_waits_for_no_evaluation_of_a_workflow_or_a_policy_that_is_gone() -> None:
    first = state()
    for policy in ("solver", "judge"):
        first.fold_weights(version(policy, 0))
    evaluations = EvaluationSchedule({"sums": ("solver",), "debate": ("solver", "judge")}, {"solver": 3, "judge": 3}, 2)
    evaluations.note_published("solver", 0)
    evaluations.take_ready()  # judge has no version, so the debate waits
    for policies_of, waits in (
        ({"sums": ("solver",)}, []),
        ({"sums": ("solver",), "debate": ("judge",)}, []),
        ({"sums": ("solver",), "debate": ("solver",)}, [("debate", "solver")]),
    ):
        again = EvaluationSchedule(policies_of, {"solver": 3, "judge": 3}, 2)
        again.restore(evaluations.snapshot())
        again.note_published("judge", 0)
        assert [(one.workflow, one.policy) for one in again.take_ready() if one.policy == "solver"] == waits
        assert again.is_settled

    first.plan()
    again = changed(first, policies={"solver": {"path": "x"}}, workflows={"debate": DEBATE_ALONE})
    assert {again.evaluating.of(group).policy for group in again.evaluating.tasks} == {"solver"}


def published(feed: FeedState, number: int) -> list[tuple[str, str, int]]:
    """Have both policies publish a version; return the evaluations that are then issued."""
    for policy in ("solver", "judge"):
        feed.fold_batch(BatchTrained(policy=policy, version=number))
        feed.fold_weights(version(policy, number))
    return issued_evaluations(feed)


def issued_evaluations(feed: FeedState) -> list[tuple[str, str, int]]:
    """Return (workflow, policy, version) of the evaluations that are issued now."""
    with capture_logs() as logs:
        feed.plan()
    asked = [one for one in logs if one["event"] == "evaluation.issued"]
    return [(one["workflow"], one["policy"], one["versions"][one["policy"]]) for one in asked]


EACH = [("sums", "solver"), ("debate", "solver"), ("debate", "judge")]
"""What has an evaluation of its own: each policy in each of its workflows."""


def each_at(number: int) -> set[tuple[str, str, int]]:
    return {(*one, number) for one in EACH}


@pytest.mark.parametrize("steps", [3, 2])
def test_a_run_with_fewer_versions_than_it_began_with_ends_once_its_newest_one_is_evaluated(steps: int) -> None:
    first = state(steps=9)
    assert set(published(first, 2)) == each_at(2)
    assert published(first, 3) == [], "not due: the last one is 9"
    again = changed(first, trainer={**first.recipe.model_dump()["trainer"], "steps": steps})
    assert again.end() == ""
    assert set(issued_evaluations(again)) == each_at(3)
    assert again.end() == "steps"
    assert issued_evaluations(again) == [], "once"


def test_a_run_that_ends_as_it_began_evaluates_its_last_version_once_whichever_policy_ends_first() -> None:
    feed = changed(state(), policies={"solver": {"path": "x"}, "judge": {"path": "y", "trainer": {"steps": 5}}})
    assert set(published(feed, 0)) == each_at(0)
    feed.fold_weights(version("solver", 3))
    assert issued_evaluations(feed) == [("sums", "solver", 3), ("debate", "solver", 3)]
    feed.fold_batch(BatchTrained(policy="judge", version=5))
    assert feed.end() == "", "the judge's last version is not published yet"
    assert issued_evaluations(feed) == []
    feed.fold_weights(version("judge", 5))
    assert feed.end() == ""
    assert issued_evaluations(feed) == [("debate", "judge", 5)]
    assert (feed.end(), issued_evaluations(feed)) == ("steps", [])


def test_a_skipped_version_is_evaluated_at_the_next_published_one() -> None:
    schedule = EvaluationSchedule({"sums": ("solver",)}, {"solver": 10}, 4)
    for number in (0, 1, 3, 5, 6, 8, 9, 9, 10, 10):
        schedule.note_published("solver", number)
    assert [one.versions["solver"] for one in schedule.take_ready()] == [0, 5, 8, 10]
    assert schedule.take_ready() == []
