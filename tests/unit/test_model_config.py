"""A multimodal model, and a context that no prompt fits into, are refused before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from made_recipes import sums_recipe
from tiny_models import TOKENIZER

from headrace.infra.errors import UsageError
from headrace.infra.recipe.settings import Policy
from headrace.infra.weights.model_config import add_former_keys, read_context, refuse_longrope
from headrace.ops.preflight.models import check_model
from headrace.ops.preflight.table import check_names
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.model import build_model, character_tokenizer, load_model

TEXT = {
    "vocab_size": len(TOKENIZER),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "sliding_window": 16,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": None,
}
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789+-=? "
IMAGES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def gemma(folder: Path) -> Any:
    """Save the config and the tokenizer of a tiny model that also reads images; return its config."""
    config = transformers.Gemma3Config(
        text_config=TEXT, vision_config={**IMAGES, "image_size": 28, "patch_size": 14}, mm_tokens_per_image=4
    )
    config.architectures = ["Gemma3ForConditionalGeneration"]
    config.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return config


def test_a_multimodal_model_is_refused_at_the_start_with_what_to_do(tmp_path: Path) -> None:
    gemma(tmp_path)
    said = (
        r"multimodal model \(Gemma3ForConditionalGeneration\), and Headrace trains text models only.*save its text part"
    )
    with pytest.raises(UsageError, match=rf"^policy solver: {tmp_path} is a {said}"):
        check_names(sums_recipe(policies={"solver": {"path": str(tmp_path)}}))
    with pytest.raises(UsageError, match=said):
        load_model(tmp_path)
    with pytest.raises(UsageError, match="architecture = 'gemma3' is a multimodal model"):
        build_model({"architecture": "gemma3"}, TOKENIZER, seed=1)


def test_its_text_part_is_a_model(tmp_path: Path) -> None:
    text = transformers.AutoModelForCausalLM.from_config(gemma(tmp_path).get_text_config())
    assert type(text).__name__ == "Gemma3ForCausalLM"
    text.save_pretrained(tmp_path / "text")
    TOKENIZER.save_pretrained(tmp_path / "text")
    model, _ = load_model(tmp_path / "text")
    limits = Learner(model, sums_recipe().trainer).limits
    assert (limits.vocabulary, limits.positions) == (len(TOKENIZER), 64)


@pytest.mark.parametrize("where", ["rope_scaling", "rope_parameters"])
def test_the_context_of_a_model_with_yarn_is_the_stretched_one(where: str) -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    assert read_context({"max_position_embeddings": 128, where: rope}) == 512
    assert read_context({"max_position_embeddings": 600, where: rope}) == 600, "it is the stretched one already"
    assert read_context({"max_position_embeddings": 128, where: {"rope_type": "linear", "factor": 4.0}}) == 128


@pytest.mark.parametrize(
    ("kind", "changes", "former"),
    [
        (transformers.LlamaConfig, {"rope_theta": 500_000.0}, {"rope_theta": 500_000.0}),
        (
            transformers.Qwen2Config,
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}},
            {"rope_theta": 1e6, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        ),
    ],
)
def test_a_config_has_the_keys_of_positions_that_transformers_4_reads_beside_those_of_5(
    tmp_path: Path, kind: Any, changes: dict[str, Any], former: dict[str, Any]
) -> None:
    config = kind(**changes)
    written = add_former_keys(config.to_dict())
    assert written.items() >= former.items()
    (tmp_path / "config.json").write_text(json.dumps(written))
    read = transformers.AutoConfig.from_pretrained(tmp_path)
    assert read.rope_parameters == config.rope_parameters, "transformers 5 reads what it wrote"


def with_context(context: int) -> Any:
    model = {"architecture": "qwen3", "max_position_embeddings": context}
    return sums_recipe(policies={"solver": {"model": model, "alphabet": ALPHABET}})


def test_a_context_that_no_prompt_fits_into_is_refused_at_the_start() -> None:
    check_names(with_context(64))
    with pytest.raises(UsageError, match=r"prompts of environment arithmetic have \d+ tokens or more.* is 2 "):
        check_names(with_context(2))


def test_a_context_of_a_folder_is_measured_by_its_own_tokenizer(tmp_path: Path) -> None:
    transformers.Qwen3Config(max_position_embeddings=3).save_pretrained(tmp_path)
    recipe = sums_recipe(policies={"solver": {"path": str(tmp_path)}})
    check_names(recipe)  # nothing is known without a tokenizer
    character_tokenizer(ALPHABET).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="so no answer fits"):
        check_names(recipe)


@pytest.mark.parametrize("where", ["rope_scaling", "rope_parameters"])
def test_a_model_whose_positions_depend_on_the_longest_sequence_of_a_batch_is_refused(where: str) -> None:
    rope = {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}
    config = {where: rope, "max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
    with pytest.raises(UsageError, match=r"phi scales positions by LongRoPE.*set max_position_embeddings to 4096 in"):
        refuse_longrope(config, "phi")
    refuse_longrope({**config, "max_position_embeddings": 4096}, "phi")
    refuse_longrope({**config, where: {"rope_type": "llama3"}}, "phi")


def test_such_a_model_is_refused_at_the_start_and_by_the_trainer(tmp_path: Path) -> None:
    config = transformers.Phi3Config(
        hidden_size=16, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=1, intermediate_size=16,
        vocab_size=32, max_position_embeddings=128, original_max_position_embeddings=32, pad_token_id=0,
        rope_scaling={"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"policy solver: .* scales positions by LongRoPE over a context of 128"):
        check_model("solver", Policy(path=str(tmp_path)))
    with pytest.raises(UsageError, match="scales positions by LongRoPE"):
        load_model(tmp_path)
