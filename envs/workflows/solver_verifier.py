"""A workflow with a solver, which may try twice, and a verifier, which judges the first attempt; both learn.

As in Dr.MAS (arXiv 2602.08847), a rejected solver sees the verifier's whole output, not its own first attempt, and
there is no second verification. A policy with a chat template reads a prompt in Dr.MAS's three parts: the task, what
teammates said, and its role. For any other policy the added words use only lower-case letters and spaces, so that a
character tokenizer of the arithmetic alphabet can encode them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Literal

from headrace.envs.contract import Actor, Environment, Episode, Problem, RoleTrajectory, Score
from headrace.envs.data.scorers import BOX_INSTRUCTION
from headrace.envs.judging import score_answer
from headrace.envs.messages import Prompt, as_messages
from headrace.envs.rendering import has_chat_template
from headrace.envs.thoughts import decode_completion, is_within_thought, read_answer
from headrace.envs.transcript import Transcript
from headrace.schemas import records

SOLVER, VERIFIER = "solver", "verifier"
RIGHT = 0.999
"""Scores at or above this count as right answers for the verifier's reward."""

SOLVE = "You are the solver. Reason step by step, and put the final answer within \\boxed{}."
SOLVE_AGAIN = """You are the solver. The verifier, whose words are above, has rejected an earlier solution of your team.
Decide whether its objections hold, and solve the task anew. Reason step by step, and put the final answer within
\\boxed{}."""
VERIFY = """You are the verifier. Check the solution above step by step. End with <verify>approve</verify> if its final
answer is right, else with <verify>reject</verify>."""

Judgement = Literal["approve", "reject"]
_WORD = re.compile(r"(?<![a-z])(?:approve|reject)", re.IGNORECASE)
_TAG = re.compile(r"<verify>\s*(approve|reject)\s*</verify>", re.IGNORECASE)


def check_roles(roles: Collection[str]) -> None:
    """Raise ValueError unless the roles are `solver` and `verifier`."""
    if set(roles) != {SOLVER, VERIFIER}:
        raise ValueError(
            "workflow solver_verifier needs the roles solver and verifier in the recipe's `policies`, got "
            f"{sorted(roles)}"
        )


async def solver_verifier(
    problem: Problem, env: Environment, actors: Mapping[str, Actor], *, suffix: str = BOX_INSTRUCTION
) -> Episode:
    """Play an attempt, a verdict, and a second attempt if the verdict is `reject`.

    If the verdict leaves no room in the context for a second attempt, the first one counts (the part `no_room`).

    Each attempt is a sequence of the solver's trajectory with its own reward; the trajectory has the reward of the last
    attempt. The verifier gets 1 if its verdict on the first attempt is right.

    Args:
        problem: The problem.
        env: Its environment.
        actors: The solver and the verifier.
        suffix: End of a data set's problems that says how to answer. Prompts of three parts leave it out.

    Raises ValueError if the recipe's roles are not `solver` and `verifier`.
    """
    check_roles(actors)
    attempt, first, sequence = await _solve(actors[SOLVER], _ask(problem, actors[SOLVER], suffix), problem, env)
    sequences, last, no_room = [sequence], first, False
    output, verdict, judgement = await _verify(problem, attempt, first, actors[VERIFIER], suffix)
    if verdict == "reject":
        asked = _ask(problem, actors[SOLVER], suffix, feedback=output)
        if not (no_room := len(asked.ids) >= actors[SOLVER].context):
            _, last, sequence = await _solve(actors[SOLVER], asked, problem, env)
            sequences.append(sequence)
    parts = {**last.parts, "first": first.reward, "attempts": float(len(sequences)), "no_room": float(no_room)}
    return {SOLVER: RoleTrajectory(last.reward, tuple(sequences), parts), VERIFIER: judgement}


def _ask(problem: Problem, actor: Actor, suffix: str, feedback: str = "") -> Transcript:
    """Return what the solver reads."""
    transcript = Transcript(SOLVER, turn=1 if feedback else 0)
    if has_chat_template(actor):
        said, role = ({VERIFIER: feedback}, SOLVE_AGAIN) if feedback else ({}, SOLVE)
        transcript.prompt(_encode(actor, problem, write_team_prompt(problem.prompt, said, role, suffix)))
    else:
        transcript.prompt(_encode(actor, problem, problem.prompt))
        transcript.observe(actor.encode_plain(f" {feedback} ") if feedback else ())
    return transcript


async def _solve(
    actor: Actor, transcript: Transcript, problem: Problem, env: Environment
) -> tuple[str, Score, records.Sequence]:
    text = await _generate(actor, transcript)
    score = await score_answer(env, problem, text)
    return text, score, transcript.sequence(reward=score.reward)


async def _verify(
    problem: Problem, attempt: str, score: Score, actor: Actor, suffix: str
) -> tuple[str, Judgement | None, RoleTrajectory]:
    prompt: Prompt = f"{problem.text} {attempt} approve or reject? "
    if has_chat_template(actor):
        prompt = write_team_prompt(problem.prompt, {SOLVER: read_answer(attempt)}, VERIFY, suffix)
    transcript = Transcript(VERIFIER)
    transcript.prompt(_encode(actor, problem, prompt))
    output = await _generate(actor, transcript)
    verdict = find_verdict(output)
    reward = float(verdict == ("approve" if score.reward >= RIGHT else "reject"))
    parts = {"rejected": float(verdict == "reject"), "readable": float(verdict is not None)}
    return output, verdict, RoleTrajectory(reward, (transcript.sequence(reward=reward),), parts)


async def _generate(actor: Actor, transcript: Transcript) -> str:
    """Append an answer, and return its text."""
    ids = transcript.ids
    generation = await actor.generate(ids)
    transcript.add_generation(generation)
    return decode_completion(actor, generation.ids, is_thinking=is_within_thought(actor, ids))


def _encode(actor: Actor, problem: Problem, prompt: Prompt) -> list[int]:
    return actor.encode_rendered(actor.render(as_messages(prompt), template_arguments=problem.template_arguments))


def write_team_prompt(task: Prompt, said: Mapping[str, str], role: str, suffix: str = "") -> Prompt:
    """Return a task with its last message in headed parts: the task, what teammates said (left out if none), the role.

    Args:
        task: Prompt of the problem.
        said: Teammate to its words.
        role: What the policy is to do.
        suffix: Left out at the end of the task.
    """
    *before, last = as_messages(task)
    words = "\n\n".join(f"{name}: {text}" for name, text in said.items())
    parts = {"Task": last["content"].removesuffix(suffix).rstrip(), "Teammates": words, "Your role": role}
    content = "\n\n".join(f"# {title}\n\n{text}" for title, text in parts.items() if text)
    return (*before, {**last, "content": content})


def find_verdict(output: str) -> Judgement | None:
    """Return the word in the last `<verify>` tag; else the only verdict word; else None. Thoughts do not count.

    Without a verdict there is no second attempt, and no reward for the verifier.
    """
    output = read_answer(output)
    if tags := _TAG.findall(output):
        return "approve" if tags[-1].lower() == "approve" else "reject"
    words = {word.lower() for word in _WORD.findall(output)}
    if len(words) != 1:
        return None
    return "approve" if "approve" in words else "reject"
