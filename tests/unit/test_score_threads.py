"""Scores run in threads within a time limit, and the event loop never waits for one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import run
from sys import executable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from patience import PATIENCE_S
from test_episodes import TASK, Echo, FakeEngine, context, spec

from headrace.envs.contract import Problem, Score
from headrace.producers.rollout.play.episodes import WorkflowSpec, play_group
from headrace.producers.rollout.play.score_threads import MOST_STUCK, ScoreThreads, ScoreTimeLimit, _Call, _ScoreThread
from headrace.producers.rollout.play.scoring import LimitedScoring
from headrace.schemas.records import TrajectoryGroup


class Sleeper(Echo):
    """Sleeps as a compiler does."""

    def score(self, problem: Problem, text: str) -> Score:
        time.sleep(self.pause_s)
        return Score(float(text[0]))


def scored_by(environment: Echo, limit_s: float, threads: int) -> WorkflowSpec:
    return replace(spec(), environment=LimitedScoring(environment, limit_s, threads))


def play_with_beat(a_spec: WorkflowSpec, n_asked: int, on_beat: Callable[[], None] = lambda: None) -> TrajectoryGroup:
    """Play a group, with a call at each beat of the event loop."""

    async def play() -> TrajectoryGroup:
        async def beat() -> None:
            while True:
                await asyncio.sleep(0.001)
                on_beat()

        beating = asyncio.create_task(beat())
        task = replace(TASK, n_asked=n_asked)
        groups = await play_group(task, a_spec, context(FakeEngine()), asyncio.Event(), lambda *_: None, n_asked)
        beating.cancel()
        return groups["p"]

    return asyncio.run(play())


def test_the_event_loop_goes_on_while_scores_run_and_no_more_of_them_run_than_there_are_threads() -> None:
    class Held(Echo):
        """Scores end only after twenty beats of the event loop at which four or more ran."""

        running = most = beats = 0
        lock, may_end = threading.Lock(), threading.Event()

        def score(self, problem: Problem, text: str) -> Score:
            with self.lock:
                self.running += 1
                self.most = max(self.most, self.running)
            has_come = self.may_end.wait(PATIENCE_S)
            self.may_end.set()  # if it never came, the other scores need not wait for it too
            assert has_come, "the event loop stands still, or fewer than four scores run at once"
            with self.lock:
                self.running -= 1
            return Score(float(text[0]))

        def on_beat(self) -> None:
            self.beats += self.running >= 4
            if self.beats >= 20:
                self.may_end.set()

    environment = Held()
    group = play_with_beat(scored_by(environment, 2 * PATIENCE_S, threads=4), 12, environment.on_beat)
    assert (len(group.trajectories), group.failures) == (12, ())
    assert environment.most == 4


def test_the_results_are_those_of_one_score_after_the_other() -> None:
    at_once = play_with_beat(scored_by(Sleeper(0.01), PATIENCE_S, threads=8), n_asked=16)
    in_order = play_with_beat(scored_by(Sleeper(0.0), PATIENCE_S, threads=1), n_asked=16)
    assert [t.reward for t in at_once.trajectories] == [t.reward for t in in_order.trajectories]
    assert at_once.episode_ids == in_order.episode_ids


def test_a_score_over_its_limit_fails_its_episode_by_name_and_another_thread_takes_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit_s = PATIENCE_S / 2  # the episodes' own limit may not pass

    class StuckOnce(Echo):
        calls = 0
        stuck, over = threading.Event(), threading.Event()

        def score(self, problem: Problem, text: str) -> Score:
            self.calls += 1  # one thread scores at a time
            if self.calls == 1:
                self.stuck.set()
                self.over.wait(PATIENCE_S)
            return Score(1.0)

        def on_beat(self) -> None:
            """Put the event loop's clock on by the limit, once the first score is stuck: the others have all of it."""
            if self.stuck.is_set():
                self.stuck.clear()
                monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: time.monotonic() + limit_s)

    environment = StuckOnce()
    try:
        group = play_with_beat(scored_by(environment, limit_s, threads=1), 3, environment.on_beat)
    finally:
        environment.over.set()
    [failure] = group.failures
    assert (len(group.trajectories), failure.reason) == (2, "time_limit")
    assert failure.detail.startswith(f"environment echo did not score within {limit_s:g} s (rollout.score_limit_s, or ")


def test_python_that_computes_for_ever_is_interrupted_and_its_thread_ends() -> None:
    group = play_with_beat(scored_by(Echo(pause_s=600), 0.1, threads=1), n_asked=2)
    assert [failure.reason for failure in group.failures] == ["time_limit"] * 2
    end = time.monotonic() + PATIENCE_S
    while any(thread.name == "score" and thread.is_alive() for thread in threading.enumerate()):
        assert time.monotonic() < end, "the threads of scores that were interrupted never end"
        time.sleep(0.01)


def test_a_thread_whose_score_was_given_up_ends_though_the_event_loop_takes_its_answer_and_closes() -> None:
    threads = ScoreThreads("own", 1, PATIENCE_S)

    async def ask() -> threading.Thread:
        loop = asyncio.get_running_loop()
        call = _Call(lambda: None, loop.create_future(), _ScoreThread(), given_up=True)
        closing = SimpleNamespace(call_soon_threadsafe=lambda *_: None)  # takes the callback, and never calls it
        call.thread.calls.put((call.function, partial(threads._settle_soon, cast("Any", closing), call)))
        return call.thread

    thread = asyncio.run(ask())
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_what_a_score_raises_reaches_its_workflow_and_the_thread_goes_on() -> None:
    async def ask() -> list[object]:
        threads = ScoreThreads("own", 1, PATIENCE_S)

        def fail() -> None:
            raise KeyError("ground_truth")

        return [*await asyncio.gather(threads.run(fail), return_exceptions=True), await threads.run(lambda: 7)]

    error, answer = asyncio.run(ask())
    assert (repr(error), answer) == ("KeyError('ground_truth')", 7)


def test_with_too_many_scores_stuck_none_is_begun() -> None:
    async def ask() -> None:
        threads = ScoreThreads("own", 1, PATIENCE_S)
        threads.stuck = MOST_STUCK
        with pytest.raises(ScoreTimeLimit, match="64 score calls of environment own still run after their time limit"):
            await threads.run(lambda: 1)

    asyncio.run(ask())


HOLDS_ALL = """
import asyncio, re
from headrace.producers.rollout.play import score_threads

score_threads.GRACE_S = 0.3
async def ask():
    await score_threads.ScoreThreads("own", 1, 0.2).run(lambda: re.match("(a+)+$", "a" * 64 + "b"))
asyncio.run(ask())
"""


def test_a_score_that_stops_every_thread_ends_the_process_with_its_stack(tmp_path: Path) -> None:
    program = tmp_path / "holds_all.py"
    program.write_text(HOLDS_ALL)
    done = run([executable, str(program)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "holds_all.py" in done.stderr


@pytest.mark.parametrize(
    ("score", "says"),
    [
        (Score(float("nan")), "the reward in a score of environment own must be finite; got nan"),
        (Score(1.0, {"length": float("inf")}), "part 'length' in a score of environment own must be finite; got inf"),
    ],
)
def test_a_score_that_is_no_finite_number_names_its_environment(score: Score, says: str) -> None:
    class Own(Echo):
        name = "own"

        def score(self, problem: Problem, text: str) -> Score:
            return score

    with pytest.raises(ValueError, match=says):
        LimitedScoring(Own(), PATIENCE_S).score(Problem("t", "p"), "x")
