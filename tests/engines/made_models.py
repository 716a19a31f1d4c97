"""A tiny model with a tokenizer on disk, versions of its weights, and what a plain forward pass says of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from headrace.envs.contract import Generation
from headrace.infra.weights.tensors import Tensor
from headrace.schemas.records import Sampling
from headrace.trainers.learner.model import character_tokenizer

TOKENIZER = character_tokenizer("0123456789/=?+-*() ")
CONTEXT = 1024
SHAPE: dict[str, Any] = {
    "vocab_size": len(TOKENIZER),
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
    "initializer_range": 0.2,
    "eos_token_id": TOKENIZER.eos_token_id,
    "pad_token_id": TOKENIZER.pad_token_id,
    "bos_token_id": None,
}
CONFIG = transformers.Qwen3Config(**SHAPE)
PROMPT: list[int] = TOKENIZER.encode("(1+7)*4=")
SAME = 1e-5
"""Between the log-probabilities of a server and of a plain forward pass of a dense model, both in float32. Measured: up
to 4e-6 in an answer, 7.4e-6 in 148 answers. Weights of another version: more than 0.1."""
SAME_IN_PARTS = 1e-4
"""The same for models whose sums are taken in parts: mixtures of experts, and adapters.

Rounding alone: over the 7,200 tokens of a test, a mixture's plain pass is up to 1.0e-5 from the same pass in float64,
and the server up to 2.1e-5 (1.2e-6 and 1.5e-6 root mean square).
"""


def save_files(folder: Path) -> Path:
    """Write config and tokenizer, as a worker has them before there are weights."""
    CONFIG.architectures = ["Qwen3ForCausalLM"]
    CONFIG.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def make_model(version: int) -> Any:
    """Return a version's model: every version has other weights."""
    torch.manual_seed(version)
    return transformers.Qwen3ForCausalLM(CONFIG).to(torch.float32).eval()


def weights_of(model: Any) -> dict[str, Tensor]:
    """Return the weights as a worker gets them."""
    return {
        name: Tensor("F32", tuple(value.shape), memoryview(value.detach().numpy().tobytes()))
        for name, value in model.named_parameters()
    }


def compute_logprobs(
    model: Any, ids: Sequence[int], generated: int, temperature: float = 1.0
) -> npt.NDArray[np.float32]:
    """Return float32[generated]: what a plain forward pass gives for the last tokens of `ids`."""
    with torch.no_grad():
        logits = model(torch.tensor([list(ids)])).logits[0].float() / temperature
    given = logits.log_softmax(-1)[torch.arange(len(ids) - 1), torch.tensor(list(ids)[1:])]
    found: npt.NDArray[np.float32] = given[-generated:].numpy()
    return found


def compute_masked_logprobs(
    model: Any, ids: Sequence[int], generated: int, sampling: Sampling
) -> npt.NDArray[np.float32]:
    """Return float32[generated]: the same over what min-p, top-k and top-p leave, applied in this order."""
    with torch.no_grad():
        logits = model(torch.tensor([list(ids)])).logits[0].float() / (sampling.temperature or 1.0)
    chances, order = logits.softmax(-1).sort(-1, descending=True)
    chances[chances < sampling.min_p * chances[:, :1]] = 0
    chances[:, sampling.top_k or chances.shape[1] :] = 0
    chances /= chances.sum(-1, keepdim=True)
    chances[chances.cumsum(-1) - chances >= sampling.top_p] = 0
    masked = torch.full_like(logits, -torch.inf).scatter(-1, order, chances.log()).log_softmax(-1)
    found: npt.NDArray[np.float32] = masked[torch.arange(len(ids) - 1), torch.tensor(list(ids)[1:])][
        -generated:
    ].numpy()
    return found


def find_gap(models: Mapping[int, Any], prompt: Sequence[int], made: Generation, temperature: float = 1.0) -> float:
    """Return the largest difference to a plain forward pass by the weights of each token's own version."""
    whole, gap, begin = [*prompt, *made.ids.tolist()], 0.0, 0
    for version, length in made.version_runs:
        plain = compute_logprobs(models[version], whole, len(made.ids), temperature)
        part = slice(begin, begin + length)
        gap = max(gap, float(np.abs(plain[part] - made.logprobs[part]).max(initial=0.0)))
        begin += length
    return gap
