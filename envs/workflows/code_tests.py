"""A workflow with a solver, which writes a program and may try twice, and a tester, which writes two cases; both learn.

The rewards are those of version 3 of AstraFlow's recipe. The solver's are 1 for an attempt that passes the problem's
own tests. The tester's is half of R_valid (the reference passes its cases) and half of R_diag (R_valid, and its cases
judge the first attempt as the problem's own tests do). The solver tries again only if both say that it is wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from headrace.envs.chat import Chat
from headrace.envs.code.cases import Cases, find_code, read_cases, read_references
from headrace.envs.code.grading import EACH, SOLUTIONS, TESTS
from headrace.envs.code.written_cases import read_written_cases, write_feedback, write_test_prompt
from headrace.envs.contract import Actor, Environment, Episode, Problem, RoleTrajectory, Score
from headrace.envs.judging import score_answer
from headrace.envs.messages import Prompt, as_messages
from headrace.envs.thoughts import read_answer
from headrace.schemas.records import Sequence as Record

SOLVER, TESTER = "solver", "tester"


def check_roles(roles: Collection[str]) -> None:
    """Raise ValueError unless the roles are `solver` and `tester`."""
    if set(roles) != {SOLVER, TESTER}:
        raise ValueError(
            f"workflow code_tests needs the roles solver and tester in the recipe's `policies`, got {sorted(roles)}"
        )


def check_environment(environment: Environment) -> None:
    """Raise ValueError unless the first problem has tests, and references that prove cases; WrongTests is one."""
    extra = environment.problem("train", 0).extra
    if lacking := [name for name in (TESTS, SOLUTIONS) if not extra.get(name)]:
        raise ValueError(
            f"workflow code_tests needs `{lacking[0]}` in each problem's `extra`: use the environment code, or "
            f'a data set with scorer = "code" and keep = ["{SOLUTIONS}"]'
        )
    read_references(extra[SOLUTIONS])


async def code_tests(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
    """Play an attempt, two cases for it, and perhaps a second attempt, which reads how the cases went.

    Each attempt is a sequence of the solver's trajectory with its own reward; the trajectory has the reward of the last
    attempt. Raises ValueError if the recipe's roles are not `solver` and `tester`, WrongTests for a problem without
    tests and references, and the errors of `score_answer`.
    """
    check_roles(actors)
    function, references = read_cases(problem.extra[TESTS]).function, read_references(problem.extra.get(SOLUTIONS))
    attempt, first, sequences = await _write_code(problem, env, actors[SOLVER], problem.prompt)
    chat = Chat(actors[TESTER], TESTER, write_test_prompt(problem, find_code(read_answer(attempt))))
    await chat.generate()
    cases, last = read_written_cases(chat.text, function), first
    passed, is_valid = await _run_cases(problem, env, attempt, cases, references) if cases else ([], False)
    is_approved, is_right = bool(passed) and all(passed), first.reward == 1
    if cases and not is_approved and not is_right:
        *before, last_message = as_messages(problem.prompt)
        text = last_message["content"] + write_feedback(problem, cases, passed)
        prompt = text if isinstance(problem.prompt, str) else [*before, {**last_message, "content": text}]
        _, last, more = await _write_code(problem, env, actors[SOLVER], prompt, turn=1)
        sequences += more
    is_diagnosed = is_valid and is_approved == is_right
    reward = (is_valid + is_diagnosed) / 2
    told = {"usable": cases is not None, "valid": is_valid, "diagnosed": is_diagnosed, "approved": is_approved}
    parts = {**last.parts, "first": first.reward, "attempts": float(len(sequences))}
    return {
        SOLVER: RoleTrajectory(last.reward, sequences, parts),
        TESTER: RoleTrajectory(reward, chat.sequences(reward), {name: float(one) for name, one in told.items()}),
    }


async def _write_code(
    problem: Problem, env: Environment, actor: Actor, prompt: Prompt, turn: int = 0
) -> tuple[str, Score, tuple[Record, ...]]:
    arguments = problem.template_arguments
    chat = Chat(actor, SOLVER, prompt, tools=problem.tools, template_arguments=arguments, turn=turn)
    await chat.generate()
    score = await score_answer(env, problem, chat.text)
    return chat.text, score, chat.sequences(score.reward)


async def _run_cases(
    problem: Problem, env: Environment, attempt: str, cases: Cases, references: list[str]
) -> tuple[list[bool], bool]:
    """Return which cases an attempt passes, and whether the reference passes all: the one with most hidden tests."""
    tests = {"fn_name": cases.function, "inputs": cases.inputs, "outputs": cases.outputs}
    asked = replace(problem, extra={**problem.extra, TESTS: tests, EACH: True})
    judged = await score_answer(env, asked, attempt)
    best, most = "", -1.0
    for one in references:
        if most < 1 and (passed := (await score_answer(env, problem, one)).parts["passed"]) > most:
            best, most = one, passed
    is_valid = (await score_answer(env, asked, best)).reward == 1
    return [judged.parts[f"{EACH}{at}"] == 1 for at in range(len(cases.inputs))], is_valid
