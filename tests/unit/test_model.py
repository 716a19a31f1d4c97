import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_models import SHAPE, TOKENIZER

from headrace.infra.errors import UsageError
from headrace.infra.weights.tensor_file import encode_safetensors, read_safetensors
from headrace.trainers.learner.model import (
    ModelError,
    build_model,
    character_tokenizer,
    deterministic,
    encode,
    encode_model_files,
    load_model,
    round_to_bf16,
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
    for name, content in encode_model_files(model, TOKENIZER).items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "model.safetensors").write_bytes(encode_safetensors(published))
    assert "lm_head.weight" not in published

    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert encode(tokenizer, "3+4=") == encode(TOKENIZER, "3+4=")
    assert tokenizer.eos_token_id == TOKENIZER.eos_token_id
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert read.dtype is torch.bfloat16
    for name, weight in read.named_parameters():
        assert torch.equal(weight, to_torch(read_safetensors(encode_safetensors(published))[name]))
    again, _ = load_model(tmp_path)
    assert again.dtype is torch.float32


def test_a_tokenizer_with_several_chat_templates_is_published_with_all_of_them(tmp_path: Path) -> None:
    tokenizer = character_tokenizer("0123456789+-= ")
    tokenizer.chat_template = {"default": "{{ messages[0].content }}", "tool_use": "1+{{ messages[0].content }}"}
    for name, content in encode_model_files(build_model(TINY, tokenizer, seed=1), tokenizer).items():
        (tmp_path / name).write_bytes(content)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path).chat_template == tokenizer.chat_template


def change_json(name: str, **more: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | more))

    return change


def change_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})

    return write


UP, NORM = "model.layers.1.mlp.up_proj.weight", "model.norm.weight"
BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "not there": (
        shutil.rmtree,
        "there is no folder .* never downloads a model: download it, for example by `hf download",
    ),
    "a layer missing": (change_weights(lambda held: held.pop(UP)), rf"lacks 1 of the weights .* such as '{UP}'"),
    "another shape": (
        change_weights(lambda held: held.update({NORM: torch.ones(3)})),
        "that transformers reads: Runtime",
    ),
    "no number": (
        change_weights(lambda held: held[NORM].fill_(float("nan"))),
        rf"holds NaN .* '{NORM}': fetch it again",
    ),
    "torn": (
        lambda folder: (folder / "model.safetensors").write_bytes(b"version https://git-lfs"),
        "reads: Safetensor",
    ),
    "quantised": (change_json("config.json", quantization_config={"quant_method": "fp8"}), r"is quantised \(fp8\)"),
    "own code": (
        change_json("config.json", model_type="mine", auto_map={"AutoConfig": "code.Config"}),
        r"Its config\.json names Python code \(auto_map\), which Headrace does not run",
    ),
    "a kind of another type": (change_json("config.json", vocab_size="x"), "that transformers reads: "),
    "no tokenizer": (
        lambda folder: [path.unlink() for path in folder.glob("token*")],
        "holds no tokenizer: put its tokenizer.json beside the weights",
    ),
    "no template": (
        lambda folder: (folder / "chat_template.jinja").write_text("{% for"),
        "chat template .* not a valid Jinja template",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.filterwarnings("ignore")
def test_a_folder_that_is_not_a_whole_model_is_refused_in_a_sentence(
    what: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, (spoil, words) = tmp_path / "model", BROKEN[what]
    folder.mkdir()
    build_model(SHAPE, TOKENIZER, seed=1).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    load_model(folder)
    spoil(folder)
    with pytest.raises(UsageError, match=words):
        load_model(folder)
    assert "[y/N]" not in capfd.readouterr().out, "nobody is asked whether to run code"


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
        ({"vocab_size": 5}, "raise `vocab_size` in the policy's `model`, or leave it out"),
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
