"""When a run ends because held-out reward does not rise any more, and which version was the best."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from headrace.ops.figures.best_version import BestVersion, find_best_version
from headrace.producers.feed.early_stop import EarlyStop
from headrace.schemas.records import EvalResult


def result(version: int, reward: float, workflow: str = "sums", played: int = 8) -> EvalResult:
    return EvalResult(policy="solver", workflow=workflow, version=version, avg_at_k=reward, played=played)


def watch(*workflows: str, after: int = 2) -> EarlyStop:
    return EarlyStop(frozenset((workflow, "solver") for workflow in workflows), after)


@pytest.mark.parametrize(
    ("rewards", "is_over"),
    [
        ([(0, 0.1), (20, 0.3), (40, 0.2)], False),
        ([(0, 0.1), (20, 0.3), (40, 0.2), (60, 0.3)], True),  # as good is not better
        ([(0, 0.1), (20, 0.3), (40, 0.2), (60, 0.4)], False),
        ([(0, 0.1), (40, 0.2), (60, 0.2), (20, 0.3)], True),  # an answer that comes late
        ([(0, 0.3), (20, 0.3), (20, 0.3)], False),  # one answer that comes twice
        ([(0, 0.3), (20, float("nan")), (40, float("nan"))], False),
        ([], False),
    ],
)
def test_a_run_is_over_after_so_many_evaluations_that_were_not_better(
    rewards: list[tuple[int, float]], is_over: bool
) -> None:
    found, never = watch("sums"), watch("sums", after=0)
    for version, reward in rewards:
        found.observe(result(version, reward))
        never.observe(result(version, reward))
        restored = watch("sums")
        restored.restore(json.loads(json.dumps(found.snapshot())))
        found = restored
    assert found.is_over() == is_over
    assert not never.is_over()


def test_all_workflows_must_have_stopped_rising_and_an_evaluation_that_nobody_played_says_nothing() -> None:
    found = watch("sums", "debate")
    for version, reward in ((0, 0.3), (20, 0.2), (40, 0.2)):
        found.observe(result(version, reward))
        found.observe(result(version, 0.0, workflow="debate", played=8 if version == 0 else 0))
        found.observe(result(version, 0.0, workflow="of another recipe"))
    assert not found.is_over()
    found.observe(result(60, 0.0, workflow="debate"))
    found.observe(result(80, 0.0, workflow="debate"))
    assert found.is_over()
    found.clear()
    assert not found.is_over(), "a run that goes on has as much time again"


def test_the_best_version_is_the_earliest_with_the_highest_mean_over_all_workflows() -> None:
    assert find_best_version([]) is None
    assert find_best_version([result(3, 0.0, played=0)]) is None
    assert find_best_version([result(0, 0.1), result(20, 0.4), result(40, 0.4)]) == BestVersion(20, 0.4)
    both = [result(20, 0.2, "debate"), result(20, 0.4), result(40, 0.9)]  # 40 has not been played in both
    assert find_best_version(both) == BestVersion(20, pytest.approx(0.3))
    fewer = [*both, result(60, 0.5), result(80, 0.6)]  # by then the recipe has one workflow
    assert find_best_version(fewer) == BestVersion(40, 0.9)


def test_a_policy_that_has_its_last_version_rises_no_more() -> None:
    found = EarlyStop(frozenset({("sums", "solver"), ("sums", "judge")}), 2)
    for version in range(4):
        found.observe(result(version, version / 10))
    assert not found.is_over({"solver"}), "the judge may"
    for version, reward in enumerate((0.5, 0.1, 0.1)):
        found.observe(replace(result(version, reward), policy="judge"))
    assert not found.is_over()
    assert found.is_over({"solver"})
    assert not EarlyStop(frozenset({("sums", "solver")}), 2).is_over({"solver"}), "that is the end by steps"
