"""What a model's config says before any model is built: whether it is a text model, and how long its context is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.infra.errors import UsageError

PART_CONFIGS = ("text_config", "vision_config", "audio_config")
"""Names of configs for parts that only a multimodal model has."""

EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names that configs use for the number of experts in a layer."""


def read_config(folder: str | Path) -> Mapping[str, Any] | None:
    """Return the content of a folder's config.json; None where it is missing or cannot be read."""
    try:
        found = json.loads((Path(folder) / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def refuse_other_media(config: Mapping[str, Any], what: str) -> None:
    """Raise UsageError for a model that reads more than text: it has other files, and needs other inputs per step.

    Args:
        config: Content of config.json.
        what: Names the model in the message.
    """
    if any(isinstance(config.get(part), dict) for part in PART_CONFIGS):
        kind = ", ".join(config.get("architectures") or [str(config.get("model_type"))])
        raise UsageError(
            f"{what} is a multimodal model ({kind}), and Headrace trains text models only: save its text part as a "
            'model of its own (docs/recipes.md, "The text part of a multimodal model"), and set the path to that folder'
        )


def refuse_quantised(config: Mapping[str, Any], what: str) -> None:
    """Raise UsageError for quantised weights, such as FP8, MXFP4, GPTQ and AWQ: they cannot be trained."""
    quantised = config.get("quantization_config")
    if isinstance(quantised, dict):
        raise UsageError(
            f"{what} is quantised ({quantised.get('quant_method', 'quantization_config')}), but quantised weights "
            "cannot be trained: take the model's bf16 weights, or save the model dequantised, without "
            "quantization_config"
        )


def refuse_longrope(config: Mapping[str, Any], what: str) -> None:
    """Raise UsageError for positions that are scaled by the longest sequence of a batch, as in LongRoPE (2402.13753).

    Transformers uses one of two lists of frequencies for all rows of a batch: the choice depends on whether any row is
    longer than the model's original context. A token's log-probability would depend on the other rows of the batch.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if {"longrope", "su"}.isdisjoint({rope.get("rope_type"), rope.get("type")}):
        return
    original = config.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
    context = read_context(config)
    if original and context and context <= original:
        return
    over = f" over a context of {context} tokens" if context else ""
    raise UsageError(
        f"{what} scales positions by LongRoPE{over}, so log-probabilities would depend on the other sequences "
        "of a batch. Copy the model, set max_position_embeddings to "
        f"{original or 'its original context'} in the config.json of the copy, and train with sequences of at most "
        "that length"
    )


def read_context(config: Mapping[str, Any]) -> int | None:
    """Return how many tokens a sequence may have, by the config of the model or of its text model; None if unknown."""
    text = config.get("text_config") or {}
    found = config.get("max_position_embeddings") or text.get("max_position_embeddings")
    if not isinstance(found, int):
        return None
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    original, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
    is_yarn = "yarn" in {rope.get("rope_type"), rope.get("type")}
    if is_yarn and isinstance(original, int) and isinstance(factor, int | float):
        return max(found, int(original * factor))  # many configs keep the length before YaRN (2309.00071)
    return found


def add_former_keys(config: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a config.json with the keys of positions that transformers 4 reads beside those of 5.

    Transformers 4 ignores `rope_parameters`, and takes a default of its own instead: it would be another model.
    """
    rope = config.get("rope_parameters")
    if not isinstance(rope, dict):
        return config
    whole = rope.get("full_attention", rope)
    former: dict[str, Any] = {}
    if "rope_theta" in whole:
        former["rope_theta"] = whole["rope_theta"]
    if whole.get("rope_type", "default") != "default":
        former["rope_scaling"] = {name: value for name, value in whole.items() if name != "rope_theta"}
    if "rope_theta" in (local := rope.get("sliding_attention") or {}):
        former["rope_local_base_freq"] = local["rope_theta"]
    return {**former, **config}
