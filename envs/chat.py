"""A conversation with one policy: messages in and out, with the tokens of every answer kept as sampled.

The model's chat template renders the conversation, with the sampled texts as the assistant's messages. If the new
rendering begins with the text of the sequence so far, only the rest is encoded and appended. If it does not, because
the template writes earlier messages in another way (it drops thoughts, strips blanks), a new sequence begins with the
whole rendering. No sampled token is encoded again in the sequence that trains it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Unpack

import structlog

from headrace.envs.contract import Actor, Generation, Problem, SamplingOptions
from headrace.envs.messages import Message, Prompt, as_messages, check_messages
from headrace.envs.rendering import ChatError, Reading, Rendering
from headrace.envs.thoughts import decode_completion, is_within_thought
from headrace.envs.tool_calls import InvalidToolCall, ToolCall, parse_tool_calls
from headrace.envs.transcript import Branches
from headrace.schemas import records

__all__ = ["Chat", "ChatError", "WhenFull"]

log = structlog.get_logger()

Shorten = Callable[[Sequence[Message]], Sequence[Message] | Awaitable[Sequence[Message]]]
"""Returns a shorter conversation; it may ask a policy or a person for a summary."""
WhenFull = Literal["stop", "drop_oldest"] | Shorten

EXCERPT = 40
"""Characters of two renderings to log around their first difference."""
_reported: set[str] = set()
"""Roles whose rewritten history is already logged, because a template rewrites it in every episode."""


class Chat:
    """One conversation of one role.

    Args:
        actor: The policy.
        role: Role of the policy in the workflow.
        prompt: Begin of the conversation: messages, or a text as one user turn.
        tools: JSON schemas for the chat template.
        template_arguments: Further arguments of the template.
        when_full: What to do without room for an answer. "stop": `generate` returns a generation without tokens and
            with finish_reason "length". "drop_oldest": remove the first answer and all messages until the next answer,
            repeatedly until there is room; the begin of the conversation stays. A function: it returns the messages to
            continue with. The last two begin a new sequence, and stop if nothing more can be removed.
        room: Tokens that an answer needs; by default 1 for "stop", else a quarter of the context.
        agent_id: Id of the agent among those of its role.
        turn: Number of the first turn, if the role has acted before.

    Raises TypeError for invalid messages, and for images.
    """

    def __init__(  # noqa: PLR0913 - all but the first three by name
        self,
        actor: Actor,
        role: str,
        prompt: Prompt,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        template_arguments: Mapping[str, Any] | None = None,
        when_full: WhenFull = "stop",
        room: int | None = None,
        agent_id: str = "",
        turn: int = 0,
    ) -> None:
        if not callable(when_full) and when_full not in ("stop", "drop_oldest"):
            raise ChatError(f'when_full must be "stop", "drop_oldest" or a function, got {when_full!r}')
        self.role = role
        self.rewrites = 0
        """How often the template rewrote earlier messages, so that a new sequence began."""
        self._actor = actor
        self._rendering = Rendering(actor, tools, template_arguments)
        self._branches = Branches(role, agent_id, turn)
        self._text_prompt = prompt if isinstance(prompt, str) and not self.tools and not template_arguments else None
        self._messages = list(check_messages("messages", as_messages(prompt)))
        self._given = len(self._messages)
        self._when_full, self._room = when_full, room
        self._kept: str | None = None
        """Text of the newest sequence; None before the first one, and after only a text prompt."""
        self._last: Generation | None = None
        self._is_full = False
        """Whether the newest call of `generate` found no room."""
        self._asked: list[int] = []
        """Tokens before the newest answer."""
        self._open: Generation | None = None
        """The newest answer, until it becomes a message."""

    @classmethod
    def of_problem(
        cls, actor: Actor, role: str, problem: Problem, *, when_full: WhenFull = "stop", room: int | None = None
    ) -> Chat:
        """Begin with a problem's prompt, tools and template arguments."""
        arguments = problem.template_arguments
        return cls(
            actor,
            role,
            problem.prompt,
            tools=problem.tools,
            template_arguments=arguments,
            when_full=when_full,
            room=room,
        )

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """JSON schemas of the tools."""
        return self._rendering.tools

    @property
    def sequence_count(self) -> int:
        """Number of sequences so far."""
        return len(self._branches)

    @property
    def messages(self) -> tuple[dict[str, Any], ...]:
        """The conversation so far; answers are sampled texts without the special end token."""
        self._add_answer_message()
        return tuple(self._messages)

    @property
    def text(self) -> str:
        """The newest answer without special tokens; empty if there was no room for one.

        It begins with `<think>` if the prompt ends so and the answer does not end the thought.
        """
        if self._last is None:
            return ""
        return decode_completion(self._actor, self._last.ids, is_thinking=is_within_thought(self._actor, self._asked))

    @property
    def tool_calls(self) -> list[ToolCall | InvalidToolCall]:
        """Tool calls of the newest answer."""
        if self._last is None:
            return []
        text = self._actor.decode(self._last.ids, special_tokens=True)
        return parse_tool_calls(text, self.tools, is_thinking=is_within_thought(self._actor, self._asked))

    def add(self, *messages: Message) -> None:
        """Append messages of a user, a tool or the system. Raises TypeError as the class does."""
        self._add_answer_message()
        self._messages += check_messages("messages", messages)

    async def generate(self, **sampling: Unpack[SamplingOptions]) -> Generation:
        """Let the policy answer; `sampling` is as in `Actor.generate`.

        If the context is full, the generation has no token, its finish_reason is "length", and nothing is recorded.
        Raises ChatError if the next call finds no room either, if the first prompt does not fit, or if the template
        does not show tools.
        """
        self._add_answer_message()
        if not await self._extend_sequences():
            if self._is_full:
                raise ChatError(
                    f"the context of {self._actor.context} tokens is full, and the answer before was already without "
                    'tokens: end the loop of turns when `generation.finish_reason == "length"`, or give the chat '
                    'when_full="drop_oldest"'
                )
            self._last, self._is_full = None, True
            await asyncio.sleep(0)  # a loop that does not look at the finish reason must not block the worker
            return Generation(records.no_ints(), records.no_floats(), (), "length")
        self._is_full = False
        transcript = self._branches.newest
        self._asked = transcript.ids
        self._last = self._open = await self._actor.generate(self._asked, **sampling)
        transcript.add_generation(self._last)
        return self._last

    def reward_answer(self, reward: float) -> None:
        """Give the newest answer a reward of its own, any number. Raises ChatError without an answer."""
        if self._last is None:
            raise ChatError("there is no answer that a reward could be for")
        self._branches.newest.reward_turn(reward)

    def sequences(
        self, reward: float | None = None, baseline: float | None = None, *, first: int = 0, parent: int = -1
    ) -> tuple[records.Sequence, ...]:
        """Return the sequences for a RoleTrajectory; the arguments are those of `Branches.sequences`."""
        return self._branches.sequences(reward, baseline, first, parent)

    def _add_answer_message(self) -> None:
        """Turn the newest answer into a message, and update the text of the sequence."""
        if self._open is None:
            return
        said, content = self._rendering.read_answer(self._open)
        self._kept = (self._rendering.render(self._messages) if self._kept is None else self._kept) + said
        self._messages.append({"role": "assistant", "content": content})
        self._open = None

    async def _extend_sequences(self) -> bool:
        """Extend the newest sequence by the new messages, or begin another; return whether an answer has room."""
        if self._text_prompt is not None and not self._branches and len(self._messages) == 1:
            self._branches.begin(self._actor.encode(self._text_prompt))
            return True
        reading = self._rendering.read(self._messages, self._kept)
        if self._has_room(reading):
            if self._kept is not None and not reading.goes_on:
                self._note_rewrite(self._kept, reading.text)
            self._take(reading)
            return True
        if not self._branches:
            raise ChatError(
                f"the first prompt, of {len(reading.ids)} tokens, is too long for the model's context of "
                f"{self._actor.context} tokens, of which an answer needs {self._find_room()}: shorten the prompt"
            )
        return await self._shorten()

    def _take(self, reading: Reading) -> None:
        if reading.goes_on:
            self._branches.newest.observe(reading.ids)
        else:
            self._branches.begin(reading.ids)
        self._kept = reading.text

    async def _shorten(self) -> bool:
        """Begin a sequence with a shorter conversation; return whether this leaves enough room."""
        async for shorter in self._list_shorter():
            reading = self._rendering.read(shorter)
            if self._has_room(reading):
                self._messages = list(shorter)
                self._take(reading)
                return True
        return False

    async def _list_shorter(self) -> AsyncIterator[Sequence[dict[str, Any]]]:
        """Yield shorter and shorter conversations to continue with."""
        if callable(self._when_full):
            found = self._when_full(tuple(self._messages))
            yield check_messages("the result of when_full", await found if inspect.isawaitable(found) else found)
        elif self._when_full == "drop_oldest":
            messages = self._messages
            while len(shorter := leave_out_oldest(messages, self._given)) < len(messages):
                yield (messages := shorter)

    def _has_room(self, reading: Reading) -> bool:
        tokens = len(reading.ids) + (len(self._branches.newest.ids) if reading.goes_on else 0)
        return tokens + self._find_room() <= self._actor.context

    def _find_room(self) -> int:
        """Return how many tokens an answer needs."""
        return self._room or (1 if self._when_full == "stop" else max(1, self._actor.context // 4))

    def _note_rewrite(self, kept: str, text: str) -> None:
        self.rewrites += 1
        if self.role not in _reported:
            _reported.add(self.role)
            shorter = min(len(kept), len(text))
            at = next((at for at in range(shorter) if kept[at] != text[at]), shorter)
            # The chat template changed earlier messages, so a new sequence began; logged once per role.
            log.warning(
                "chat.rewritten", role=self.role, kept=kept[at : at + EXCERPT], rendered=text[at : at + EXCERPT]
            )


def leave_out_oldest(messages: list[dict[str, Any]], given: int) -> list[dict[str, Any]]:
    """Return messages without the first answer after the first `given` ones, and without all until the next answer.

    The newest answer stays: if it is the only one, the messages are returned unchanged.
    """
    answers = [at for at, message in enumerate(messages) if at >= given and message["role"] == "assistant"]
    return messages if len(answers) < 2 else [*messages[: answers[0]], *messages[answers[1] :]]
