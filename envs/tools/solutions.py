"""Plays the worked solutions of an environment with tools, and makes worked examples of their turns.

`solve(problem)` of an environment returns what a perfect policy says, answer by answer. Calls in it are in the short
form, whatever the form of the policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from headrace.envs.contract import Environment, Problem, WorkedExample
from headrace.envs.isolation import IsolatedEnvironment, isolate
from headrace.envs.messages import Message, as_messages
from headrace.envs.tool_calls import InvalidToolCall, ToolCall
from headrace.envs.tools.forms import HERMES, build_observations, parse_short_calls, write_hermes_call
from headrace.envs.tools.functions import find_tool, read_tools
from headrace.envs.tools.outcomes import Limits, Outcome, answer_calls
from headrace.infra.own_frames import describe_with_location, locate_error
from headrace.schemas.ids import derive_seed


@runtime_checkable
class Solves(Protocol):
    """An environment that knows the answers of a perfect policy."""

    def solve(self, problem: Problem) -> Sequence[str]:
        """Return the answers, turn by turn: calls in the short form, and at last an answer without a call."""


@dataclass(frozen=True, slots=True)
class TurnPlayed:
    """One answer of a solution."""

    answer: str
    results: tuple[str, ...]
    """What its calls returned, as the policy reads it."""


@dataclass(frozen=True, slots=True)
class SolutionPlayed:
    """A solution, as it was played."""

    task_id: str
    turns: tuple[TurnPlayed, ...]
    reward: float
    fault: str
    """What is wrong with it; empty for a right one."""


class SolutionError(ValueError):
    """A solution that cannot be played; the message says why."""


async def play_solution(environment: Environment, problem: Problem, limits: Limits) -> SolutionPlayed:
    """Run the calls of a problem's solution, and score its last answer; whatever is wrong is in the result."""
    turns: list[TurnPlayed] = []
    reward, fault = 0.0, ""
    try:
        with isolate(environment) as env:
            answers = _take_answers(environment, problem)
            fault = await _play_turns(env, problem, answers, limits, turns)
            if not fault:
                reward = (await env.score_in_child(problem, answers[-1])).reward
                fault = "" if reward >= 1 else f"its last answer, {answers[-1]!r}, gets a reward of {reward:g}, not 1"
    except Exception as error:  # noqa: BLE001 - the environment's own code may raise anything
        fault = f"{type(error).__name__}: {describe_with_location(error)}"
    return SolutionPlayed(problem.task_id, tuple(turns), reward, fault)


async def _play_turns(
    env: IsolatedEnvironment, problem: Problem, answers: Sequence[str], limits: Limits, turns: list[TurnPlayed]
) -> str:
    """Run the calls of all answers; return what is wrong with one of them, if anything."""
    tools = read_tools(env)
    for turn, answer in enumerate(answers, 1):
        calls = parse_short_calls(answer, tools)
        outcomes = await answer_calls(calls, tools, env, problem, limits)
        turns.append(TurnPlayed(answer, tuple(one.text for one in outcomes)))
        if bad := next((one for one in outcomes if one.kind), None):
            return f"turn {turn}: {_describe(bad)}"
        if calls and turn == len(answers):
            return f"turn {turn}: the last answer has a call, so nobody reads its result"
        if not calls and turn < len(answers):
            return f"turn {turn}: an answer without a call ends the episode, but it is not the last one"
    return ""


def _take_answers(environment: Any, problem: Problem) -> list[str]:
    answers = environment.solve(problem)
    if isinstance(answers, str) or not isinstance(answers, Sequence) or not answers:
        raise SolutionError(f"`solve` must return a list of answers, got {answers!r:.60}")
    if wrong := [one for one in answers if not isinstance(one, str)]:
        raise SolutionError(f"`solve` must return answers that are texts, got {wrong[0]!r:.60}")
    return list(answers)


def _describe(outcome: Outcome) -> str:
    text = str(outcome.error) if outcome.kind == "none_outputs" else outcome.fault
    at = outcome.at or (locate_error(outcome.error) if outcome.error is not None else "")
    return f"{text} at {at}" if at else text


class SolutionExamples:
    """Worked examples for a warm start: the turns of solutions, each after the turns before it.

    Args:
        environment: Solves its problems.
        form: `hermes` or `short`.
        limits: Of the workflow.
        build: Builds the environment in a child process; see `IsolatedEnvironment`.
    """

    def __init__(
        self, environment: Environment, form: str, limits: Limits, build: Callable[[], Environment] | None = None
    ) -> None:
        self._environment, self._form, self._limits = environment, form, limits
        self._tools = read_tools(environment)
        self._isolated = IsolatedEnvironment(environment, build)

    def example(self, index: int) -> WorkedExample:
        """Return one turn of the solution of a problem of the split `warm_start`. Raises SolutionError."""
        problem = self._environment.problem("warm_start", index)
        answers = _take_answers(self._environment, problem)
        turn = derive_seed("turn", index) % len(answers)
        messages = [*as_messages(problem.prompt), *asyncio.run(self._play(answers[:turn], problem))]
        schemas = [tool.schema for tool in self._tools] if self._form == HERMES else ()
        return WorkedExample(messages, self._write(answers[turn]), problem.template_arguments, schemas)

    async def _play(self, answers: Sequence[str], problem: Problem) -> list[Message]:
        """Return the messages of turns."""
        messages: list[Message] = []
        with self._isolated.open_episode() as env:
            for answer in answers:
                calls = parse_short_calls(answer, self._tools)
                outcomes = await answer_calls(calls, self._tools, env, problem, self._limits)
                messages.append({"role": "assistant", "content": self._write(answer)})
                messages += build_observations(self._form, outcomes)
        return messages

    def _write(self, answer: str) -> str:
        """Return an answer in the form of the policy."""
        calls = parse_short_calls(answer, self._tools) if self._form == HERMES else []
        return "\n".join(map(self._write_call, calls)) if calls else answer

    def _write_call(self, call: ToolCall | InvalidToolCall) -> str:
        if isinstance(call, InvalidToolCall):
            raise SolutionError(f"a solution of environment {self._environment.name} has a wrong call: {call.error}")
        tool = find_tool(self._tools, call.name)
        return write_hermes_call(ToolCall(call.name, tool.read_arguments(call.arguments)))


def read_limits(settings: Mapping[str, Any]) -> Limits:
    """Return the limits in the settings of a workflow."""
    return Limits(**{name: settings[name] for name in ("call_limit_s", "observation_chars") if name in settings})
