from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_ledger import MadeLedger

from headrace.app.views.evaluation_words import describe_evaluation, group_by_workflow
from headrace.consumers.evaluate.evaluation import EvaluationFold
from headrace.ops.episode_errors import list_errors
from headrace.ops.figures.reward_figures import Rewards
from headrace.ops.figures.summary import find_eval_ends
from headrace.ops.plain_json import plain
from headrace.schemas import codec
from headrace.schemas.records import EvalResult, Failure, Sequence, Span, TierResult, Trajectory, TrajectoryGroup


def group(number: int, *rewards: float, version: int = 3, n_asked: int = 0, policy: str = "solver") -> TrajectoryGroup:
    spans = (Span("prompt", 5), Span("generated", 10), Span("observation", 3), Span("generated", 2))
    return TrajectoryGroup(
        stream="eval.sums",
        number=number,
        policy=policy,
        asked_version=version,
        n_asked=n_asked or len(rewards),
        failures=(Failure(reason="late"),) * max(n_asked - len(rewards), 0),
        trajectories=tuple(
            Trajectory(reward=reward, sequences=(Sequence(ids=np.zeros(20, np.int32), spans=spans),))
            for reward in rewards
        ),
    )


def fold_all(fold: EvaluationFold, groups: list[TrajectoryGroup]) -> list[EvalResult]:
    return [result for one in groups if (result := fold.fold_group(one)) is not None]


def test_a_result_comes_when_all_problems_have_concluded() -> None:
    fold = EvaluationFold("r", 2)
    assert fold.fold_group(group(0, 1, 1, 0, 0, 0, 0, 0, 0)) is None
    result = fold.fold_group(group(1, *[0.0] * 8))
    assert result is not None
    assert (result.run_id, result.policy, result.workflow, result.version) == ("r", "solver", "sums", 3)
    assert (result.problems, result.asked, result.samples, result.failures) == (2, 2, 8, 0)
    assert result.avg_at_k == pytest.approx(0.125)
    # 8 samples, 2 right: pass@1 0.25 and pass@4 0.78571 (arXiv 2107.03374); the other problem gives 0
    assert result.pass_at_k == pytest.approx({"1": 0.125, "2": 0.2321428, "4": 0.392857, "8": 0.5})
    assert result.mean_length == 12


def test_failed_episodes_are_counted_apart_and_are_no_wrong_answers() -> None:
    fold = EvaluationFold("r", 3)
    fold.fold_group(group(0, n_asked=4))
    fold.fold_group(group(1, 1.0, n_asked=4))
    result = fold.fold_group(group(2, 1.0, 0.0, n_asked=4))
    assert result is not None
    assert (result.avg_at_k, result.played, result.failures, result.samples) == (0.75, 3, 9, 4)
    assert result.pass_at_k == {"1": 0.75, "2": 1.0}, "of two samples only one problem has them"


def test_episodes_in_which_a_policy_did_not_act_neither_played_nor_failed() -> None:
    """So the page counts as failed only what somebody should look at."""
    fold = EvaluationFold("r", 3)
    acted_once = replace(group(0, 1.0, n_asked=4), failures=(Failure(reason="error"),))
    never_acted = replace(group(1, n_asked=4), failures=(), reason="not_acted")
    [result] = fold_all(fold, [acted_once, never_acted, replace(group(2, 0.0, n_asked=2), failures=(Failure(),) * 9)])
    assert (result.avg_at_k, result.played, result.failures) == (0.5, 2, 2), "no more than had no trajectory"
    [result] = fold_all(EvaluationFold("r", 1), [replace(acted_once, failures=())])
    assert describe_evaluation(result) == "1.00 at version 3"


def test_the_error_of_a_held_out_reward_is_by_how_its_problems_differ() -> None:
    fold = EvaluationFold("r", 3)
    [result] = fold_all(fold, [group(0, 1, 1, 0, 0), group(1, 0.0, 0.0), group(2, n_asked=2)])
    assert result.standard_error == pytest.approx(0.25)  # means 0.5 and 0: deviation sqrt(0.125) over sqrt(2)
    assert describe_evaluation(result) == "0.25 ± 0.49 at version 3 (2 of 6 episodes failed)"
    assert describe_evaluation(result, has_interval=False) == "0.25 at version 3 (2 of 6 episodes failed)"
    for one in (EvaluationFold("r", 1).fold_group(group(0, 1.0, 0.0)), EvalResult(avg_at_k=0.5)):
        assert one is not None
        assert one.standard_error == -1
        assert "±" not in describe_evaluation(one)
    huge = fold_all(EvaluationFold("r", 2), [group(0, 1e200), group(1, -1e200)])
    assert [one.standard_error for one in huge] == [-1]


