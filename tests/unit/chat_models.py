"""A tokenizer with a chat template like Qwen's, an engine that says prepared texts, and an actor of both."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import transformers

from headrace.infra.weights.policy_files import Tokenizer
from headrace.producers.engines.contract import Generation
from headrace.producers.rollout.play.actor import EngineActor
from headrace.producers.rollout.play.engine_room import EngineRoom, EpisodeClock
from headrace.schemas.records import Sampling

END = "<|im_end|>"
SPECIAL = ["<|endoftext|>", "<|im_start|>", END]
TOOLS_SHOWN = """{% if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}"""
BEGUN = """{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"""
MESSAGE = """<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}
{% if message.role == 'tool' %}<tool_response>{{ message.content }}</tool_response>{% else %}{{ CONTENT }}{% endif %}<|im_end|>
"""  # noqa: E501 - a newline is text here
CHATML = TOOLS_SHOWN + "{% for message in messages %}" + MESSAGE + "{% endfor %}" + BEGUN
KEEPS = CHATML.replace("CONTENT", "message.content")
DROPS_THOUGHTS = CHATML.replace("CONTENT", "message.content.split('</think>')[-1]")
"""Rewrites history, as the templates of many reasoning models do."""


def chat_tokenizer(template: str | None = KEEPS) -> Any:
    """Return a tokenizer of bytes with the special tokens of Qwen and `template`."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: at for at, character in enumerate(alphabet)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    fast: Any = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token=END,
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL,
    )
    fast.chat_template = template
    return fast


def save_tokenizer(folder: Path, template: str | None = KEEPS, context: int = 10_000) -> Tokenizer:
    """Write the files of a policy, and read them as a worker does."""
    chat_tokenizer(template).save_pretrained(folder)
    (folder / "config.json").write_text(f'{{"max_position_embeddings": {context}}}')
    return Tokenizer(folder)


@dataclass
class Prepared:
    """An engine that says prepared texts, and keeps what it was asked."""

    tokenizer: Tokenizer
    texts: list[str]
    asked: list[list[int]] = field(default_factory=list)
    sampled: list[Sampling] = field(default_factory=list)

    async def generate(self, _policy: str, ids: Sequence[int], sampling: Sampling, **_more: Any) -> Generation:
        """See `Engine.generate`."""
        await asyncio.sleep(0)
        self.asked.append(list(ids))
        self.sampled.append(sampling)
        said = np.array(self.tokenizer.encode_plain(self.texts.pop(0)), np.int32)
        is_ended = said[-1] in sampling.stop_ids
        routing = np.arange(len(ids) + len(said) - 1, dtype=np.uint8).reshape(-1, 1, 1)
        logprobs = np.linspace(-1, -0.5, len(said), dtype=np.float32)
        runs = ((3, 2), (4, len(said) - 2))
        return Generation(said, logprobs, runs, "stop" if is_ended else "length", routing)


def prepare_actor(tokenizer: Tokenizer, *texts: str) -> EngineActor:
    """Return an actor that says these texts, one a call."""
    engine: Any = Prepared(tokenizer, list(texts))
    sampling = Sampling(max_tokens=100, stop_ids=tokenizer.stop_ids)
    return EngineActor(engine, "p", tokenizer, sampling, seed=1, version=None, clock=EpisodeClock(1e12, EngineRoom()))
