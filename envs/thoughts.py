"""What of a completion is the answer: the text outside thoughts, which stand between `<think>` and `</think>`.

All scorers, judges and the parser of tool calls ask this file, so none of them finds an answer in what a policy only
considered.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from headrace.envs.contract import Actor

BEGIN, END = "<think>", "</think>"
_THOUGHT = re.compile(rf"{BEGIN}.*?(?:{END}|\Z)", re.DOTALL)
_LAST_TOKENS = 16
"""Tokens at the end of a prompt in which `<think>` is looked for: it may be one for each byte."""


def read_answer(text: str, *, is_thinking: bool = False) -> str:
    """Return a completion without its thoughts; the arguments are those of `find_thoughts`."""
    at, parts = 0, []
    for begin, end in find_thoughts(text, is_thinking=is_thinking):
        parts.append(text[at:begin])
        at = end
    return "".join([*parts, text[at:]])


def find_thoughts(text: str, *, is_thinking: bool = False) -> list[tuple[int, int]]:
    """Return where thoughts begin and end; one that is not ended, as in a cut completion, goes to the end.

    Args:
        text: The completion. If `</think>` comes before any `<think>`, it begins inside a thought: many chat templates
            end the prompt with `<think>`.
        is_thinking: Whether the prompt ends so. Without it, a thought that does not end cannot be told from an answer.
    """
    before, end, _ = text.partition(END)
    begun = len(before) + len(end) if is_thinking or (end and BEGIN not in before) else 0
    return [*([(0, begun)] if begun else []), *(found.span() for found in _THOUGHT.finditer(text, begun))]


def find_outside(pattern: re.Pattern[str], text: str, thoughts: Sequence[tuple[int, int]]) -> list[re.Match[str]]:
    """Return the matches in a text that do not begin inside its thoughts, which are in order."""
    begins = [begin for begin, _ in thoughts]
    return [
        found
        for found in pattern.finditer(text)
        if not ((at := bisect(begins, found.start())) and found.start() < thoughts[at - 1][1])
    ]


def is_within_thought(actor: Actor, prompt: Sequence[int]) -> bool:
    """Return whether the tokens of a prompt end with `<think>`."""
    return actor.decode(prompt[-_LAST_TOKENS:], special_tokens=True).rstrip().endswith(BEGIN)


def decode_completion(actor: Actor, ids: npt.NDArray[np.int32], *, is_thinking: bool) -> str:
    """Return the text of generated tokens, with the `<think>` of the prompt where the text does not show a thought."""
    text = actor.decode(ids)
    before, end, _ = text.partition(END)
    return f"{BEGIN}{text}" if is_thinking and (not end or BEGIN in before) else text