def test_results_are_by_workflow_where_there_are_several() -> None:
    easy, hard, later = (EvalResult(workflow=name, version=v) for name, v in (("easy", 0), ("hard", 0), ("easy", 20)))
    assert group_by_workflow([later, hard, easy]) == {"easy": [easy, later], "hard": [hard]}
    assert group_by_workflow([later, easy]) == {"": [easy, later]}
    assert group_by_workflow([]) == {}


def test_a_result_names_the_errors_of_its_episodes_also_after_a_restart() -> None:
    rare, often = (
        Failure(reason="error", detail=f"{name}Error: 7", at="own.py:5 in play") for name in ("Key", "Value")
    )
    late = Failure(reason="late")
    groups = [group(0, 1.0, n_asked=4), group(1, n_asked=3), group(2, n_asked=2)]
    failures = [(rare, often, late), (often, often, late), (replace(often, detail="ValueError: 8"), late)]
    groups = [replace(one, failures=some) for one, some in zip(groups, failures, strict=True)]
    first, second = EvaluationFold("r", 3), EvaluationFold("r", 3)
    assert fold_all(first, [groups[0], groups[0], groups[1]]) == []
    second.restore(json.loads(json.dumps(first.snapshot())))
    [result] = fold_all(second, groups[1:])
    assert [(one.detail, one.episodes) for one in result.errors] == [("ValueError: 7", 4), ("KeyError: 7", 1)]
    assert codec.decode(codec.encode(result), EvalResult) == result
    seen = MadeLedger()
    for version in (20, 40):
        seen.say(replace(result, version=version))
    assert [one.sentence for one in list_errors(seen)] == [
        "8 held-out episodes of sums failed: ValueError: 7 at own.py:5 in play; first at version 20",
        "2 held-out episodes of sums failed: KeyError: 7 at own.py:5 in play; first at version 20",
    ]


def test_an_evaluation_of_which_every_episode_failed_has_no_reward() -> None:
    result = EvaluationFold("r", 1).fold_group(group(0, n_asked=4))
    assert result is not None
    assert (result.has_reward, result.played, result.failures, result.pass_at_k) == (False, 0, 4, {})
    assert math.isnan(result.avg_at_k)
    assert not codec.decode(codec.encode(result), EvalResult).has_reward
    assert plain(result)["avg_at_k"] is None
    assert describe_evaluation(result) == "no reward at version 3 (4 of 4 episodes failed)"
    assert find_eval_ends([result]) == (None, None)
    assert find_eval_ends([result, EvalResult(version=20, avg_at_k=0.5, played=4)]) == (None, 0.5)
    ledger = MadeLedger()
    ledger.say(result)
    rewards = Rewards(ledger, ["solver"])
    assert ([one.played for one in rewards.evals], rewards.tokens) == ([0], 0)


def test_each_of_a_few_tiers_has_a_result_of_its_own() -> None:
    answers = [("hard", 0.0, 1.0), ("easy", 1.0, 1.0), ("", 1.0, 0.0), ("hard",)]
    groups = [replace(group(at, *rewards, n_asked=2), tier=tier) for at, (tier, *rewards) in enumerate(answers)]
    [result] = fold_all(EvaluationFold("r", 4), groups)
    assert result.tiers == (TierResult("easy", 1, 2, 1.0), TierResult("hard", 2, 2, 0.5))
    assert codec.decode(codec.encode(result), EvalResult) == result
    assert describe_evaluation(result).endswith("at version 3 (easy 1.00, hard 0.50) (2 of 8 episodes failed)")
    many = [replace(one, tier=f"level {one.number}") for one in (group(at, 1.0) for at in range(17))]
    assert fold_all(EvaluationFold("r", 17), many)[0].tiers == ()


@pytest.mark.parametrize("rewards", [(1e308, 1e308), (1e308, -1e308, 1e308, 1e308), (math.inf, -math.inf), (1e301,)])
def test_rewards_without_a_mean_that_can_be_reckoned_with_end_no_evaluation(rewards: tuple[float, ...]) -> None:
    result = EvaluationFold("r", 1).fold_group(group(0, *rewards))
    assert result is not None
    assert math.isnan(result.avg_at_k)
    assert math.isnan(codec.decode(codec.encode(result), EvalResult).avg_at_k)


