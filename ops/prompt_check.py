"""The check that a prompt fits into each policy's context, before anything is started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.envs.contract import Environment
from headrace.infra.errors import UsageError
from headrace.infra.recipe.settings import Policy
from headrace.infra.weights.model_config import read_config, read_context, refuse_other_media, refuse_quantised

LOOKED_AT = 16
"""Prompts of a workflow that are measured."""


def check_model(name: str, policy: Policy) -> None:
    """Raise UsageError for a folder whose model cannot be trained, as far as its config tells.

    A folder that is not here may be there where the trainer runs.
    """
    config = read_config(policy.path) if policy.path else policy.model
    if config is not None:
        what = f"policy {name}: {policy.path or 'its model'}"
        refuse_other_media(config, what)
        refuse_quantised(config, what)


def check_prompts_fit(environment: Environment, name: str, policy: Policy) -> None:
    """Raise ValueError when each of an environment's first prompts fills a policy's context, so that no answer fits.

    Nothing is known of a policy without a context in its config, or without a tokenizer that is here. A chat template
    makes prompts longer than they are taken for.
    """
    config = read_config(policy.path) if policy.path else policy.model
    context = read_context(config) if config is not None else None
    count = _choose_counter(policy)
    if context is None or count is None:
        return
    size = environment.size("train")
    asked = range(LOOKED_AT if size is None else min(size, LOOKED_AT))
    lengths = [count(environment.problem("train", index).text) for index in asked]
    if lengths and min(lengths) >= context:
        raise ValueError(
            f"the first {len(lengths)} prompts of environment {environment.name} have {min(lengths)} tokens or more, "
            f"and the context of policies.{name} is {context} (max_position_embeddings), so no answer fits: shorten "
            "the prompts, or take a model with a longer context"
        )


def _choose_counter(policy: Policy) -> Callable[[str], int] | None:
    """Return what counts the tokens of a prompt; None where the tokenizer is not here."""
    if policy.alphabet:
        return len  # a character is a token
    file = Path(policy.path) / "tokenizer.json"
    if not file.is_file():
        return None
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the tokenizers library raises bare Exception
        raise UsageError(f"{file} is no tokenizer: {error}") from error

    def count(text: str) -> int:
        try:
            return len(tokenizer.encode(text).ids)
        except Exception:  # noqa: BLE001 - the tokenizers library raises bare Exception for what it cannot spell
            return 0

    return count
