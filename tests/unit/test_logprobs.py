from typing import Any

import numpy as np
import pytest
import torch
import transformers

from headrace.trainers.batches.batch import MicroBatch, TrainingSequence, pad
from headrace.trainers.learner.logprobs import compute_token_logprobs

VOCABULARY = 20_000
ROWS = 2**20 // (4 * VOCABULARY)
"""Tokens whose logits take a MiB."""
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}


def built(architecture: str = "qwen3", **options: Any) -> transformers.PreTrainedModel:
    config = transformers.AutoConfig.for_model(architecture, **{**SHAPE, **options})
    torch.manual_seed(1)
    model: transformers.PreTrainedModel = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="sdpa"
    )
    model.train(False)
    return model


def micro_batch(trained: int = 45) -> MicroBatch:
    draw = np.random.default_rng(0)
    ids = draw.integers(2, VOCABULARY, 50).astype(np.int32)
    mask = np.arange(50) >= 50 - trained
    versions = np.where(mask, 0, -1).astype(np.int32)
    return pad([TrainingSequence(ids, mask, versions.astype(np.float32), versions, 1.0, 0.8)])


def evaluated(
    model: transformers.PreTrainedModel, micro: MicroBatch, *, logits_mib: int, entropy_gradient: bool = False
) -> list[torch.Tensor]:
    """Log-probabilities, entropies and the gradient of a sum over both."""
    model.zero_grad()
    logprobs, entropies = compute_token_logprobs(model, micro, logits_mib=logits_mib, entropy_gradient=entropy_gradient)
    weights = torch.linspace(-1, 1, len(logprobs))
    loss = (logprobs * weights).sum()
    if entropy_gradient:
        loss = loss + (entropies * weights.square()).sum()
    torch.autograd.backward(loss)
    gradients = [parameter.grad.ravel() for parameter in model.parameters() if parameter.grad is not None]
    return [logprobs.detach(), entropies.detach(), torch.cat(gradients)]


@pytest.mark.parametrize(
    ("architecture", "options", "entropy_gradient"),
    [
        ("qwen3", {"tie_word_embeddings": True}, False),
        ("qwen3", {"tie_word_embeddings": False}, True),
        ("granite", {"logits_scaling": 4.0}, False),
        ("gemma3_text", {"final_logit_softcapping": 3.0}, True),
    ],
)
def test_scores_in_parts_are_those_of_the_whole(
    architecture: str, options: dict[str, Any], entropy_gradient: bool
) -> None:
    model, micro = built(architecture, **options), micro_batch()
    whole = evaluated(model, micro, logits_mib=256, entropy_gradient=entropy_gradient)
    parts = evaluated(model, micro, logits_mib=1, entropy_gradient=entropy_gradient)
    plain = model(torch.from_numpy(micro.ids)).logits.flatten(0, 1)[torch.from_numpy(micro.positions)] / 0.8
    table = plain.log_softmax(-1).detach()
    expected = table.gather(-1, torch.from_numpy(micro.targets)[:, None])[:, 0]
    torch.testing.assert_close(parts[0], expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(parts[1], -(table.exp() * table).sum(-1), atol=1e-5, rtol=1e-5)
    for part, one in zip(parts, whole, strict=True):
        torch.testing.assert_close(part, one, atol=1e-5 * float(one.abs().max()), rtol=1e-5)


def test_no_more_logits_than_allowed_exist_at_a_time_and_the_parts_are_equal() -> None:
    model, micro = built(), micro_batch()
    rows: list[int] = []
    model.lm_head.register_forward_hook(lambda _, inputs, output: rows.append(output.shape[-2]))
    evaluated(model, micro, logits_mib=1)
    assert rows == [12, 12, 12, 9] * 2  # once more in the backward pass
    assert max(rows) <= ROWS
    rows.clear()
    evaluated(model, micro, logits_mib=256)
    assert rows == [45]


def test_the_gradients_of_parts_are_summed_in_fp32_where_the_weights_are_bf16() -> None:
    micro, model = micro_batch(), built(vocab_size=60_000).to(torch.bfloat16)
    gradients = []
    for logits_mib in (256, 1):
        model.zero_grad()
        logprobs, _ = compute_token_logprobs(model, micro, logits_mib=logits_mib)
        torch.autograd.backward(logprobs.sum())
        gradients.append(model.lm_head.weight.grad.float())
    for gradient in gradients:
        gradient[micro.targets] = 0  # a target's own gradient comes from one part
    assert float((gradients[1] - gradients[0]).norm()) < 0.003 * float(gradients[0].norm())


def test_weights_that_are_not_trained_get_no_gradient() -> None:
    model, micro = built(tie_word_embeddings=False), micro_batch()
    model.lm_head.weight.requires_grad_(False)
    evaluated(model, micro, logits_mib=1)
    assert model.lm_head.weight.grad is None
    assert model.model.layers[0].mlp.up_proj.weight.grad is not None
