"""Renders conversations for one policy by its chat template, as texts and as tokens. It keeps no conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.envs.contract import Actor, Generation, check_tools, tool_name
from headrace.envs.messages import Message


def has_chat_template(actor: Actor) -> bool:
    """Return whether a policy renders a message as more than its content."""
    return actor.render([{"role": "user", "content": "a"}]) != "a"


class ChatError(ValueError):
    """A conversation cannot be rendered for the policy; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a policy reads before its next answer."""

    text: str
    """The whole conversation, rendered."""
    ids: list[int]
    """Its tokens; for one that goes on, those after the text before."""
    goes_on: bool
    """Whether it begins with the text before, so that only the rest is new to the policy."""


class Rendering:
    """How one policy reads conversations.

    Args:
        actor: The policy.
        tools: JSON schemas for its chat template.
        template_arguments: Further arguments of the template.

    Raises TypeError for a tool without a name.
    """

    def __init__(
        self, actor: Actor, tools: Sequence[Mapping[str, Any]] = (), template_arguments: Mapping[str, Any] | None = None
    ) -> None:
        self.tools = check_tools("tools", tools)
        self._actor, self._template_arguments = actor, dict(template_arguments or {})

    def render(self, messages: Sequence[Message]) -> str:
        """Return a conversation as text. Raises ChatError if the template does not show the tools."""
        text = self._actor.render(messages, tools=self.tools, template_arguments=self._template_arguments)
        if hidden := [name for name in map(tool_name, self.tools) if name not in text]:
            raise ChatError(
                f"the chat template of this policy does not show the tools {', '.join(hidden)}: use a template that "
                "shows tools; or give the chat no tools, and describe them in the prompt"
            )
        return text

    def read(self, messages: Sequence[Message], before: str | None = None) -> Reading:
        """Return a conversation as tokens: the rest after the text `before`, or the whole if it does not begin so."""
        text = self.render(messages)
        if before is not None and text.startswith(before):
            return Reading(text, self._actor.encode_plain(text[len(before) :]), goes_on=True)
        return Reading(text, self._actor.encode_rendered(text), goes_on=False)

    def read_answer(self, made: Generation) -> tuple[str, str]:
        """Return an answer as it stands after the text of its prompt, and as the content of a message.

        The content lacks the special token that ended the answer, because the template writes it.
        """
        said = self._actor.decode(made.ids, special_tokens=True)
        is_ended = made.finish_reason == "stop" and len(made.ids) and not self._actor.decode(made.ids[-1:])
        end = self._actor.decode(made.ids[-1:], special_tokens=True) if is_ended else ""
        return said, said.removesuffix(end)
