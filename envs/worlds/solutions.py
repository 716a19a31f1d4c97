"""Plays the worked solutions of worlds, and makes worked examples of their turns for a warm start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.envs.contract import Environment, Problem, WorkedExample
from headrace.envs.isolation import IsolatedEnvironment
from headrace.envs.messages import Message, Prompt, as_messages
from headrace.envs.tools.forms import HERMES, SHORT, parse_short_calls
from headrace.envs.tools.functions import Tool
from headrace.envs.tools.outcomes import Limits, build_outcome
from headrace.envs.tools.solutions import SolutionError, SolutionPlayed, TurnPlayed, take_answers, write_answer
from headrace.envs.worlds.actions import (
    MAX_CALLS,
    MAX_TURNS,
    OBSERVATION_CHARS,
    STEP_LIMIT_S,
    Carried,
    build_messages,
    build_prompt,
    carry_out,
    list_actions,
    read_text,
)
from headrace.envs.worlds.opened import open_world
from headrace.infra.own_frames import describe_with_location
from headrace.schemas.ids import derive_seed

NEARLY = 1 - 1e-6
"""Least reward of a right solution: the sum of rewards of many actions is rounded."""


@dataclass(frozen=True, slots=True)
class _Played:
    """Answers, as they were played."""

    prompt: Prompt
    known: Sequence[Tool]
    carried: Sequence[Carried]
    """What became of each answer; the last one perhaps of a wrong answer."""
    fault: str


class WorldSolutions:
    """The solutions of an environment with worlds: `solve(problem)` gives the answers of a perfect policy.

    Args:
        environment: Has worlds, and solves its problems.
        settings: Of the workflow `world`.
        form: Of actions with schemas, in examples: `hermes` or `short`.
        build: Builds the environment in a child process; see `IsolatedEnvironment`.
    """

    def __init__(
        self,
        environment: Environment,
        settings: Mapping[str, Any],
        form: str = SHORT,
        build: Callable[[], Environment] | None = None,
    ) -> None:
        self._environment, self._form, self._most = environment, form, settings.get("max_turns", MAX_TURNS)
        given = {"step_limit_s": STEP_LIMIT_S, "observation_chars": OBSERVATION_CHARS, "max_calls": MAX_CALLS}
        self._limits = Limits(*(settings.get(name, default) for name, default in given.items()))
        self._isolated = (
            environment if isinstance(environment, IsolatedEnvironment) else IsolatedEnvironment(environment, build)
        )

    async def play(self, problem: Problem) -> SolutionPlayed:
        """Play a problem's solution; whatever is wrong is in the result."""
        turns: list[TurnPlayed] = []
        reward, fault = 0.0, ""
        try:
            answers = take_answers(self._environment, problem)
            played = await self._play(problem, answers)
            for answer, carried in zip(answers, played.carried, strict=False):
                turns.append(TurnPlayed(answer, tuple(one.text for one in carried.outcomes)))
                reward += carried.reward or 0.0
            fault = played.fault
            if not fault and len(answers) > self._most:
                fault = f"it has {len(answers)} answers, more than max_turns allows ({self._most})"
            if not fault and reward < NEARLY:
                fault = f"its actions earn a reward of {reward:g}, not 1"
        except Exception as error:  # noqa: BLE001 - the environment's own code may raise anything
            fault = describe_with_location(error, with_type=True)
        return SolutionPlayed(problem.task_id, tuple(turns), reward, fault, problem.text)

    def example(self, index: int) -> WorkedExample:
        """Return one turn of the solution of a problem of the split `warm_start`. Raises SolutionError."""
        problem = self._environment.problem("warm_start", index)
        answers = take_answers(self._environment, problem)
        turn = derive_seed("turn", index) % len(answers)
        played = asyncio.run(self._play(problem, answers[:turn]))
        if played.fault:
            raise SolutionError(
                f"the worked solution of {problem.task_id} is wrong: {played.fault}. `headrace try` plays it"
            )
        form = self._form if played.known else ""
        messages: list[Message] = [*as_messages(played.prompt)]
        for answer, carried in zip(answers, played.carried, strict=False):
            messages.append({"role": "assistant", "content": write_answer(answer, form, played.known)})
            messages += build_messages(form, carried.outcomes)
        schemas = [tool.schema for tool in played.known] if form == HERMES else ()
        written = write_answer(answers[turn], form, played.known)
        return WorkedExample(messages, written, problem.template_arguments, schemas)

    async def _play(self, problem: Problem, answers: Sequence[str]) -> _Played:
        """Carry out the actions of answers, until one is wrong. Raises what the world raises."""
        with self._isolated.open_episode() as env:
            opened = await open_world(env, problem, self._limits.call_limit_s)
            try:
                known, several, fault = list_actions(opened), list[Carried](), ""
                for turn, answer in enumerate(answers, 1):
                    if several and several[-1].is_done:
                        fault = f"turn {turn}: the episode was over before it"
                        break
                    asked = parse_short_calls(answer, known) if known else [read_text(answer)]
                    several.append(carried := await carry_out(asked, opened, known, self._limits))
                    if bad := next((one for one in carried.outcomes if one.kind), None):
                        fault = f"turn {turn}: {bad.fault}"
                        break
                first = build_outcome("", opened.observation, "", self._limits)
                return _Played(build_prompt(problem.prompt, first.text), known, several, fault)
            finally:
                await opened.close()
