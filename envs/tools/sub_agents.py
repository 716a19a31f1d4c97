"""What sub-agents need: the call that starts one, and the problem that it gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.envs.contract import Environment, Problem
from headrace.envs.messages import show_value
from headrace.envs.tools.functions import Tool, read_tool, read_tools


def spawn(task: str) -> str:
    """Start an agent that works on a task by itself; the result is its answer.

    Args:
        task: All that the agent gets to know.
    """
    raise NotImplementedError(f"the workflow answers this call itself, and here it would get {task!r}")


SPAWN = read_tool(spawn)


def has_sub_problems(environment: object) -> bool:
    """Return whether an environment, isolated or not, has `sub_problem(problem, task)`: the problem of a sub-agent."""
    return callable(getattr(environment, "sub_problem", None))


def share_extra(environment: Any, problem: Problem) -> None:
    """Let all agents of an episode share the `extra` of its problem, if the environment says `shares_extra`.

    Args:
        environment: The `IsolatedEnvironment` of the episode.
        problem: Of the first agent.
    """
    if getattr(environment, "shares_extra", False):
        environment.share_extra(problem)


def build_sub_problem(environment: Any, problem: Problem, task: str) -> Problem:
    """Return the problem of a sub-agent: the environment's, or the text of the task alone. Raises TypeError."""
    if not has_sub_problems(environment):
        arguments = problem.template_arguments
        return Problem(f"{problem.task_id} / {task}", task, template_arguments=arguments, extra=problem.extra)
    given = environment.sub_problem(problem, task)
    if not isinstance(given, Problem):
        raise TypeError(
            f"`sub_problem` of environment {environment.name} must return a Problem, got {show_value(given)}"
        )
    return given


def list_callable(environment: Environment) -> Sequence[Tool]:
    """Return what an agent that may start others can call: the environment's tools, if it has some, and `spawn`."""
    own = read_tools(environment) if getattr(environment, "tools", ()) else ()
    if any(tool.name == SPAWN.name for tool in own):
        raise ValueError(f"environment {environment.name} has a tool `spawn`, which the workflow itself has: rename it")
    return (*own, SPAWN)
