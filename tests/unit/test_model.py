from pathlib import Path

import pytest
import torch
import transformers
from tiny_models import SHAPE, TOKENIZER

from headrace.infra.weights.tensor_file import read_safetensors, write_safetensors
from headrace.trainers.learner.model import (
    ModelError,
    build_model,
    character_tokenizer,
    deterministic,
    encode,
    load_model,
    round_to_bf16,
    save_model_files,
    to_torch,
)

TINY = {**SHAPE, "tie_word_embeddings": True}


def test_a_character_is_a_token_and_comes_back_as_itself() -> None:
    tokenizer = character_tokenizer("01+ =\n\\{}")
    ids = encode(tokenizer, "1 + 0=\n\\{1}")
    assert len(ids) == 11
    assert tokenizer.decode(ids) == "1 + 0=\n\\{1}"
    assert tokenizer.decode([tokenizer.pad_token_id, *ids, tokenizer.eos_token_id], skip_special_tokens=True)[0] == "1"


def test_the_published_folder_is_read_by_plain_transformers(tmp_path: Path) -> None:
    model = build_model(TINY, TOKENIZER, seed=1)
    published = round_to_bf16(dict(model.named_parameters()))
    for name, content in save_model_files(model, TOKENIZER).items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "model.safetensors").write_bytes(write_safetensors(published))
    assert "lm_head.weight" not in published

    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert encode(tokenizer, "3+4=") == encode(TOKENIZER, "3+4=")
    assert tokenizer.eos_token_id == TOKENIZER.eos_token_id
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert read.dtype is torch.bfloat16
    for name, weight in read.named_parameters():
        assert torch.equal(weight, to_torch(read_safetensors(write_safetensors(published))[name]))
    again, _ = load_model(tmp_path)
    assert again.dtype is torch.float32


def test_a_model_is_the_same_for_a_seed_and_leaves_the_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    one, two, other = (round_to_bf16(dict(build_model(TINY, TOKENIZER, seed=s).named_parameters())) for s in (1, 1, 2))
    assert one == two
    assert one != other
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "qwen33"}, "qwen33"),
        ({"hiden_size": 64}, "did you mean 'hidden_size'"),
        ({"vocab_size": 5}, "not made for each other"),
    ],
)
def test_a_model_that_cannot_be_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build_model({**TINY, **change}, TOKENIZER, seed=1)


def test_training_computes_with_deterministic_algorithms_and_one_attention_kernel() -> None:
    kernels = torch.backends.cuda

    def enabled() -> tuple[bool, bool, bool]:
        return kernels.flash_sdp_enabled(), kernels.math_sdp_enabled(), kernels.mem_efficient_sdp_enabled()

    before = torch.are_deterministic_algorithms_enabled(), enabled()
    with deterministic(torch.device("cpu"), torch.float32):
        assert torch.are_deterministic_algorithms_enabled()
        assert enabled() == (True, False, False)
    assert (torch.are_deterministic_algorithms_enabled(), enabled()) == before
