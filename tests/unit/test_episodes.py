"""One task played with a fake engine: whatever its episodes do, one group per policy says so."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pytest

from headrace.envs.contract import Actor, Environment, Episode, Problem, RoleTrajectory, Score, Split, Workflow
from headrace.envs.payload import PayloadError, problem_to_json
from headrace.envs.transcript import Transcript
from headrace.envs.workflows.single_turn import single_turn
from headrace.producers.engines.contract import EngineError, EngineStats, Generation, VersionGone
from headrace.producers.rollout.group_records import (
    build_outgoing,
    build_stamp,
    count_generated_tokens,
    encode_group,
)
from headrace.producers.rollout.play.episodes import RolloutContext, WorkflowSpec, play_group
from headrace.producers.rollout.play.running_episodes import EPISODE, MANY_TURNS, QUIET_S, RunningEpisodes
from headrace.schemas import codec, records
from headrace.schemas.records import Failure, Sampling, Task, TrajectoryGroup
from headrace.schemas.topics import Topics


@dataclass
class FakeEngine:
    """Says the seed's digits; `fail` is raised instead."""

    logprob_convention: Any = "tempered"
    kv_on_swap: Any = "recompute"
    fail: Exception | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)

    async def generate(self, policy: str, ids: Sequence[int], sampling: Sampling, **more: Any) -> Generation:
        self.calls.append({"policy": policy, "ids": list(ids), "sampling": sampling, **more})
        await asyncio.sleep(0)
        if self.fail is not None:
            raise self.fail
        made = np.array([more["seed"] % 10, 9], np.int32)
        version = 7 if more["version"] is None else more["version"]
        return Generation(made, np.array([-0.5, -0.25], np.float32), ((version, 1), (version + 1, 1)), "stop")

    def load(self, policy: str, version: int, weights: Mapping[str, Any]) -> None: ...
    def hold(self, policy: str, version: int, weights: Mapping[str, Any] | None = None) -> None: ...
    def release(self, policy: str, version: int) -> None: ...
    def versions(self) -> dict[str, int]:
        return {"p": 7}

    def stats(self) -> EngineStats:
        return EngineStats(0, 0, 0, 0, 0, 0.0)

    def close(self) -> None: ...


class Digits:
    hash = "abc"
    stop_ids: tuple[int, ...] = (9,)

    def encode(self, text: str) -> list[int]:
        return [int(character) for character in text]

    encode_plain = encode

    def decode(self, ids: Any, *, special_tokens: bool = False) -> str:
        return "".join(str(int(i)) for i in ids)


class Echo:
    """Rewards whatever ends with a 9; `pause_s` is how long it thinks."""

    name = "echo"

    def __init__(self, pause_s: float = 0.0) -> None:
        self.pause_s = pause_s

    def size(self, split: Split) -> int | None:
        return None

    def problem(self, split: Split, index: int) -> Problem:
        return Problem(str(index), str(index))

    def score(self, problem: Problem, text: str) -> Score:
        end = time.monotonic() + self.pause_s
        while time.monotonic() < end:
            pass
        return Score(float(text.endswith("9")), {"nine": 1.0})


TASK = Task(run_id="r", stream="w", number=4, n_asked=3, seed=5, payload=problem_to_json(Problem("t", "12")))


def context(engine: FakeEngine, policies: tuple[str, ...] = ("p",)) -> RolloutContext:
    return RolloutContext(engine, "fake", "fake 1", {policy: Digits() for policy in policies}, "w1", "", lambda _: 8)


def spec(
    workflow: Workflow = single_turn, roles: Mapping[str, str] | None = None, limit_s: float = 120.0
) -> WorkflowSpec:
    return WorkflowSpec(
        workflow, Echo(), roles or {"solver": "p"}, Sampling(max_tokens=4), Sampling(0.0), limit_s, 1 << 20
    )


def play(
    task: Task,
    a_spec: WorkflowSpec,
    a_context: RolloutContext,
    ending_after_s: float | None = None,
    at_once: int = 3,
) -> tuple[dict[str, TrajectoryGroup], list[tuple[Episode | Failure | None, int]]]:
    ends: list[tuple[Episode | Failure | None, int]] = []

    async def run() -> dict[str, TrajectoryGroup]:
        ending = asyncio.Event()
        if ending_after_s is not None:
            asyncio.get_running_loop().call_later(ending_after_s, ending.set)
        return await play_group(task, a_spec, a_context, ending, lambda *end: ends.append(end), at_once)

    return asyncio.run(run()), ends


