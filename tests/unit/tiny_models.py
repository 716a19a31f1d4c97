"""A model of a few thousand weights, and batches that it is trained on."""

from __future__ import annotations

import numpy as np
import transformers

from headrace.trainers.batches.batch import TrainingSequence
from headrace.trainers.learner.model import character_tokenizer

SMALLEST = transformers.Qwen3Config(
    vocab_size=8,
    hidden_size=8,
    intermediate_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=8,
    max_position_embeddings=32,
    tie_word_embeddings=True,
)
"""For what reads names and shapes of weights alone."""
TOKENIZER = character_tokenizer("0123456789+=")
SHAPE = {
    "architecture": "qwen3",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 48,
    "initializer_range": 0.2,
}
EXPERTS = {
    **SHAPE,
    "architecture": "qwen3_moe",
    "num_hidden_layers": 3,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
    "mlp_only_layers": [1],
}


def batch(seed: int, *, version: int = 0, scale: float = 1.0) -> list[TrainingSequence]:
    draw = np.random.default_rng(seed)
    sequences = []
    for index in range(24):
        length = int(draw.integers(4, 12))
        mask = np.arange(length) >= 3
        sequences.append(
            TrainingSequence(
                ids=draw.integers(2, 14, length).astype(np.int32),
                mask=mask,
                behaviour_logprobs=np.where(mask, draw.normal(-2.5, 0.3, length), 0).astype(np.float32),
                versions=np.where(mask, version, -1).astype(np.int32),
                advantage=scale * float(draw.normal()),
                temperature=1.0,
                group=index // 4,
            )
        )
    return sequences
