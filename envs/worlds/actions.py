"""Reads the actions of an answer, carries them out, and writes what the policy reads next."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.envs.messages import Message, Prompt, as_messages
from headrace.envs.thoughts import find_outside, find_thoughts, read_answer
from headrace.envs.tool_calls import InvalidToolCall, ToolCall
from headrace.envs.tools.forms import build_observations
from headrace.envs.tools.functions import BadArguments, Tool, build_foreign_tool, find_tool
from headrace.envs.tools.outcomes import Kind, Limits, Outcome, build_outcome
from headrace.envs.worlds.contract import Step, World

MAX_TURNS, MAX_CALLS, STEP_LIMIT_S, OBSERVATION_CHARS = 20, 16, 10.0, 4000
"""The limits of an episode if the recipe gives none."""
CUT = "the action was cut off by the limit of tokens, so it was not carried out"
_MARK = re.compile("ACTION:")


@dataclass(slots=True)
class Carried:
    """What became of the actions of one answer."""

    outcomes: list[Outcome] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """Whether the episode is over."""
        return bool(self.steps) and self.steps[-1].done

    @property
    def reward(self) -> float | None:
        """What they earned together; None if the world said nothing."""
        earned = [step.reward for step in self.steps if step.reward is not None]
        return sum(earned) if earned else None


def list_actions(opened: World) -> Sequence[Tool]:
    """Return the actions of a world as tools; none if an action is a text."""
    shown = [schema.get("function", schema) for schema in opened.actions]
    return [
        build_foreign_tool(one["name"], one.get("description", ""), one.get("parameters", {}), opened.act)
        for one in shown
    ]


def read_text(text: str) -> ToolCall:
    """Return an answer as an action: what stands after the last `ACTION:` outside of thoughts, else all but these."""
    marks = find_outside(_MARK, text, find_thoughts(text))
    return ToolCall("", {"text": text[marks[-1].end() :].strip() if marks else read_answer(text).strip()})


async def carry_out(
    asked: Sequence[ToolCall | InvalidToolCall], opened: World, known: Sequence[Tool], limits: Limits
) -> Carried:
    """Carry out the actions of one answer, one after the other until the episode is over. Raises as `World.act`."""
    carried = Carried()
    for one in [*asked[: limits.max_calls], *_refuse_number(len(asked), known, limits.max_calls)]:
        if isinstance(one, InvalidToolCall):
            kind: Kind = "unknown_tools" if one.is_unknown else "bad_calls"
            carried.outcomes.append(build_outcome("", f"error: {one.error}", kind, limits))
            continue
        try:
            arguments: Mapping[str, Any] = one.arguments
            arguments = find_tool(known, one.name).read_arguments(arguments) if known else arguments
            step = await opened.act(one.name, arguments)
        except BadArguments as error:
            carried.outcomes.append(build_outcome(one.name, f"error: {error}", "bad_calls", limits))
            continue
        carried.steps.append(step)
        carried.outcomes.append(build_outcome(one.name, step.observation, "", limits))
        if step.done:
            break
    return carried


def _refuse_number(asked: int, known: Sequence[Tool], most: int) -> list[InvalidToolCall]:
    """Return what the policy reads of no call at all, or of those above the most: one line for all of them."""
    if not asked:
        return [InvalidToolCall(f"an answer needs a call of one of {', '.join(tool.name for tool in known)}", "")]
    left = asked - most
    return [InvalidToolCall(f"an answer may have {most} calls; {left} were not carried out", "")] if left > 0 else []


def build_prompt(prompt: Prompt, observation: str) -> Prompt:
    """Return what the policy reads first: the last message of the prompt ends with the first observation, a line."""
    if not observation:
        return prompt
    *before, last = as_messages(prompt)
    line = observation if observation.endswith("\n") else f"{observation}\n"
    return [*before, {**last, "content": "\n\n".join(filter(None, [str(last["content"]), line]))}]


def build_messages(form: str, outcomes: Sequence[Outcome]) -> list[Message]:
    """Return the messages with what the policy reads next; of a world of texts, `form` is empty: a line or more."""
    if form:
        return build_observations(form, outcomes)
    return [{"role": "user", "content": "".join(f"{one.text}\n" for one in outcomes)}]
