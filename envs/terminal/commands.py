"""Reads a command from an answer, runs it, and shows what it did, in the two forms that policies write.

In the form `block`, for models with a chat template, a command stands in a block of Markdown. In the form `plain`, for
small models, the whole answer is the command.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headrace.envs.contract import Actor
from headrace.envs.messages import Message, Prompt, as_messages
from headrace.envs.sandbox.contract import Result
from headrace.envs.terminal.contract import Terminal
from headrace.envs.thoughts import find_outside, find_thoughts, read_answer
from headrace.envs.tools.forms import fit_to_policy
from headrace.envs.tools.outcomes import Outcome

AUTO, BLOCK, PLAIN = "auto", "block", "plain"
FORMS = (AUTO, BLOCK, PLAIN)
DONE = "done"
RULES = (
    "You work in a Linux shell. Write one command, or one script, per answer, in a block that begins with the line "
    "```bash and ends with the line ```. Then you read what it printed. Every command begins in the same folder; files "
    "stay. When the task is done, answer `done`, without a block."
)
CUT = "the command was cut off by the limit of tokens, so it was not run"
_BLOCK = re.compile(r"^```(?:bash|sh|shell)[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)

Kind = Literal["", "command_errors", "timeouts"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a workflow on commands."""

    command_limit_s: float = 30.0
    observation_chars: int = 4000


@dataclass(frozen=True, slots=True)
class Seen:
    """What the policy reads after a command."""

    text: str
    kind: Kind = ""
    """What went wrong."""
    is_cut: bool = False
    """Whether a part of the output was left out."""
    wall_s: float = 0.0


def choose_form(form: str, actor: Actor) -> str:
    """Return the form that a recipe asks for; for `auto` it is `block` if the policy has a chat template."""
    if form != AUTO:
        return form
    return PLAIN if actor.render([{"role": "user", "content": DONE}]) == DONE else BLOCK


def build_prompt(prompt: Prompt, form: str) -> Prompt:
    """Return what the policy reads first: in the form `block`, the last message ends with the rules of this form."""
    if form == PLAIN:
        return prompt
    *before, last = as_messages(prompt)
    return [*before, {**last, "content": f"{last['content']}\n\n{RULES}"}]


def read_command(text: str, form: str) -> str:
    """Return the command of an answer, outside of thoughts; empty if the answer has none, which ends the episode."""
    if form == PLAIN:
        command = read_answer(text).strip()
        return "" if command == DONE else command
    return "".join(found[1] for found in find_outside(_BLOCK, text, find_thoughts(text)))


async def run_command(terminal: Terminal, command: str, limits: Limits, left_s: float) -> Seen:
    """Run a command by `bash -c`, and return what the policy reads. Raises BoxFailed."""
    limit_s = min(limits.command_limit_s, left_s)
    done = await terminal.box.exec(["bash", "-c", command], timeout_s=limit_s, cwd=terminal.folder)
    return show_result(done, limit_s, limits.observation_chars)


def show_result(done: Result, limit_s: float, most: int) -> Seen:
    """Return an exit code that is not 0, stdout and stderr as one text; of a long one the middle is left out."""
    kind: Kind = "timeouts" if done.timed_out else "command_errors" if done.return_code else ""
    head = f"stopped after {limit_s:g} s" if done.timed_out else f"exit code {done.return_code}" if kind else ""
    text = "\n".join(part.rstrip("\n") for part in (head, done.stdout, done.stderr) if part.strip())
    is_cut = done.stdout_truncated or done.stderr_truncated
    if len(text) > most:
        begin, end = text[: most - most // 2], text[len(text) - most // 2 :]
        text, is_cut = f"{begin}\n[{len(text) - most} left out]\n{end}", True
    elif is_cut:
        text += "\n[the rest was dropped]"
    return Seen(text, kind, is_cut, done.wall_s)


def build_observation(seen: Seen, form: str, actor: Actor) -> tuple[Message, bool]:
    """Return the message with what a command did, and whether a part of it was left out.

    Special tokens are left out, and characters that the policy's alphabet lacks.
    """
    text = f"{seen.text}\n" if form == PLAIN else seen.text or "(no output)"
    fitted = fit_to_policy(Outcome("", text, is_cut=seen.is_cut), actor)
    return {"role": "user", "content": fitted.text}, fitted.is_cut


def read_limits(settings: Mapping[str, Any]) -> Limits:
    """Return the limits in the settings of a workflow."""
    return Limits(**{name: settings[name] for name in ("command_limit_s", "observation_chars") if name in settings})


def write_turns(commands: Sequence[str]) -> list[Message]:
    """Return the messages of commands without output, in the form `plain`."""
    turns = ((("assistant", command), ("user", "\n")) for command in commands)
    return [{"role": role, "content": content} for turn in turns for role, content in turn]
