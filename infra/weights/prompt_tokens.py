"""Text to tokens, with the right special tokens; trainers and actors both use this file.

A tokenizer is one of transformers. A text that begins a sequence gets the tokenizer's start tokens, such as BOS,
exactly once, also where a chat template writes them itself. A text that is added later gets none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


class NoChatTemplate(ValueError):
    """Tools for a policy whose tokenizer cannot describe them in a prompt; the message says what to do."""


class CannotEncode(ValueError):
    """A text has a character for which a tokenizer has no token; the message names it."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the tokenizer cannot encode {what}")


SHOWN = 30
"""Characters of a text to show before and after one that cannot be encoded."""


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

        def render(given: Sequence[Mapping[str, Any]]) -> str:
            text: str = tokenizer.apply_chat_template(
                [dict(message) for message in given],
                tools=[dict(tool) for tool in tools] or None,
                tokenize=False,
                add_generation_prompt=True,
                **template_arguments,
            )
            return text

        return render_calls(render, messages)
    if tools:
        raise NoChatTemplate(
            "the tokenizer of this policy has no chat template, so it cannot show tools: add a chat_template to its "
            "tokenizer, or describe them in the prompt"
        )
    end = {"assistant": tokenizer.eos_token or ""}
    return "".join(message["content"] + end.get(message["role"], "") for message in messages)


def render_calls(render: Callable[[Sequence[Mapping[str, Any]]], str], messages: Sequence[Mapping[str, Any]]) -> str:
    """Render messages with the arguments of tool calls as tables; for a template that prints or adds them, as JSON."""
    as_json = [_write_arguments(message) for message in messages]
    if as_json == list(messages):
        return render(messages)
    try:
        text = render(messages)
    except TypeError as error:  # of a template that adds them to a text
        try:
            return render(as_json)
        except TypeError:
            raise error from None
    printed = any(repr(arguments) in text for arguments in _list_arguments(messages))
    return render(as_json) if printed else text


def _list_arguments(messages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the arguments that Python and JSON write differently."""
    for call in (call for message in messages for call in message.get("tool_calls") or ()):
        inner = call.get("function", call) if isinstance(call, Mapping) else {}
        arguments = inner.get("arguments") if isinstance(inner, Mapping) else None
        if isinstance(arguments, Mapping) and arguments:
            yield dict(arguments)


def _write_arguments(message: Mapping[str, Any]) -> Mapping[str, Any]:
    def write(call: Any) -> Any:
        if not isinstance(call, Mapping):
            return call
        if isinstance(arguments := call.get("arguments"), Mapping):
            return {**call, "arguments": json.dumps(arguments, ensure_ascii=False)}
        return {**call, "function": write(call["function"])} if "function" in call else call

    calls = message.get("tool_calls")
    return {**message, "tool_calls": [write(call) for call in calls]} if calls else message


def encode_prompt(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of a user's turn that begins a sequence, and of the prompt for an answer.

    The chat template is applied if there is one. The special tokens before the text are those that `tokenizer(text)`
    adds. None is added after it, because a generation continues from here.
    """
    return encode_rendered(tokenizer, render_messages(tokenizer, [{"role": "user", "content": text}], (), {}))


def encode_rendered(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of a text that begins a sequence, with the start tokens before it once."""
    ids = encode_plain(tokenizer, text)
    before = find_start_tokens(tokenizer, text, ids)
    return ids if ids[: len(before)] == before else [*before, *ids]


def encode_plain(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of text as it is, no special token added. Raises CannotEncode."""
    try:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    except Exception as error:  # the tokenizers library raises bare Exception
        what = _explain_missing(tokenizer, text) or f"{text!r:.60}: {type(error).__name__}: {error}"
        raise CannotEncode(what) from error
    return ids


def _explain_missing(tokenizer: Any, text: str) -> str:
    """Return which characters of a text a character tokenizer lacks; empty for any other tokenizer."""
    specials = {str(token) for token in tokenizer.all_special_tokens}
    alphabet = tokenizer.get_vocab().keys() - specials
    if any(len(token) > 1 for token in alphabet):
        return ""
    plain = text
    for special in specials:
        plain = plain.replace(special, "")
    if not (missing := set(plain) - alphabet):
        return ""
    at = min(map(text.index, missing))
    return (
        f"{text[max(0, at - SHOWN) : at + SHOWN]!r}: its alphabet lacks {''.join(sorted(missing))!r}; add these "
        f"characters to the policy's `alphabet` in the recipe. The first of them is at index {at} of the text"
    )


def find_start_tokens(tokenizer: Any, text: str, ids: list[int]) -> list[int]:
    """Return the special tokens that a tokenizer puts before a text, whose own ids are `ids`.

    Where the text has other ids with them than without, they are the ids of an empty text, less an EOS at its end.
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
