"""A workflow with a solver, which may try twice, and a verifier, which judges the first attempt; both learn.

As in Dr.MAS (arXiv 2602.08847), a rejected solver sees the verifier's whole output, not its own first attempt, and
there is no second verification. The added words use only lower-case letters and spaces, so that a character tokenizer
of the arithmetic alphabet can encode them; for a policy with a chat template they come after its turn has begun.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Literal

from headrace.envs.contract import Actor, Environment, Episode, Problem, RoleTrajectory, Score
from headrace.envs.judging import score_answer
from headrace.envs.messages import as_messages
from headrace.envs.thoughts import decode_completion, is_within_thought, read_answer
from headrace.envs.transcript import Transcript
from headrace.schemas import records

SOLVER, VERIFIER = "solver", "verifier"
RIGHT = 0.999
"""Scores at or above this count as right answers for the verifier's reward."""

Judgement = Literal["approve", "reject"]
_WORD = re.compile(r"(?<![a-zA-Z])(?:approve|reject)")
_TAG = re.compile(r"<verify>\s*(approve|reject)\s*</verify>")


def check_roles(roles: Collection[str]) -> None:
    """Raise ValueError unless the roles are `solver` and `verifier`."""
    if set(roles) != {SOLVER, VERIFIER}:
        raise ValueError(
            "workflow solver_verifier needs the roles solver and verifier in the recipe's `policies`, got "
            f"{sorted(roles)}"
        )


async def solver_verifier(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
    """Play an attempt, a verdict, and a second attempt if the verdict is `reject`.

    Each attempt is a sequence of the solver's trajectory with its own reward; the trajectory has the reward of the last
    attempt. The verifier gets 1 if its verdict on the first attempt is right. Raises ValueError if the recipe's roles
    are not `solver` and `verifier`.
    """
    check_roles(actors)
    attempt, first, sequence = await _solve(problem, env, actors[SOLVER])
    sequences = [sequence]
    output, verdict, judgement = await _verify(problem, attempt, first, actors[VERIFIER])
    last = first
    if verdict == "reject":
        _, last, sequence = await _solve(problem, env, actors[SOLVER], feedback=output)
        sequences.append(sequence)
    parts = {**last.parts, "first": first.reward, "attempts": float(len(sequences))}
    return {SOLVER: RoleTrajectory(last.reward, tuple(sequences), parts), VERIFIER: judgement}


async def _solve(
    problem: Problem, env: Environment, actor: Actor, feedback: str = ""
) -> tuple[str, Score, records.Sequence]:
    transcript = Transcript(SOLVER, turn=1 if feedback else 0)
    transcript.prompt(_encode_problem(actor, problem))
    if feedback:
        transcript.observe(actor.encode_plain(f" {feedback} "))
    text = await _generate(actor, transcript)
    score = await score_answer(env, problem, text)
    return text, score, transcript.sequence(reward=score.reward)


async def _generate(actor: Actor, transcript: Transcript) -> str:
    """Append an answer, and return its text."""
    ids = transcript.ids
    generation = await actor.generate(ids)
    transcript.add_generation(generation)
    return decode_completion(actor, generation.ids, is_thinking=is_within_thought(actor, ids))


def _encode_problem(actor: Actor, problem: Problem) -> list[int]:
    if isinstance(problem.prompt, str) and not problem.template_arguments:
        return actor.encode(problem.prompt)
    arguments = problem.template_arguments
    return actor.encode_rendered(actor.render(as_messages(problem.prompt), template_arguments=arguments))


async def _verify(
    problem: Problem, attempt: str, score: Score, actor: Actor
) -> tuple[str, Judgement | None, RoleTrajectory]:
    transcript = Transcript(VERIFIER)
    transcript.prompt(actor.encode(f"{problem.text} {attempt} approve or reject? "))
    output = await _generate(actor, transcript)
    verdict = find_verdict(output)
    reward = float(verdict == ("approve" if score.reward >= RIGHT else "reject"))
    parts = {"rejected": float(verdict == "reject"), "readable": float(verdict is not None)}
    return output, verdict, RoleTrajectory(reward, (transcript.sequence(reward=reward),), parts)


def find_verdict(output: str) -> Judgement | None:
    """Return the word in the last `<verify>` tag; else the only verdict word; else None. Thoughts do not count.

    Without a verdict there is no second attempt, and no reward for the verifier.
    """
    output = read_answer(output)
    if tags := _TAG.findall(output):
        return "approve" if tags[-1] == "approve" else "reject"
    words = set(_WORD.findall(output))
    if len(words) != 1:
        return None
    return "approve" if "approve" in words else "reject"
