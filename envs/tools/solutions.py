"""Plays the worked solutions of an environment, mostly with tools, and makes worked examples of their turns.

`solve(problem)` of an environment returns what a perfect policy says, answer by answer. Calls in it are in the short
form, whatever the form of the policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard, runtime_checkable

from headrace.envs.contract import Environment, Problem, WorkedExample
from headrace.envs.isolation import IsolatedEnvironment
from headrace.envs.messages import Message, as_messages
from headrace.envs.thoughts import read_answer
from headrace.envs.tool_calls import InvalidToolCall, ToolCall
from headrace.envs.tools.forms import HERMES, build_observations, parse_short_calls, write_hermes_call
from headrace.envs.tools.functions import Tool, find_tool, read_tools
from headrace.envs.tools.outcomes import Limits, Outcome, answer_call, build_outcome
from headrace.envs.tools.sub_agents import SPAWN, build_sub_problem, list_callable, share_extra
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
    agents: tuple[SolutionPlayed, ...] = ()
    """The solutions of the sub-agents that its calls started."""


@dataclass(frozen=True, slots=True)
class SolutionPlayed:
    """A solution, as it was played."""

    task_id: str
    turns: tuple[TurnPlayed, ...]
    reward: float
    fault: str
    """What is wrong with it; empty for a right one."""
    prompt: str = ""
    """The problem, as text."""
    workflow: str = ""
    """Name of the workflow in the recipe."""


class SolutionError(ValueError):
    """A solution that cannot be played; the message says why."""


class SolvedCalls:
    """Answers the calls of solutions. A call of `spawn` gets the last answer of its agent's solution.

    Args:
        environment: Has the tools, and solves its problems.
        limits: Of the workflow.
        with_agents: Whether the workflow has sub-agents.
        build: Builds the environment in a child process; see `IsolatedEnvironment`.
    """

    def __init__(
        self,
        environment: Environment,
        limits: Limits,
        *,
        with_agents: bool = False,
        build: Callable[[], Environment] | None = None,
    ) -> None:
        self.environment = environment
        self.isolated = (
            environment if isinstance(environment, IsolatedEnvironment) else IsolatedEnvironment(environment, build)
        )
        own = read_tools(environment) if hasattr(environment, "tools") else ()
        self.tools = list_callable(environment) if with_agents else own
        self._limits = limits

    async def answer(
        self,
        calls: Sequence[ToolCall | InvalidToolCall],
        env: IsolatedEnvironment,
        problem: Problem,
        agents: list[SolutionPlayed],
    ) -> list[Outcome]:
        """Return the outcomes of an answer's calls; add sub-agents' solutions to `agents`, or raise SolutionError."""
        return [await self._answer(call, env, problem, agents) for call in calls]

    def list_solutions(self, problem: Problem) -> Iterator[tuple[Problem, list[str]]]:
        """Yield a problem with its answers, and those of the sub-agents that these start. Raises SolutionError."""
        answers = take_answers(self.environment, problem)
        yield problem, answers
        for answer in answers:
            for call in parse_short_calls(answer, self.tools):
                if self._is_spawn(call):
                    yield from self.list_solutions(self._build_sub_problem(call, problem))

    def _is_spawn(self, call: ToolCall | InvalidToolCall) -> TypeGuard[ToolCall]:
        return SPAWN in self.tools and isinstance(call, ToolCall) and call.name == SPAWN.name

    def _build_sub_problem(self, call: ToolCall, problem: Problem) -> Problem:
        return build_sub_problem(self.environment, problem, SPAWN.read_arguments(call.arguments)["task"])

    async def _answer(
        self, call: ToolCall | InvalidToolCall, env: IsolatedEnvironment, problem: Problem, agents: list[SolutionPlayed]
    ) -> Outcome:
        if not self._is_spawn(call):
            return await answer_call(call, self.tools, env, problem, self._limits)
        played = await play_solution(self, sub := self._build_sub_problem(call, problem), env)
        agents.append(played)
        if played.fault:
            raise SolutionError(f"the sub-agent for {sub.text!r}: {played.fault}")
        return build_outcome(SPAWN.name, read_answer(played.turns[-1].answer).strip(), "", self._limits)


async def play_solution(
    solved: SolvedCalls, problem: Problem, episode: IsolatedEnvironment | None = None
) -> SolutionPlayed:
    """Run the calls of a problem's solution, and score its last answer; whatever is wrong is in the result.

    `episode` is given for a sub-agent: its environment, in which the agents before it left their state.
    """
    environment = solved.environment
    turns: list[TurnPlayed] = []
    reward, fault = 0.0, ""
    try:
        with (episode or solved.isolated).open_episode() as env:
            if episode is None:
                share_extra(env, problem)
            answers = take_answers(environment, problem)
            fault = await _play_turns(solved, env, problem, answers, turns)
            if not fault:
                reward = (await env.score_in_child(problem, answers[-1])).reward
                fault = "" if reward >= 1 else f"its last answer, {answers[-1]!r}, gets a reward of {reward:g}, not 1"
    except Exception as error:  # noqa: BLE001 - the environment's own code may raise anything
        fault = describe_with_location(error, with_type=True)
    return SolutionPlayed(problem.task_id, tuple(turns), reward, fault, problem.text)


async def _play_turns(
    solved: SolvedCalls, env: IsolatedEnvironment, problem: Problem, answers: Sequence[str], turns: list[TurnPlayed]
) -> str:
    """Run the calls of all answers; return what is wrong with one of them, if anything."""
    for turn, answer in enumerate(answers, 1):
        calls, agents = parse_short_calls(answer, solved.tools), list[SolutionPlayed]()
        outcomes = await solved.answer(calls, env, problem, agents)
        turns.append(TurnPlayed(answer, tuple(one.text for one in outcomes), tuple(agents)))
        if bad := next((one for one in outcomes if one.kind), None):
            return f"turn {turn}: {_describe(bad)}"
        if calls and turn == len(answers):
            return f"turn {turn}: the last answer has a call, so nobody reads its result"
        if not calls and turn < len(answers):
            return f"turn {turn}: an answer without a call ends the episode, but it is not the last one"
    return ""


def take_answers(environment: Any, problem: Problem) -> list[str]:
    """Return the answers of a problem's solution. Raises SolutionError if they are no list of texts."""
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
        solved: Answers the calls.
        form: `hermes` or `short`.
    """

    def __init__(self, solved: SolvedCalls, form: str) -> None:
        self._solved, self._form, self._tools = solved, form, solved.tools

    def example(self, index: int) -> WorkedExample:
        """Return one turn of the solution of a problem of the split `warm_start`. Raises SolutionError."""
        solutions = self._solved.list_solutions(self._solved.environment.problem("warm_start", index))
        turns = [(problem, answers, turn) for problem, answers in solutions for turn in range(len(answers))]
        problem, answers, turn = turns[derive_seed("turn", index) % len(turns)]
        messages = [*as_messages(problem.prompt), *asyncio.run(self._play(answers[:turn], problem))]
        schemas = [tool.schema for tool in self._tools] if self._form == HERMES else ()
        written = write_answer(answers[turn], self._form, self._tools)
        return WorkedExample(messages, written, problem.template_arguments, schemas)

    async def _play(self, answers: Sequence[str], problem: Problem) -> list[Message]:
        """Return the messages of turns."""
        messages: list[Message] = []
        with self._solved.isolated.open_episode() as env:
            share_extra(env, problem)
            for answer in answers:
                calls = parse_short_calls(answer, self._tools)
                outcomes = await self._solved.answer(calls, env, problem, [])
                if bad := next((one for one in outcomes if one.kind), None):
                    raise SolutionError(
                        f"the worked solution of {problem.task_id} is wrong: {_describe(bad)}. `headrace try` plays it"
                    )
                messages.append({"role": "assistant", "content": write_answer(answer, self._form, self._tools)})
                messages += build_observations(self._form, outcomes)
        return messages


def write_answer(answer: str, form: str, tools: Sequence[Tool]) -> str:
    """Return an answer of a solution in the form of the policy. Raises SolutionError for a wrong call."""
    calls = parse_short_calls(answer, tools) if form == HERMES else []
    return "\n".join(_write_call(call, tools) for call in calls) if calls else answer


def _write_call(call: ToolCall | InvalidToolCall, tools: Sequence[Tool]) -> str:
    if isinstance(call, InvalidToolCall):
        raise SolutionError(f"a worked solution has a wrong call: {call.error}")
    arguments = find_tool(tools, call.name).read_arguments(call.arguments)
    return write_hermes_call(ToolCall(call.name, arguments))


def _read_limits(settings: Mapping[str, Any]) -> Limits:
    """Return the limits in the settings of a workflow."""
    return Limits(**{name: settings[name] for name in ("call_limit_s", "observation_chars") if name in settings})


def open_solved_calls(
    environment: Environment, workflow: str, settings: Mapping[str, Any], build: Callable[[], Environment] | None = None
) -> SolvedCalls:
    """Return what answers the calls of an environment's solutions, as a workflow with its settings would."""
    return SolvedCalls(environment, _read_limits(settings), with_agents=workflow == SPAWN.name, build=build)


def can_solve(environment: object) -> bool:
    """Return whether an environment, isolated or not, has worked solutions."""
    return callable(getattr(environment, "solve", None))
