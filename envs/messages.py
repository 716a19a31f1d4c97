"""Messages of a conversation: plain dicts as in chat templates and OpenAI's API, text only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

CHAT_ROLES = ("system", "user", "assistant", "tool")

Message = Mapping[str, Any]
"""`role` and `content`, and further keys that chat templates read: `tool_calls`, `tool_call_id`, `name`."""
Prompt = str | Sequence[Message]
"""A prompt: a text (one user turn) or messages."""


def check_messages(what: str, messages: object) -> tuple[dict[str, Any], ...]:
    """Return messages as dicts whose `content` is a string; text parts of a content are joined.

    The arguments of tool calls become tables. Raises TypeError or ValueError, which names the location, for an invalid
    message, and for an image, a sound or a file.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
        raise TypeError(f"{what} must be a list of messages, got {show_value(messages)}")
    return tuple(_check_message(f"{what}[{at}]", message) for at, message in enumerate(messages))


def as_messages(prompt: Prompt) -> Sequence[Message]:
    """Return messages as they are, and a text as the only message, of a user."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def join_text(prompt: Prompt) -> str:
    """Return a prompt as text: for messages, the contents of all roles, separated by blank lines."""
    return "\n\n".join(list_contents(prompt))


def list_contents(prompt: Prompt) -> list[str]:
    """Return the texts of a prompt: a single text, or the non-empty contents of messages."""
    return [prompt] if isinstance(prompt, str) else [text for message in prompt if (text := message["content"])]


def _check_message(what: str, message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping) or message.get("role") not in CHAT_ROLES:
        raise TypeError(f"{what} must be a dict with a `role` of {', '.join(CHAT_ROLES)}, got {show_value(message)}")
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        content = ""
    if isinstance(content, list | tuple):
        content = "".join(_read_part(f"{what}.content[{at}]", part) for at, part in enumerate(content))
    if not isinstance(content, str):
        raise TypeError(f"{what}.content must be a string, got {show_value(content)}")
    refuse_lone_surrogates(f"{what}.content", content)
    if not (calls := message.get("tool_calls")):
        return {**message, "content": content}
    if not isinstance(calls, list | tuple):
        raise TypeError(f"{what}.tool_calls must be a list of calls, got {show_value(calls)}")
    read = [_read_call(f"{what}.tool_calls[{at}]", call) for at, call in enumerate(calls)]
    return {**message, "content": content, "tool_calls": read}


def _read_call(what: str, call: object) -> dict[str, Any]:
    """Return a tool call whose arguments are a table: OpenAI's API writes them as JSON, chat templates read a table."""
    if not isinstance(call, Mapping):
        raise TypeError(f'{what} must be a dict such as {{"function": {{…}}}}, got {show_value(call)}')
    if isinstance(inner := call.get("function"), Mapping):
        return {**call, "function": _read_call(f"{what}.function", inner)}
    if not isinstance(given := call.get("arguments"), str):
        return dict(call)
    try:
        arguments = json.loads(given) if given.strip() else {}
        refuse_lone_surrogates("it", json.dumps(arguments, ensure_ascii=False))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what}.arguments must be a JSON object, but {given!r:.60} is no JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise TypeError(f"{what}.arguments must be a JSON object, got {given!r:.60}")
    return {**call, "arguments": arguments}


def _read_part(what: str, part: object) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    kind = part.get("type", "no type") if isinstance(part, Mapping) else "text"
    if kind == "text":
        raise TypeError(f'{what} must be a dict such as {{"type": "text", "text": "Hi"}}, got {show_value(part)}')
    raise TypeError(f"{what} is of type {kind}: messages hold text only, images and other media are not supported")


def refuse_lone_surrogates(what: str, text: str) -> None:
    """Raise ValueError, which names `what`, for a lone surrogate (half of a character), which no record can hold."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"{text[error.start]!r} at index {error.start}"
        raise ValueError(
            f"{what} holds half of a character ({half}), a lone surrogate: write the whole character"
        ) from error


def show_value(value: object) -> str:
    """Return a value's type and beginning, for an error message."""
    kind = type(value).__name__
    try:
        return f"{kind} {value!r:.60}"
    except (ValueError, RecursionError):  # Python writes no integer of more than 4,300 digits, and no deep lists
        return f"{kind} that cannot be shown"
