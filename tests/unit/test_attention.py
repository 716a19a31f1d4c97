from typing import Any

import numpy as np
import pytest
import torch
import transformers
from some_cases import named

from headrace.trainers.batches.batch import MicroBatch, TrainingSequence, pack, pad
from headrace.trainers.learner.attention import PACKED_ATTENTION, PackingError, enable_packing
from headrace.trainers.learner.logprobs import compute_token_logprobs
from headrace.trainers.learner.model import choose_attention, deterministic

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}
PACKED: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "llama": {},
    "qwen2": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "mistral": {"sliding_window": 8},
    "gemma3_text": {"sliding_window": 8, "final_logit_softcapping": 3.0},
    "granite": {"logits_scaling": 4.0},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
}
LENGTHS = (30, 17, 17, 17, 9, 3, 2)


def built(architecture: str, **options: Any) -> transformers.PreTrainedModel:
    config = transformers.AutoConfig.for_model(architecture, **{**SHAPE, **options})
    torch.manual_seed(1)
    model: transformers.PreTrainedModel = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="sdpa"
    )
    model.train(False)
    return model


def sequences(seed: int = 0) -> list[TrainingSequence]:
    draw = np.random.default_rng(seed)
    made = []
    for group, length in enumerate(LENGTHS):
        mask = draw.random(length) < 0.6
        mask[0], mask[-1] = False, True
        ids = draw.integers(2, 64, length).astype(np.int32)
        versions = np.where(mask, 0, -1).astype(np.int32)
        made.append(TrainingSequence(ids, mask, versions.astype(np.float32), versions, 1.0, 0.9, group))
    return made


def evaluated(model: transformers.PreTrainedModel, micro: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities, and the gradient of a sum over them in which every token weighs differently."""
    model.zero_grad()
    logprobs, _ = compute_token_logprobs(model, micro)
    torch.autograd.backward((logprobs * torch.linspace(-1, 1, len(logprobs)).to(logprobs)).sum())
    gradients = [parameter.grad.ravel() for parameter in model.parameters() if parameter.grad is not None]
    return logprobs.detach(), torch.cat(gradients)


@pytest.mark.parametrize(
    "architecture", named(dict(zip(PACKED, PACKED, strict=True)), "qwen3", "gemma3_text", "qwen3_moe")
)
def test_packed_sequences_have_the_log_probabilities_and_gradients_of_padded_ones(architecture: str) -> None:
    model = built(architecture, **PACKED[architecture])
    logprobs, gradient = evaluated(model, pad(sequences()))
    enable_packing(model)
    packed, packed_gradient = evaluated(model, pack(sequences()))
    torch.testing.assert_close(packed, logprobs, atol=1e-5, rtol=0)
    torch.testing.assert_close(packed_gradient, gradient, atol=1e-5 * float(gradient.abs().max()), rtol=1e-5)
    again, _ = evaluated(model, pad(sequences()))
    assert torch.equal(again, logprobs)


def test_what_one_packed_sequence_says_changes_no_bit_of_the_others() -> None:
    model = built("gemma3_text", **PACKED["gemma3_text"])
    enable_packing(model)
    mine, others = sequences(), sequences(seed=1)
    for index in range(len(mine)):
        micro = pack(mine)
        changed = pack([*mine[:index], others[index], *mine[index + 1 :]])
        before, _ = compute_token_logprobs(model, micro)
        after, _ = compute_token_logprobs(model, changed)
        same, moved = micro.sequences != index, changed.sequences == index
        assert torch.equal(before[torch.from_numpy(same)], after[torch.from_numpy(changed.sequences != index)])
        alone, _ = compute_token_logprobs(model, pack([others[index]]))
        torch.testing.assert_close(after[torch.from_numpy(moved)], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("architecture", "options", "message"),
    [
        pytest.param(
            "lfm2", {"layer_types": ["conv", "full_attention"]}, "does not support: conv", marks=pytest.mark.numerics
        ),
        pytest.param("nemotron", {}, "when another sequence is packed before it", marks=pytest.mark.numerics),
        ("doge", {}, "a mask of its own"),
    ],
)
def test_a_model_that_needs_more_than_packed_attention_gives_is_refused_and_left_alone(
    architecture: str, options: dict[str, Any], message: str
) -> None:
    model = built(architecture, **options)
    with pytest.raises(PackingError, match=message):
        enable_packing(model)
    assert model.config._attn_implementation == "sdpa"


def test_a_model_that_is_deaf_to_the_packing_or_to_its_window_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    windowed = built("mistral", sliding_window=8)
    forward = type(windowed.model.layers[0].self_attn).forward

    def deaf(name: str) -> Any:
        def without(module: torch.nn.Module, *arguments: Any, **options: Any) -> Any:
            return forward(module, *arguments, **{key: value for key, value in options.items() if key != name})

        return without

    monkeypatch.setattr(type(windowed.model.layers[0].self_attn), "forward", deaf("packing"))
    with pytest.raises(PackingError, match="when another sequence is packed before it"):
        enable_packing(windowed)
    monkeypatch.undo()
    for layer in windowed.model.layers:
        layer.self_attn.config = transformers.AutoConfig.for_model("mistral", **SHAPE, sliding_window=None)
        layer.self_attn.config._attn_implementation = PACKED_ATTENTION
    with pytest.raises(PackingError, match="does not pass its sliding window to attention functions"):
        enable_packing(windowed)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_packed_sequences_agree_with_padded_ones_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    model = built("qwen3").to("cuda", torch.bfloat16)
    with deterministic(model.device, torch.bfloat16):
        logprobs, gradient = evaluated(model, pad(sequences()))
        enable_packing(model)
        packed, packed_gradient = evaluated(model, pack(sequences()))
        again, again_gradient = evaluated(model, pack(sequences()))
    assert torch.equal(packed, again)
    assert torch.equal(packed_gradient, again_gradient)
    assert float((packed - logprobs).abs().mean()) < 0.02
    assert float((packed_gradient - gradient).float().norm()) < 0.05 * float(gradient.float().norm())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_a_sliding_window_is_padded_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    model = built("mistral").to("cuda", torch.bfloat16)
    with deterministic(model.device, torch.bfloat16):
        logprobs, _ = evaluated(model, pad(sequences()))
        again, _ = evaluated(model, pad(sequences()))
    assert torch.equal(logprobs, again)


def test_where_flash_attention_may_refuse_a_mask_there_is_another_kernel() -> None:
    flash, plain = torch.nn.attention.SDPBackend.FLASH_ATTENTION, torch.nn.attention.SDPBackend.MATH
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert choose_attention(cuda, torch.bfloat16) == [flash, plain]
    assert choose_attention(cuda, torch.float32) == [plain]
    assert choose_attention(cpu, torch.float32) == [flash]
