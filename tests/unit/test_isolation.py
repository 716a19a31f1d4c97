"""The code of an environment runs in child processes: what its score says counts, and what it does ends nothing."""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S
from structlog.testing import capture_logs
from test_child_pool import Own, crash, hold_the_gil, sleep

from headrace.envs.contract import LateScore, Problem, Score
from headrace.envs.isolation import IsolatedEnvironment
from headrace.envs.judging import score_answer
from headrace.envs.registry import build_to_score
from headrace.infra.process.child_handle import ChildDied, Overdue
from headrace.infra.recipe.plug_in_sources import OtherSource

PROBLEM = Problem("t", "1", extra={"tries": []})
LATE = Score(0.0, {"late": 1.0})


class Judged:
    """Scores as the text says; keeps what it saw of a problem."""

    name = "judged"

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def score(self, problem: Problem, text: str) -> Score:
        self.seen[problem.task_id] = self.seen.get(problem.task_id, 0) + 1
        doing = {"sleep": partial(sleep, seconds=PATIENCE_S), "hold": hold_the_gil, "crash": crash}.get(text)
        if doing is not None:
            doing(Own(), None)
        return Score(os.getpid(), {"seen": self.seen[problem.task_id], "tries": len(problem.extra["tries"])})


def do(environment: Any, problem: Problem, name: str) -> str:
    problem.extra["tries"].append(name)
    return name


def test_what_a_tool_leaves_in_the_problem_and_an_environment_in_itself_is_there_for_the_score() -> None:
    async def play(isolated: IsolatedEnvironment) -> Score:
        with isolated.open_episode() as env:
            own = replace(PROBLEM, extra={"tries": []})
            for name in "ab":
                assert await env.run("do", do, own, (name,), PATIENCE_S) == name
            await env.score_in_child(own, "")
            return await env.score_in_child(own, "")

    async def play_several() -> list[Score]:
        isolated = IsolatedEnvironment(Judged())  # type: ignore[arg-type]  # it only scores
        return await asyncio.gather(*(play(isolated) for _ in range(3)))

    found = asyncio.run(play_several())
    assert {one.parts["tries"] for one in found} == {2}
    assert all(one.parts["seen"] >= 2 for one in found)
    assert PROBLEM.extra == {"tries": []}, "nothing comes back"


def test_each_problem_of_an_episode_keeps_what_its_own_tools_left(judged: IsolatedEnvironment) -> None:
    async def play() -> list[float]:
        with judged.open_episode() as env:
            both = [Problem(name, "1", extra={"tries": []}) for name in ("main", "sub")]
            for own in (*both, both[0]):
                await env.run("do", do, own, ("a",), PATIENCE_S)
            return [(await env.score_in_child(own, "")).parts["tries"] for own in both]

    assert asyncio.run(play()) == [2, 1]


@pytest.fixture(scope="module")
def judged() -> IsolatedEnvironment:
    return IsolatedEnvironment(Judged(), limit_s=1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "error"), [("sleep", Overdue), ("hold", Overdue), ("crash", ChildDied)])
def test_a_score_that_hangs_or_crashes_fails_by_name_unless_the_environment_has_a_score_for_that(
    judged: IsolatedEnvironment, monkeypatch: pytest.MonkeyPatch, text: str, error: type[Exception]
) -> None:
    says = {"crash": "the child process of judged.score was ended by signal 11"}
    with pytest.raises(error, match=says.get(text, r"judged did not score within 1 s \(rollout\.score_")) as raised:
        judged.score(PROBLEM, text)
    assert "test_child_pool.py" in getattr(raised.value, "at", "")
    monkeypatch.setattr(judged._environment, "late_score", lambda _: LateScore(0.5, LATE), raising=False)
    assert judged.score(PROBLEM, text) == LATE
    assert judged.score(PROBLEM, "fine").reward > 1


def test_an_expression_that_takes_for_ever_is_a_wrong_answer(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"problem": "p", "answer": "(a+)+$"}))
    settings = {"path": str(tmp_path / "a.jsonl"), "held_out": 0, "scorer": "regex"}
    build = partial(build_to_score, "dataset", 1, settings)
    isolated = IsolatedEnvironment(build(), build, limit_s=0.5)
    problem = isolated.problem("train", 0)
    assert [isolated.score(problem, text).reward for text in ("a" * 64 + "b", "a")] == [0, 1]


def test_a_judge_gets_ready_before_the_time_of_its_first_score_begins_and_is_an_error_if_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow:
        name = "slow"
        is_ready = False

        def prepare_scoring(self) -> None:
            time.sleep(1)
            self.is_ready = True

        def score(self, problem: Problem, text: str) -> Score:
            return Score(self.is_ready)

    isolated = IsolatedEnvironment(Slow(), limit_s=0.9)  # type: ignore[arg-type]  # it only scores
    assert isolated.score(PROBLEM, "").reward == 1
    (tmp_path / "a.jsonl").write_text(json.dumps({"problem": "p", "answer": "x"}))
    (tmp_path / "math_verify.py").write_text("raise ImportError('Unsupported ANTLR version')")
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = {"path": str(tmp_path / "a.jsonl"), "held_out": 0, "scorer": "math"}
    build = partial(build_to_score, "dataset", 1, settings)
    with pytest.raises(ImportError, match="Unsupported ANTLR version"):
        IsolatedEnvironment(build(), build).score(PROBLEM, "")


def test_the_event_loop_goes_on_while_scores_run_and_a_workflow_that_blocks_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow:
        name = "slow"

        def score(self, problem: Problem, text: str) -> Score:
            (tmp_path / text).touch()
            while len(list(tmp_path.iterdir())) < 5:  # four scores, and the event loop
                time.sleep(0.01)
            return Score(float(text))

    def count() -> int:
        return len(list(tmp_path.iterdir()))

    async def play() -> list[Score]:
        playing = [asyncio.create_task(score_answer(isolated, PROBLEM, text)) for text in "1234"]
        while count() < 4:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)
        (tmp_path / "loop").touch()
        return await asyncio.gather(*playing)

    isolated: Any = IsolatedEnvironment(Slow(), limit_s=PATIENCE_S)  # type: ignore[arg-type]  # it only scores
    assert [score.reward for score in asyncio.run(play())] == [1, 2, 3, 4]
    monkeypatch.setattr("headrace.envs.isolation.HELD_S", 0.0)
    with capture_logs() as logs:
        assert [isolated.score(PROBLEM, "1").reward for _ in range(2)] == [1, 1]
    assert [one["event"] for one in logs] == ["score.held_loop"]


def test_a_child_refuses_a_source_that_is_not_that_of_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_echo.py").write_text("Echo = object")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(OtherSource, match="plug-in own_echo"):
        build_to_score("own_echo:Echo", 1, {}, sources={"own_echo": "0" * 64})
