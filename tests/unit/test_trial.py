"""A recipe that is tried: its own parts, one after the other, with no server."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from drawn_page import drawn
from patience import PATIENCE_S
from typer.testing import CliRunner

from headrace.app.cli.main import app
from headrace.app.views.trial_page import trial_page
from headrace.infra.errors import UsageError
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.ops.offline import watched_play
from headrace.ops.offline.given_answers import parse_answers
from headrace.ops.offline.trial import OwnCodeFailed, TrialRequest, Tried, try_recipe
from headrace.producers.rollout import watchdog
from headrace.producers.rollout.play.episodes import RolloutContext
from headrace.producers.rollout.threads import CountedThreads
from headrace.producers.rollout.watchdog import Watchdog
from headrace.trainers.advantages import grpo

OWN = """
from headrace.consumers.algorithms.contract import Keep
from headrace.envs.arithmetic import Arithmetic
from headrace.envs.contract import RoleTrajectory, Score
from headrace.envs.judging import score_answer
from headrace.envs.transcript import Transcript


class Quiz(Arithmetic):
    def __init__(self, seed, fault=""):
        super().__init__(seed, ("sum1",))
        self.fault = fault

    def problem(self, split, index):
        if self.fault == "problem" and index == 1:
            raise LookupError("no such question")
        return super().problem(split, index)

    def example(self, index):
        if self.fault == "example":
            raise LookupError("no example")
        return super().example(index)

    def score(self, problem, text):
        if self.fault == "score":
            judge(text)
        if self.fault == "away":
            raise ConnectionRefusedError("the judge is away")
        return Score(float(len(text)))


def judge(text):
    raise ArithmeticError(f"cannot judge {text!r}")


async def two_turns(problem, env, actors):
    [(role, actor)] = actors.items()
    if env.fault == "early":
        raise RuntimeError("not ready")
    transcript = Transcript(role)
    transcript.prompt(actor.encode(problem.prompt))
    transcript.add_generation(await actor.generate(transcript.ids, max_tokens=3))
    transcript.observe(actor.encode_plain(" again "))
    made = await actor.generate(transcript.ids, max_tokens=3)
    transcript.add_generation(made)
    score = await score_answer(env, problem, actor.decode(made.ids))
    return {role: RoleTrajectory(score.reward, (transcript.sequence(),), score.parts)}


class Picky:
    def process(self, candidate, clock):
        if candidate.group.number == 1:
            raise OSError("a rule that fails")
        return [Keep(candidate)]

    def snapshot(self):
        return {}

    def restore(self, state):
        pass


class Keyed(Picky):
    def __init__(self, fault=""):
        self.fault, self.seen = fault, {}

    def process(self, candidate, clock):
        self.seen[candidate.group.number] = clock
        return [Keep(candidate)]

    def snapshot(self):
        return {} if self.fault else {"seen": self.seen}

    def restore(self, state):
        self.seen = state["seen"]


def half(members, *, share=0.5):
    if len(members) > 4:
        raise ZeroDivisionError("too many")
    return [share for _ in members]
