"""LoRA adapters as peft makes and names them: what a trainer and an engine must agree on.

In a model with an adapter, each adapted layer is wrapped in one of peft's. This file is cheap to import: peft, and
torch with it, is imported only when an adapter is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

ADAPTER = "default"
"""peft's name of the only adapter that a model has here; it is not published."""
_IN_FILES, _IN_MODEL = "base_model.model.", f".{ADAPTER}."


def build_adapter_config(rank: int, alpha: float, targets: Iterable[str]) -> dict[str, Any]:
    """Return the content of `adapter_config.json`, with the fields that every reader of peft's files needs."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(targets),
        "inference_mode": True,
    }


def add_adapter(model: Any, config: Mapping[str, Any]) -> None:
    """Put an adapter on a transformers model, in place: A is drawn from torch's random state, B is zero.

    From then on only the adapter is trained.
    """
    from peft import LoraConfig, inject_adapter_in_model

    shape = {key: config[key] for key in ("r", "lora_alpha", "target_modules")}
    inject_adapter_in_model(LoraConfig(**shape), model)


def map_published_names(names: Iterable[str]) -> dict[str, str]:
    """Return the names under which a model's parameters are published, each with the one that it has in the model.

    For a model with an adapter these are only the adapter's, with the names in peft's files. For any other model they
    are all parameters, with Hugging Face's names, which are the model's own.
    """
    own = list(names)
    adapters = {f"{_IN_FILES}{name.replace(_IN_MODEL, '.')}": name for name in own if _is_adapters(name)}
    return adapters or {name: name for name in own}


def base_name(name: str) -> str | None:
    """Return the Hugging Face name of a base's parameter in a model with an adapter; None for the adapter's own."""
    return None if _is_adapters(name) else name.replace(".base_layer.", ".")


def _is_adapters(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name
