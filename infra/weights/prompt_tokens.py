"""Text to tokens with the special tokens that belong there; trainers and actors do it alike.

A tokenizer is one of transformers. What begins a sequence has its tokens before it, such as one BOS, once also where a
chat template writes it out; what is spliced in later has none.
"""

from __future__ import annotations

from typing import Any


def encode_prompt(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of a user's turn that begins a sequence, and of the prompt for an answer.

    The chat template is applied if there is one. The special tokens before it are those that `tokenizer(text)` puts
    there. None is put after it, as a generation goes on from here.
    """
    if tokenizer.chat_template:
        turn = [{"role": "user", "content": text}]
        text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    ids, before = encode_plain(tokenizer, text), find_start_tokens(tokenizer)
    return ids if ids[: len(before)] == before else [*before, *ids]


def encode_plain(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of text as it is, no special token added."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def find_start_tokens(tokenizer: Any) -> list[int]:
    """Return the special tokens that a tokenizer puts before a text: what it makes of none, less an EOS at its end.

    An EOS that is the BOS, too, stays.
    """
    ids: list[int] = tokenizer.encode("", add_special_tokens=True)
    after = {tokenizer.eos_token_id, tokenizer.sep_token_id} - {tokenizer.bos_token_id, None}
    while ids and ids[-1] in after:
        ids.pop()
    return ids