"""
RECIPE = """
extends = "arithmetic"
name = "quiz"
[workflows.sums]
env = { use = "quiz_of_a_trial:Quiz" }
workflow = "quiz_of_a_trial:two_turns"
[rollout]
group_size = 3
[curate]
chain = ["validate", { use = "quiz_of_a_trial:Picky" }]
"""
RIGHT = r"\boxed{9}"
ANSWERS = (RIGHT, "5", r"\boxed{5}", "a")


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "quiz_of_a_trial.py").write_text(OWN)
    (tmp_path / "quiz.toml").write_text(RECIPE)
    return str(tmp_path / "quiz.toml")


def tried(recipe: str, *sets: str, tasks: int = 1, answers: Sequence[str] = ()) -> Tried:
    return try_recipe(TrialRequest(load_recipe(recipe, sets), tasks, None, answers))


def test_the_demo_is_tried_without_its_warm_start_and_says_that_nothing_is_learnt_of_equal_rewards() -> None:
    words = ["try", "arithmetic", "--tasks", "2", "--set", "rollout.group_size=3", "--json"]
    done = CliRunner().invoke(app, words)

    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    solver = found["policies"]["solver"]
    assert (found["episodes"], found["failures"], solver["warm_start"]) == (6, [], True)
    assert [(one["verdict"], one["reason"]) for one in solver["groups"]] == [("dropped", "zero_variance")] * 2
    tokens = solver["groups"][0]["group"]["trajectories"][0]["sequences"][0]["each"]
    assert [one["logprob"] is None for one in tokens] == [one["kind"] == "prompt" for one in tokens]
    assert "".join(one["text"] for one in tokens).startswith("lp=5+4?")
    step = solver["step"]
    assert (step["groups"], step["chain_kept"], step["has_advantages"], step["grad_norm"]) == (2, 0, False, 0)
    generated = [s["tokens"] for g in solver["groups"] for t in g["group"]["trajectories"] for s in t["sequences"]]
    assert step["tokens"] == sum(generated)


def test_a_warm_start_that_a_run_would_refuse_is_a_doubt_unless_answers_are_given(own: str) -> None:
    sets = ('workflows.sums.env.fault="example"', "rollout.group_size=2")
    [doubt] = tried(own, *sets).doubts
    assert doubt.startswith("`headrace up` refuses this recipe: policies.solver.warm_start needs worked examples")
    assert tried(own, *sets, answers=("5", "6")).doubts == ()


def test_a_policy_that_is_told_what_to_say_learns_from_it_as_if_it_had_said_so() -> None:
    found = tried("arithmetic", "rollout.group_size=4", answers=ANSWERS)

    [group] = found.policies["solver"].groups
    step = found.policies["solver"].step
    members = group.group.trajectories
    assert group.verdict == "kept"
    assert [member.reward for member in members] == [1, 0, 0, 0]
    advantages = grpo([1.0, 0.0, 0.0, 0.0])
    assert [member.sequences[0].advantage for member in members] == pytest.approx(advantages.tolist())
    lengths = np.array([member.sequences[0].tokens for member in members])
    assert lengths.tolist() == [len(answer) + 1 for answer in ANSWERS], "each with the token that stops"
    assert step is not None
    assert step.metrics["ratio_mean"] == pytest.approx(1, abs=1e-6), "the trainer finds the very log-probabilities"
    assert step.loss == pytest.approx(-(advantages * lengths).sum() / lengths.sum(), abs=1e-5)
    assert step.grad_norm is not None
    assert step.grad_norm > 1
    told = drawn(trial_page(found), 200)
    assert "its answers are the --answer texts" in told
    assert "one optimizer step over 1 group: 24 tokens are trained on" in told


def test_an_error_in_an_episode_is_shown_from_the_users_first_line_on_with_task_role_and_turn(own: str) -> None:
    found = tried(own, "workflows.sums.env.fault=score")

    assert len(found.failures) == 3
    first = found.failures[0]
    assert (first.episode, first.task_id) == ("sums:0:0", "sum1:lp=5+4?")
    assert (first.failure.role, first.failure.turn) == ("solver", 2)
    lines = first.failure.traceback.splitlines()
    assert lines[1].endswith("in two_turns"), "not in ours, which called it"
    assert "quiz_of_a_trial.py" in lines[1]
    assert any(line.endswith("in judge") for line in lines)
    assert lines[-1].startswith("ArithmeticError: cannot judge ")
    solver = found.policies["solver"]
    assert (solver.step, solver.no_step) == (None, "no episode gave a trajectory")
    told = drawn(trial_page(found), 200)
    assert "sums:0:0  task sum1:lp=5+4?, ArithmeticError: cannot judge " in told
    assert "in judge (solver, turn 2)\nand 2 more with this error: sums:0:1, sums:0:2\nTraceback" in told
    assert told.count("Traceback") == 1, "the same error once"


def test_every_turn_is_shown_and_a_group_that_the_chain_fails_over_is_dead(own: str) -> None:
    found = tried(own, tasks=2)

    kept, dead = found.policies["solver"].groups
    assert (kept.verdict, dead.verdict) == ("kept", "dead")
    assert "OSError: a rule that fails" in dead.reason
    assert (found.failures, found.is_sound) == ((), False)
    [sequence] = kept.group.trajectories[0].sequences
    assert [(span.kind, span.turn) for span in sequence.spans] == [
        ("prompt", 0),
        ("generated", 0),
        ("observation", 1),
        ("generated", 1),
    ]
    step = found.policies["solver"].step
    assert step is not None
    assert (step.groups, step.chain_kept) == (1, 1)
    assert step.tokens == sum(s.tokens for t in kept.group.trajectories for s in t.sequences)


def test_a_data_algorithm_that_could_not_go_on_after_a_restart_is_found(own: str) -> None:
    with pytest.raises(
        UsageError, match=r"Keyed would not get its state back after a restart: .* keys that are not strings, such as 0"
    ):
        tried(own, 'curate.chain=["quiz_of_a_trial:Keyed"]')
    with pytest.raises(OwnCodeFailed, match=r"(?s)'seen'.*in restore.*KeyError"):
        tried(own, 'curate.chain=[{ use = "quiz_of_a_trial:Keyed", fault = "no state" }]')


def test_the_inner_loop_on_the_page_prints_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
    [code, _], [_, recipe] = (
        re.findall(rf"^```{of}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[:2] for of in ("python", "toml")
    )
    [shown] = re.findall(r"^```\n\$ headrace (.*?)^```", text, re.DOTALL | re.MULTILINE)
    (tmp_path / "echo.py").write_text(code)
    (tmp_path / "echo.toml").write_text(recipe)
    monkeypatch.chdir(tmp_path)

    command, *page_lines = shown.splitlines()
    done = CliRunner().invoke(app, shlex.split(command))

    assert done.exit_code == 0, done.output
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert re.sub(r"in [\d.]+ s:", "in 2.3 s:", lines[0]) == page_lines[0]
    assert _rounded(lines[1:]) == _rounded(page_lines[1:])


def _rounded(lines: Sequence[str]) -> list[str]:
    """Return lines whose numbers are as exact as another machine's arithmetic allows."""
    return [re.sub(r"(\d\.\d)\d+", r"\1", line) for line in lines]