async def hang(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
    await asyncio.Event().wait()
    return {}


def test_a_group_holds_every_sample_in_order_with_what_was_generated() -> None:
    engine = FakeEngine()
    groups, ends = play(TASK, spec(), context(engine))
    [group] = groups.values()
    assert group.episode_ids == tuple(t.id for t in group.trajectories) == ("w:4:0", "w:4:1", "w:4:2")
    assert [t.reward for t in group.trajectories] == [1.0] * 3
    assert (group.reason, group.failures, group.n_asked, group.head_version) == ("", (), 3, 8)
    assert (group.env, group.engine, group.engine_build, group.tokenizer_hash) == ("echo", "fake", "fake 1", "abc")
    stamp = build_stamp(group)
    assert (stamp.min_version, stamp.max_version, stamp.head_version, stamp.key) == (7, 8, 8, b"w:4")
    assert count_generated_tokens(group) == 6
    assert [tokens for _, tokens in ends] == [2, 2, 2]
    assert len({call["seed"] for call in engine.calls}) == 3
    assert all(call["sampling"].stop_ids == (9,) for call in engine.calls)
    again = FakeEngine()
    play(TASK, spec(), context(again))
    assert {call["seed"] for call in again.calls} == {call["seed"] for call in engine.calls}


def test_an_evaluation_runs_on_its_version_with_its_sampling() -> None:
    engine = FakeEngine()
    groups, _ = play(replace(TASK, purpose="eval", versions={"p": 3}), spec(), context(engine))
    assert {(call["version"], call["sampling"].temperature) for call in engine.calls} == {(3, 0.0)}
    assert groups["p"].asked_version == 3
    assert (
        build_outgoing(Topics("run"), *encode_group(groups["p"]), {"run.eval-groups.p": 3}).topic == "run.eval-groups.p"
    )


def test_an_episode_that_raises_is_a_failure_beside_those_that_went_well() -> None:
    async def moody(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
        episode = await single_turn(problem, env, actors)
        if len(seen) == 0:
            seen.append(1)
            raise RuntimeError("no\nluck")
        return episode

    seen: list[int] = []
    groups, ends = play(TASK, spec(moody), context(FakeEngine()))
    group = groups["p"]
    assert len(group.trajectories) == 2
    assert [(f.reason, f.detail) for f in group.failures] == [("error", "RuntimeError: no luck")]
    assert (group.failures[0].role, group.failures[0].turn) == ("solver", 1)
    assert group.failures[0].at.endswith(" in moody"), "the newest line that is nobody else's"
    failed = group.failures[0].sample
    assert f"w:4:{failed}" not in group.episode_ids
    assert [tokens for ended, tokens in ends if isinstance(ended, Failure)] == [2]


@pytest.mark.parametrize("kind", [SystemExit, asyncio.CancelledError, BaseException])
def test_what_would_end_the_worker_fails_its_episode_with_the_line(kind: type[BaseException]) -> None:
    async def ends(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
        await single_turn(problem, env, actors)
        raise kind(3)

    group = play(TASK, spec(ends), context(FakeEngine()))[0]["p"]
    assert [failure.reason for failure in group.failures] == ["error"] * 3
    for failure in group.failures:
        assert f" raised {kind.__name__}: 3: catch it there" in failure.detail
        assert failure.at.endswith(" in ends")


@pytest.mark.parametrize("waits", [False, True])
def test_an_episode_that_is_cancelled_from_inside_fails_alone(waits: bool) -> None:
    async def cancels_itself(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
        if len(begun) < 2:  # as a cancel scope that a library left open does
            begun.append(problem)
            cast("asyncio.Task[Any]", asyncio.current_task()).cancel("left open")
            await asyncio.sleep(5 if waits else 0)
        return await single_turn(problem, env, actors)

    begun: list[Problem] = []
    groups, ends = play(TASK, spec(cancels_itself), context(FakeEngine()))
    said = "RuntimeError: the workflow raised CancelledError: left open: catch it there"
    assert [(failure.reason, failure.detail) for failure in groups["p"].failures] == [("error", said)] * 2
    assert all(failure.at.endswith(" in cancels_itself") for failure in groups["p"].failures)
    assert (len(groups["p"].trajectories), len(ends)) == (1, 3)


def test_an_episode_that_ignores_its_cancellation_fails_at_its_time_limit_all_the_same() -> None:
    async def stubborn(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ignored.append(problem)
            await asyncio.Event().wait()  # until the loop itself ends
        return {}

    ignored: list[Problem] = []
    groups, ends = play(TASK, spec(stubborn, limit_s=0.05), context(FakeEngine()))
    assert [(f.reason, f.detail) for f in groups["p"].failures] == [
        ("time_limit", "the episode took longer than 0.05 s (rollout.episode_limit_s)")
    ] * 3
    assert all(failure.at.endswith(" in stubborn") for failure in groups["p"].failures)
    assert len(ends) == len(ignored) == 3


def test_a_version_that_goes_during_an_evaluation_is_said() -> None:
    groups, _ = play(TASK, spec(), context(FakeEngine(fail=VersionGone("gone"))))
    assert (groups["p"].reason, groups["p"].failures[0].reason) == ("version_gone", "version_gone")
    groups, _ = play(TASK, spec(), context(FakeEngine(fail=EngineError("too long"))))
    assert (groups["p"].reason, groups["p"].failures[0].reason) == ("failed", "error")


def test_the_end_of_the_run_ends_episodes_that_still_run() -> None:
    groups, ends = play(TASK, spec(hang), context(FakeEngine()), ending_after_s=0.02)
    assert (groups["p"].reason, [f.reason for f in groups["p"].failures]) == ("run_end", ["run_end"] * 3)
    assert len(ends) == 3


def test_no_more_episodes_of_a_task_run_at_once_than_it_has_slots() -> None:
    running: list[int] = []

    async def count(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
        running.append(len([task for task in asyncio.all_tasks() if task.get_name() == EPISODE]))
        await asyncio.sleep(0)
        return await single_turn(problem, env, actors)

    groups, ends = play(replace(TASK, n_asked=5), spec(count), context(FakeEngine()), at_once=2)
    assert (len(groups["p"].trajectories), len(ends), max(running)) == (5, 5, 2)
    groups, ends = play(TASK, spec(hang), context(FakeEngine()), ending_after_s=0.02, at_once=1)
    assert ([failure.reason for failure in groups["p"].failures], len(ends)) == (["run_end"] * 3, 3)


def test_a_cancelled_group_is_no_group_and_frees_its_slots() -> None:
    ends: list[tuple[Episode | Failure | None, int]] = []

    async def run() -> None:
        a_context, on_end = context(FakeEngine()), lambda *end: ends.append(end)
        playing = asyncio.create_task(play_group(TASK, spec(hang), a_context, asyncio.Event(), on_end, 3))
        await asyncio.sleep(0.02)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        await asyncio.sleep(0)

    asyncio.run(run())
    assert ends == [(None, 0)] * 3


def test_a_policy_that_never_acted_gets_a_group_that_says_so() -> None:
    async def only_solver(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
        return await single_turn(problem, env, {"solver": actors["solver"]})

    roles = {"solver": "p", "verifier": "q"}
    groups, _ = play(TASK, spec(only_solver, roles), context(FakeEngine(), ("p", "q")))
    assert {policy: group.reason for policy, group in groups.items()} == {"p": "", "q": "not_acted"}
    assert codec.decode(encode_group(groups["q"])[1], TrajectoryGroup).reason == "not_acted"


def test_roles_of_one_policy_share_a_trajectory_and_keep_their_own_rewards_and_parents() -> None:
    async def two_roles(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
        def said(role: str, parent: int) -> Any:
            transcript = Transcript(role, parent=parent)
            transcript.prompt([1])
            return transcript.sequence()

        return {
            "solver": RoleTrajectory(1.0, (said("solver", -1), said("solver", 0)), {"right": 1.0}),
            "critic": RoleTrajectory(0.25, (said("critic", -1), said("critic", 0))),
        }

    groups, _ = play(TASK, spec(two_roles, {"solver": "p", "critic": "p"}), context(FakeEngine()))
    [trajectory, *_] = groups["p"].trajectories
    assert (trajectory.reward, trajectory.reward_parts) == (1.0, {"right": 1.0})
    assert [sequence.role for sequence in trajectory.sequences] == ["solver", "solver", "critic", "critic"]
    assert [sequence.parent for sequence in trajectory.sequences] == [-1, 0, -1, 2]
    assert [sequence.reward for sequence in trajectory.sequences] == [None, None, 0.25, 0.25]
    assert build_stamp(groups["p"]).min_version == -1


@pytest.mark.parametrize("roles", [("solver",), ("solver", "critic")])
def test_a_parent_that_is_no_index_fails_its_episode_and_is_named(roles: tuple[str, ...]) -> None:
    async def odd(*_: object) -> Episode:
        sequence = records.Sequence(parent=cast("Any", None))
        return {role: RoleTrajectory(1.0, (sequence,)) for role in roles}

    groups, _ = play(TASK, spec(odd, dict.fromkeys(roles, "p")), context(FakeEngine()))
    said = "TypeError: Sequence.parent must be the index of a sequence of its role, or -1 for none; got NoneType None"
    assert [failure.detail for failure in groups["p"].failures] == [said] * 3
    made = RoleTrajectory(1.0, (records.Sequence(parent=cast("Any", np.int64(3))),)).sequences[0].parent
    assert (type(made), made) == (int, 3)


def test_what_an_episode_writes_into_its_problem_no_other_episode_sees() -> None:
    async def writes(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
        played = await single_turn(problem, env, actors)
        seen = cast("Any", problem.extra)["seen"]
        seen.append(1)
        return {"solver": replace(played["solver"], reward=len(seen))}

    payload = problem_to_json(Problem("t", "12", extra={"seen": []}))
    groups, _ = play(replace(TASK, payload=payload), spec(writes), context(FakeEngine()))
    assert [trajectory.reward for trajectory in groups["p"].trajectories] == [1.0] * 3


def test_a_payload_that_holds_no_problem_is_told_before_any_episode_begins() -> None:
    ends: list[object] = []
    with pytest.raises(PayloadError, match="payload must be a JSON object"):
        asyncio.run(
            play_group(
                replace(TASK, payload="[]"),
                spec(),
                context(FakeEngine()),
                asyncio.Event(),
                lambda *end: ends.append(end),
                3,
            )
        )
    assert ends == []


def test_what_is_no_episode_is_a_failure_that_names_it() -> None:
    for returned, said in (
        (None, "TypeError: a workflow must return a mapping of role to RoleTrajectory; got NoneType None"),
        ({"solver": Score(1)}, "TypeError: the workflow must return a RoleTrajectory for role solver; got Score"),
        ({"solver": RoleTrajectory(1, ())}, "ValueError: the workflow returned a trajectory without sequences for rol"),
        ({"solver": RoleTrajectory(np.inf, ())}, "ValueError: the rewards of role solver must be finite, got [inf]"),
        ({"solver": RoleTrajectory(1, (records.Sequence(reward=np.nan),))}, "ValueError: the rewards of role solver"),
        ({"solver": RoleTrajectory(1, (), {"x": np.nan})}, "ValueError: the parts of the reward of role solver must"),
        (
            {"stranger": RoleTrajectory(1.0, ())},
            "ValueError: the workflow returned the roles 'stranger', but its policies in the recipe have only the ",
        ),
    ):

        async def odd(*_: Any, returned: Any = returned) -> Episode:
            return cast("Episode", returned)

        groups, _ = play(TASK, spec(odd), context(FakeEngine()))
        assert [failure.reason for failure in groups["p"].failures] == ["error"] * 3
        assert groups["p"].failures[0].detail.startswith(said)
        assert re.fullmatch(r"test_episodes\.py:\d+", groups["p"].failures[0].at), "the workflow's own file"
    assert "stranger" in groups["p"].failures[0].detail


def test_a_group_that_the_schema_refuses_concludes_as_failed() -> None:
    async def wrong(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
        [sequence] = (await single_turn(problem, env, actors))["solver"].sequences
        return {"solver": RoleTrajectory(1.0, (replace(sequence, agent_id=3),))}  # type: ignore[arg-type]  # the point

    groups, _ = play(TASK, spec(wrong), context(FakeEngine()))
    sent, value = encode_group(groups["p"])
    assert (sent.reason, sent.trajectories) == ("failed", ())
    assert "agent_id" in sent.failures[2].detail
    assert codec.decode(value, TrajectoryGroup) == sent


def test_episodes_that_play_one_turn_after_the_other_are_told_with_turns_tokens_and_place() -> None:
    now_s, told = 0.0, list[str]()

    async def look() -> str:
        return running.describe_endless()

    async def loops(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
        nonlocal now_s
        for turn in range(MANY_TURNS):
            await actors["solver"].generate([1])
            now_s = float(turn >= MANY_TURNS - 2) * QUIET_S
            told.append(await asyncio.create_task(look()))
        return await single_turn(problem, env, actors)

    running = RunningEpisodes(lambda: now_s)
    play(replace(TASK, n_asked=1), spec(loops), replace(context(FakeEngine()), running=running))
    *_, before, last = told
    assert before == "", "so many turns are usual"
    expected = r"episodes play their 16th turn, with 32 tokens each so far, and none has ended in 20 s; most are at "
    assert re.fullmatch(expected + r"test_episodes\.py:\d+ in loops", last)
    assert running.describe_endless() == "", "it has ended"


def test_an_episode_whose_judge_cannot_be_reached_is_played_again_with_the_same_seed() -> None:
    class Judge(Echo):
        asked = 0

        def score(self, problem: Problem, text: str) -> Score:
            self.asked += 1
            if self.asked == 1:
                raise ConnectionRefusedError("the judge")
            return super().score(problem, text)

    engine = FakeEngine()
    groups, ends = play(replace(TASK, n_asked=1), replace(spec(), environment=Judge()), context(engine))
    assert (len(groups["p"].trajectories), groups["p"].failures) == (1, ())
    assert [tokens for _, tokens in ends] == [4], "those of the episode that came to nothing count too"
    first, again = engine.calls
    assert first["seed"] == again["seed"]
