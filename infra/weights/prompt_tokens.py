"""Text to tokens with the special tokens that belong there; trainers and actors do it alike.

A tokenizer is one of transformers. What begins a sequence has its tokens before it, such as one BOS, once also where a
chat template writes it out; what is spliced in later has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class NoChatTemplate(ValueError):
    """Tools for a policy whose tokenizer cannot show them; the message says what to do."""


def render_messages(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    template_arguments: Mapping[str, Any],
) -> str:
    """Return messages as text, and the prompt for an answer after them, by the tokenizer's own chat template.

    Without a template the contents are joined, an EOS after each of the assistant, and tools raise NoChatTemplate.
    """
    if tokenizer.chat_template:
        text: str = tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=[dict(tool) for tool in tools] or None,
            tokenize=False,
            add_generation_prompt=True,
            **template_arguments,
        )
        return text
    if tools:
        raise NoChatTemplate(
            "the tokenizer of this policy has no chat template, so it cannot show tools: describe them in the prompt, "
            "or add a chat_template to its tokenizer"
        )
    end = {"assistant": tokenizer.eos_token or ""}
    return "".join(message["content"] + end.get(message["role"], "") for message in messages)


def encode_prompt(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of a user's turn that begins a sequence, and of the prompt for an answer.

    The chat template is applied if there is one. The special tokens before it are those that `tokenizer(text)` puts
    there. None is put after it, as a generation goes on from here.
    """
    return encode_rendered(tokenizer, render_messages(tokenizer, [{"role": "user", "content": text}], (), {}))


def encode_rendered(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of a text that begins a sequence, with the start tokens before it once."""
    ids = encode_plain(tokenizer, text)
    before = find_start_tokens(tokenizer, text, ids)
    return ids if ids[: len(before)] == before else [*before, *ids]


def encode_plain(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of text as it is, no special token added."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def find_start_tokens(tokenizer: Any, text: str, ids: list[int]) -> list[int]:
    """Return the special tokens that a tokenizer puts before a text, whose own ids are `ids`.

    Where it makes other ids of the text with them, they are what it makes of no text, less an EOS at its end.
    """
    alone: list[int] = tokenizer.encode("", add_special_tokens=True)
    if not alone:
        return []
    whole: list[int] = tokenizer.encode(text, add_special_tokens=True)
    for at in range(len(whole) - len(ids) + 1) if ids else ():
        if whole[at : at + len(ids)] == ids:
            return whole[:at]
    after = {tokenizer.eos_token_id, tokenizer.sep_token_id} - {tokenizer.bos_token_id, None}
    while alone and alone[-1] in after:
        alone.pop()
    return alone
