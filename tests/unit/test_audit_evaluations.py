"""What an audit says of evaluations: of tasks, answers and results."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from made_groups import group
from made_recipes import sums_recipe

from headrace.consumers.evaluate.evaluation import EvaluationFold, build_group_without_answers
from headrace.infra.kafka.clients import Message
from headrace.infra.recipe.settings import Recipe
from headrace.ledger.feeder_snapshot import FeederSnapshot
from headrace.ops.audit.evaluations import EvaluationCounts, Evaluations, _describe_differences
from headrace.schemas import codec
from headrace.schemas.headers import HeaderError, Stamp
from headrace.schemas.records import ClaimCheck, DeadLetter, EvalResult, Failure, Snapshot, TierResult, TrajectoryGroup
from headrace.schemas.topics import EVALUATOR

RECIPE = sums_recipe(evaluate={"problems": 2})
TOPICS = RECIPE.topics
STREAM, TASKS, ANSWERS = "eval.sums", TOPICS.tasks("eval.sums"), TOPICS.eval_groups("solver")

OF_VERSION_1 = {"min_version": 1, "max_version": 1}


def answer(number: int, *rewards: float) -> TrajectoryGroup:
    made = group(rewards, number=number, version=number // 2)
    return replace(made, run_id="r", stream=STREAM, asked_version=number // 2)


class Scene:
    """Four problems, two for each of versions 0 and 1: asked, played, answered, and two results."""

    def __init__(self) -> None:
        self.tasks, self.passed = list(range(4)), 4
        self.answers = {number: answer(number, 1.0, 0.0) for number in range(4)}
        fold = EvaluationFold("r", 2)
        self.results = [result for one in self.answers.values() if (result := fold.fold_group(one)) is not None]
        self.issued, self.read = 4, 4
        self.revisions = (RECIPE,)
        self.letters: list[DeadLetter] = []

    def taken(self) -> Evaluations:
        found = Evaluations(self.revisions)
        for letter in self.letters:
            found.fold_dead_letter(letter)
        for offset, (number, one) in enumerate(self.answers.items()):
            of_version = {"min_version": one.asked_version, "max_version": one.asked_version}
            headers = Stamp("r", STREAM, number, policy="solver", **of_version).to_headers()
            message = Message(ANSWERS, 0, offset, b"", codec.encode(one), headers)
            assert found.fold_answer(message, "r")
            found.fold_value(found.find_unanswered(message, "r") or one)
        for offset, number in enumerate(self.tasks):
            message = Message(TASKS, 0, offset, b"", b"", Stamp("r", STREAM, number).to_headers())
            found.fold_task(message, "r", {(TASKS, 0): self.passed})
        for offset, result in enumerate(self.results):
            found.fold_result(Message(TOPICS.evals("solver"), 0, offset, b"", codec.encode(result)), "r")
        feeder = Snapshot("r", "feed", body=json.dumps({"next_evaluation": {"sums": self.issued}}).encode())
        evaluator = Snapshot("r", "evaluate", positions={f"{ANSWERS}[0]": self.read})
        newest = FeederSnapshot()
        newest.fold_message(Message(TOPICS.state, 0, 0, b"feed", codec.encode(feeder)))
        found.fold_snapshots(newest, Message(TOPICS.state, 0, 1, b"evaluate", codec.encode(evaluator)))
        return found

    def said(self, *, still: bool = True, drained: bool = True) -> list[str]:
        return [str(one) for one in self.taken().problems(still=still, drained=drained).listed]


def unanswered(scene: Scene) -> None:
    del scene.answers[3], scene.results[1]


NAME = "the evaluation of version {} of solver on sums"


def result(scene: Scene, number: int, **changes: Any) -> None:
    scene.results[number] = replace(scene.results[number], **changes)


SAYS: list[tuple[Callable[[Scene], object], list[str]]] = [
    (unanswered, ["eval.sums:3 of solver was issued, but never answered"]),
    (
        lambda scene: (unanswered(scene), scene.tasks.pop()),
        ["eval.sums:3 of solver was issued, but never answered"],
    ),
    (
        lambda scene: scene.answers.update({9: answer(9, 1.0, 0.0)}),
        ["eval.sums:9 of solver was answered or is a dead letter, but was never issued"],
    ),
    (
        lambda scene: scene.letters.append(DeadLetter("r", policy="solver", stream=STREAM, number=9)),
        ["eval.sums:9 of solver was answered or is a dead letter, but was never issued"],
    ),
    (
        lambda scene: scene.tasks.append(9),
        ["eval.sums:9 has a record on the eval-tasks topic, but the feeder's snapshot does not count it as issued"],
    ),
    (
        lambda scene: scene.results.pop(),
        [
            "2 evaluations of sums have all answers, but only 1 of them has a result",
            f"{NAME.format(1)} has all answers, but no result",
        ],
    ),
    (
        lambda scene: scene.results.append(scene.results[0]),
        [f"{NAME.format(0)} has more than one result: t.evals.solver[0]@2"],
    ),
    (
        lambda scene: result(scene, 1, avg_at_k=2.0),
        [f"{NAME.format(1)} has a result that differs from its answers (answers -> result): avg_at_k 0.5 -> 2.0"],
    ),
    (
        lambda scene: result(scene, 1, avg_at_k=1.0),
        [f"{NAME.format(1)} has a result that differs from its answers (answers -> result): avg_at_k 0.5 -> 1.0"],
    ),
    (
        lambda scene: result(scene, 1, standard_error=0.25),
        [f"{NAME.format(1)} has a result that differs from its answers (answers -> result): standard_error 0.0 -> "],
    ),
    (lambda scene: result(scene, 1, standard_error=-1.0), []),
    (
        lambda scene: result(scene, 1, tiers=(TierResult("easy", 1, 2, 0.5), TierResult("hard", 1, 2, 0.5))),
        [f"{NAME.format(1)} has a result that differs from its answers (answers -> result): tiers none -> easy and "],
    ),
    (
        lambda scene: scene.results.append(replace(scene.results[1], version=7)),
        [f"{NAME.format(7)} has a result, but some of its answers are missing"],
    ),
    (
        lambda scene: (scene.results.append(EvalResult("other")), result(scene, 1, run_id="other")),
        ["2 evaluations of sums have all answers", f"{NAME.format(1)} has all answers, but no result"],
    ),
]


def test_of_evaluations_that_are_whole_nothing_is_said() -> None:
    scene = Scene()
    assert scene.said() == []
    assert scene.taken().counts(drained=True) == {"sums.solver": EvaluationCounts(4, 4, 0, 0, 0, 2)}


def test_no_result_is_missed_of_a_workflow_or_policy_that_a_later_recipe_gave_up() -> None:
    tables = RECIPE.model_dump(mode="json")
    judged = tables["workflows"]["sums"] | {"policies": {"s": "solver", "j": "judge"}}
    both = {"policies": {**tables["policies"], "judge": {"path": "y"}}, "workflows": {"sums": judged}}
    renamed = {"workflows": {"words": tables["workflows"]["sums"]}}
    for before, after in ((both, {}), ({}, renamed)):
        scene = Scene()
        scene.revisions = tuple(Recipe.model_validate({**tables, **one}) for one in (before, after))
        scene.results.pop()
        assert scene.said() == []
        scene.revisions = (scene.revisions[0].model_copy(update={"workflows": RECIPE.workflows}), RECIPE)
        assert scene.said() != []


def test_an_evaluation_that_is_not_as_it_should_be_is_named() -> None:
    for flaw, begins in SAYS:
        scene = Scene()
        flaw(scene)
        said = scene.said()
        assert len(said) == len(begins), said
        assert all(what.startswith(begin) for what, begin in zip(said, begins, strict=True)), said


def test_while_a_run_goes_on_an_evaluation_is_lost_once_the_workers_are_past_its_task() -> None:
    scene = Scene()
    unanswered(scene)
    scene.passed = 3
    assert scene.said(still=False, drained=False) == []
    scene.passed = 4
    assert scene.said(still=False, drained=False) == ["eval.sums:3 of solver was issued, but never answered"]


def test_a_huge_number_in_the_log_takes_neither_memory_nor_time() -> None:
    scene = Scene()
    scene.tasks, scene.passed = [*scene.tasks, 10**12], 5
    said = scene.said(still=False, drained=False)
    assert "eval.sums:1000000000000 of solver was issued, but never answered" in said
    scene.issued = 2**32 - 1
    assert scene.taken().counts(drained=True)["sums.solver"].lost == 2**32 - 1 - 4


def test_a_result_may_come_until_the_evaluator_has_read_all_answers() -> None:
    scene = Scene()
    scene.results.pop()
    scene.read = 3
    assert scene.said(drained=False) == []


def test_an_answer_is_on_the_topic_of_its_policy() -> None:
    two = Recipe.model_validate({**RECIPE.model_dump(), "policies": {"solver": {"path": "x"}, "judge": {"path": "y"}}})
    headers = Stamp("r", STREAM, 1, policy="judge").to_headers()
    with pytest.raises(HeaderError, match="a group of policy judge is on another policy's eval-groups topic"):
        Evaluations((two,)).fold_answer(Message(ANSWERS, 0, 0, b"", b"", headers), "r")


def test_an_answer_that_the_evaluator_could_not_read_counts_as_it_did_there() -> None:
    scene = Scene()
    fold = EvaluationFold("r", 2)
    unread = build_group_without_answers(Stamp("r", STREAM, 3, policy="solver", **OF_VERSION_1), "solver", (RECIPE,))
    [scene.results[1]] = [one for each in (scene.answers[2], unread) if (one := fold.fold_group(each)) is not None]
    said = scene.said()
    assert [what.partition(" (")[0] for what in said] == [
        f"{NAME.format(1)} has a result that differs from its answers"
    ]
    scene.letters = [
        DeadLetter("r", EVALUATOR, ANSWERS, 0, 3, "missing_object", stream=STREAM, number=3, policy="solver")
    ]
    assert scene.said() == []
    scene.letters[0] = replace(scene.letters[0], reason="other_run")
    assert scene.said() == said, "the evaluator passes over one of another run"


def test_of_answers_in_a_store_that_is_left_out_nothing_is_said() -> None:
    scene = Scene()
    for number in (2, 3):
        scene.answers[number] = replace(scene.answers[number], trajectories=(), claim=ClaimCheck("main", "k"))
    assert scene.said() == []
    scene.answers[2] = answer(2, 1.0, 0.0)
    assert scene.said() == []


def test_an_evaluation_whose_problem_is_dead_is_closed() -> None:
    scene = Scene()
    unanswered(scene)
    scene.letters = [DeadLetter("r", stream=STREAM, number=3)]
    assert scene.said() == []
    assert scene.taken().counts(drained=True) == {"sums.solver": EvaluationCounts(4, 3, 1, 0, 0, 1)}


def test_where_a_version_played_along_in_another_evaluation_nobody_knows_which_answers_its_result_is_made_of() -> None:
    scene = Scene()
    scene.answers = {number: replace(answer(number, 1.0, 0.0), asked_version=0) for number in range(2)}
    scene.answers |= {number: replace(answer(number, 1.0, 1.0), asked_version=0) for number in (2, 3)}
    scene.results = [replace(scene.results[0], avg_at_k=0.75)]
    assert [what for what in scene.said() if "differs from its answers" in what] == []
    scene.results[0] = replace(scene.results[0], samples=3)
    assert [what for what in scene.said() if "differs from its answers" in what] == [
        f"{NAME.format(0)} has a result that differs from its answers (answers -> result): samples 2 -> 3"
    ]


def test_a_result_of_an_older_build_counts_failed_episodes_as_wrong_and_closes() -> None:
    scene = Scene()
    scene.answers[2] = replace(scene.answers[2], n_asked=4, failures=(Failure(),) * 2)
    fold = EvaluationFold("r", 2)
    answers = (scene.answers[number] for number in (2, 3))
    [counted_apart] = [result for one in answers if (result := fold.fold_group(one)) is not None]
    assert (counted_apart.played, counted_apart.failures) == (4, 2)
    scene.results[1] = counted_apart
    assert not scene.said()
    scene.results[1] = replace(counted_apart, played=-1, avg_at_k=0.375)
    assert not scene.said()
    scene.results[1] = replace(counted_apart, avg_at_k=0.375)
    assert scene.said()


def test_a_result_of_an_older_build_may_count_as_failed_in_what_the_policy_did_not_act_and_closes() -> None:
    scene = Scene()
    scene.answers[2] = replace(scene.answers[2], n_asked=4, failures=(Failure(),))
    fold = EvaluationFold("r", 2)
    answers = (scene.answers[number] for number in (2, 3))
    [whole] = [result for one in answers if (result := fold.fold_group(one)) is not None]
    assert (whole.samples, whole.failures) == (2, 1)
    scene.answers[3] = replace(scene.answers[3], n_asked=4)
    fold = EvaluationFold("r", 2)
    answers = (scene.answers[number] for number in (2, 3))
    [whole] = [result for one in answers if (result := fold.fold_group(one)) is not None]
    assert (whole.samples, whole.failures) == (4, 1)
    for failures, closes in ((0, False), (1, True), (2, True), (4, True), (5, False)):  # 2: it began before an update
        scene.results[1] = replace(whole, failures=failures)
        assert (not scene.said()) == closes


def test_a_result_is_the_mean_of_its_rewards_of_any_size() -> None:
    scene = Scene()
    scene.answers |= {number: answer(number, 9.0, -2.0) for number in (2, 3)}
    fold = EvaluationFold("r", 2)
    [whole] = [one for at in (2, 3) if (one := fold.fold_group(scene.answers[at])) is not None]
    for reward, is_right in ((3.5, True), (1.0, False)):
        scene.results[1] = replace(whole, avg_at_k=reward)
        assert scene.said() == [
            f"{NAME.format(1)} has a result that differs from its answers (answers -> result): avg_at_k 3.5 -> 1.0"
        ] * (not is_right)


def test_of_tiers_only_what_differs_is_named() -> None:
    easy, hard = TierResult("easy", 2, 4, 0.5), TierResult("hard", 2, 4, math.nan)
    one, other = (EvalResult(tiers=(easy, last)) for last in (hard, replace(hard, played=3, avg_at_k=0.25)))
    said = "played of tier hard 4 -> 3, avg_at_k of tier hard nan -> 0.25"
    assert _describe_differences(one, other, ("samples", "tiers")) == said
    assert _describe_differences(one, one, ("samples", "tiers")) == ""


def test_a_result_without_a_reward_closes() -> None:
    scene = Scene()
    for number in (2, 3):
        scene.answers[number] = replace(scene.answers[number], trajectories=(), n_asked=2, failures=(Failure(),) * 2)
    fold = EvaluationFold("r", 2)
    answers = (scene.answers[number] for number in (2, 3))
    [scene.results[1]] = [result for one in answers if (result := fold.fold_group(one)) is not None]
    assert not scene.said()