def test_each_policy_of_a_workflow_is_tried_with_a_step_of_its_own() -> None:
    answers = (f"solver={RIGHT}", "solver=5", "verifier=approve")

    found = tried("arithmetic-verifier", "rollout.group_size=2", answers=answers).policies

    rewards = {name: [one.reward for one in policy.groups[0].group.trajectories] for name, policy in found.items()}
    assert rewards == {"solver": [1, 0], "verifier": [1, 0]}
    assert [policy.step is not None and policy.step.chain_kept for policy in found.values()] == [1, 1]


def test_answers_are_a_policys_own_where_there_are_several() -> None:
    assert parse_answers(["solver"], ["x=1", "solver=x=2"]) == {"solver": ["x=1", "x=2"]}
    assert parse_answers(["solver", "judge"], ["judge=no", "solver="]) == {"judge": ["no"], "solver": [""]}
    with pytest.raises(UsageError, match="write POLICY=TEXT; the policies are solver, judge"):
        parse_answers(["solver", "judge"], ["no"])
    with pytest.raises(UsageError, match="cannot encode it"):
        tried("arithmetic", answers=["Ω"])


def test_a_call_that_blocks_a_trial_is_told_by_its_line_and_ended_by_one_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said, heard, ended = list[str](), threading.Event(), []

    def say(words: str) -> None:
        said.append(words)
        heard.set()

    async def till(*_: object) -> None:
        assert heard.wait(PATIENCE_S)
        signal.raise_signal(signal.SIGINT)
        ended.append("the call returned")

    for module in (watchdog, watched_play):
        monkeypatch.setattr(module, "TOLD_S", 0.02)
    monkeypatch.setattr(watched_play, "Watchdog", partial(Watchdog, turn_s=0.01))
    monkeypatch.setattr(watched_play, "play_all", till)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        watched_play.play_watched([], cast("RolloutContext", None), say)
    assert re.match(r"the trial is blocked for 0 s at \S*test_trial\.py:\d+ in till: ", said[0])
    assert ended == []
    assert signal.getsignal(signal.SIGINT) is before


def test_a_shadow_is_named_as_one_that_was_not_tried() -> None:
    found = tried("arithmetic-shadow", "rollout.group_size=2")
    assert found.shadows == ("solver.unfiltered",)
    assert "shadow solver.unfiltered was not tried" in drawn(trial_page(found))
    assert "maybe: the tools are hidden" in drawn(trial_page(replace(found, doubts=("the tools are hidden",))))


def test_a_trial_ends_although_a_call_of_an_episode_never_does(monkeypatch: pytest.MonkeyPatch) -> None:
    release, codes = threading.Event(), list[int]()
    monkeypatch.setattr(watched_play.os, "_exit", codes.append)

    async def play() -> str:
        asyncio.get_running_loop().run_in_executor(None, release.wait)
        return "played"

    threads = CountedThreads("episode")
    monkeypatch.setattr(watched_play, "_played_in", [threads])
    assert watched_play._run(play(), threads) == "played", "it does not wait for the call"
    watched_play.exit_if_busy(1)
    release.set()
    threads.shutdown()
    watched_play.exit_if_busy(0)
    assert codes == [1]