def test_one_version_gives_one_result() -> None:
    fold = EvaluationFold("r", 1)
    assert fold.fold_group(group(0, 1)) is not None
    assert fold.fold_group(group(0, 1)) is None
    assert fold.fold_group(group(7, 1)) is None
    assert fold.fold_group(group(1, 1, version=4)) is not None
    assert fold.fold_group(group(1, 1, policy="judge")) is not None


def test_each_problem_counts_once_where_two_evaluations_ask_it_of_one_version() -> None:
    fold = EvaluationFold("r", 4)
    rewards = {0: 1.0, 4: 1.0, 1: 0.0, 5: 0.0, 2: 0.0}
    assert not fold_all(fold, [group(number, reward) for number, reward in rewards.items()])
    result = fold.fold_group(group(3, 0.0))
    assert result is not None
    assert (result.problems, result.asked, result.avg_at_k) == (4, 4, 0.25)
    [mixed] = fold_all(EvaluationFold("r", 4), [group(number, float(number < 4)) for number in (4, 0, 5, 2, 7)])
    assert (mixed.problems, mixed.avg_at_k) == (4, 0.5), "no evaluation is whole: the first one that asked it"


def test_an_evaluation_that_is_whole_makes_the_result_and_no_answer_of_another_one() -> None:
    # after four numbers for other problems: 4 to 6 are one evaluation, and 7 to 9 the next
    [result] = fold_all(EvaluationFold("r", 3), [group(number, float(number > 6)) for number in (4, 7, 8, 9)])
    assert (result.problems, result.avg_at_k) == (3, 1.0)


def test_an_open_evaluation_concludes_with_as_many_problems_as_it_was_asked_for() -> None:
    for before, after in ((2, 3), (3, 2)):
        first, later = EvaluationFold("r", before), EvaluationFold("r", after, [before])
        first.fold_group(group(0, 1.0))
        later.restore(json.loads(json.dumps(first.snapshot())))
        groups = [replace(group(number, 1.0), revision=1) for number in range(1, before)]  # sent again
        groups += [group(number, 1.0, version=4) for number in range(before)]  # of which it had none
        groups += [replace(group(number, 1.0, version=9), revision=1) for number in range(before, before + after)]
        found = [(one.version, one.problems, one.asked) for one in fold_all(later, groups)]
        assert found == [(3, before, before), (4, before, before), (9, after, after)]


def test_a_task_that_a_later_revision_sends_again_leaves_its_evaluation_as_large_as_it_was() -> None:
    fold = EvaluationFold("r", 3, [2])
    assert fold.fold_group(replace(group(1, 1.0), revision=1)) is None
    [result] = fold_all(fold, [group(0, 1.0)])
    assert result.asked == 2


def test_a_snapshot_that_does_not_say_how_many_problems_were_asked_goes_by_the_recipe() -> None:
    first, later = EvaluationFold("r", 2), EvaluationFold("r", 2)
    first.fold_group(group(0, 1.0))
    state = first.snapshot()
    later.restore({"open": state["open"], "done": state["done"]})  # as builds before wrote it
    result = later.fold_group(group(1, 1.0))
    assert result is not None
    assert result.asked == 2


@given(st.lists(st.lists(st.sampled_from([0.0, 0.4, 1.0]), min_size=4, max_size=4), min_size=4, max_size=4), st.data())
def test_order_repetition_and_restarts_change_nothing(rewards: list[list[float]], data: st.DataObject) -> None:
    groups = [group(n, *values, version=v) for v in (0, 20) for n, values in enumerate(rewards)]
    expected = {r.version: r for r in fold_all(EvaluationFold("r", 4), groups)}
    shuffled = data.draw(st.permutations(groups + groups[:3]))
    cut = data.draw(st.integers(0, len(shuffled)))
    first = EvaluationFold("r", 4)
    results = fold_all(first, shuffled[:cut])
    second = EvaluationFold("r", 4)
    second.restore(json.loads(json.dumps(first.snapshot())))
    results += fold_all(second, shuffled[cut:])
    assert sorted(r.version for r in results) == [0, 20]
    for result in results:
        assert result.avg_at_k == pytest.approx(expected[result.version].avg_at_k)
        assert result.pass_at_k == pytest.approx(expected[result.version].pass_at_k)
