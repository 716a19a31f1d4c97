"""The check that prompts fit into each policy's context, before anything is started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.envs.contract import Environment
from headrace.infra.recipe.settings import Policy
from headrace.infra.weights.model_config import read_config, read_context
from headrace.ops.model_check import read_tokenizer

MEASURED_PROMPTS = 16
"""Number of prompts of a workflow that are measured."""


def check_prompts_fit(environment: Environment, name: str, policy: Policy) -> None:
    """Raise ValueError if every one of an environment's first prompts fills a policy's context, so that no answer fits.

    A policy is not checked if its config gives no context length, or its tokenizer is not on this machine. A chat
    template makes prompts longer than this check assumes.
    """
    config = read_config(policy.path) if policy.path else policy.model
    context = read_context(config) if config is not None else None
    count = _choose_counter(policy)
    if context is None or count is None:
        return
    size = environment.size("train")
    asked = range(MEASURED_PROMPTS if size is None else min(size, MEASURED_PROMPTS))
    lengths = [count(environment.problem("train", index).text) for index in asked]
    if lengths and min(lengths) >= context:
        raise ValueError(
            f"the first {len(lengths)} prompts of environment {environment.name} have {min(lengths)} tokens or more, "
            f"but the context of policies.{name} is {context} (max_position_embeddings), so no answer fits: shorten "
            "the prompts, or use a model with a longer context"
        )


def _choose_counter(policy: Policy) -> Callable[[str], int] | None:
    """Return a function that counts the tokens of a prompt; None if the tokenizer is not on this machine."""
    if policy.alphabet:
        return len  # a character is a token
    tokenizer = read_tokenizer(Path(policy.path)) if policy.path else None
    if tokenizer is None:
        return None

    def count(text: str) -> int:
        try:
            return len(tokenizer.encode(text).ids)
        except Exception:  # noqa: BLE001 - the tokenizers library raises bare Exception for text it cannot encode
            return 0

    return count
