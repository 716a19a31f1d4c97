"""The checks that prompts fit into each policy's context and its chat template, before anything is started."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from headrace.envs.contract import Environment
from headrace.envs.messages import as_messages
from headrace.infra.recipe.settings import Policy
from headrace.infra.weights.model_config import read_config, read_context
from headrace.ops.model_check import drop_generation_tags, make_jinja, read_default_template, read_tokenizer

MEASURED_PROMPTS = 16
"""Number of prompts of a workflow that are measured."""


def check_prompts_fit(environment: Environment, name: str, policy: Policy) -> None:
    """Raise ValueError if every one of an environment's first prompts fills a policy's context, so that no answer fits.

    A policy is not checked if its config gives no context length, or its tokenizer is not on this machine. A chat
    template makes prompts longer than this check assumes.
    """
    config = read_config(policy.folder) if policy.path else policy.model
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


class _TemplateRefused(Exception):
    """A chat template called `raise_exception`."""


def check_template_takes_prompt(environment: Environment, name: str, policy: Policy) -> None:
    """Raise ValueError when a policy's chat template refuses an environment's first prompt, such as a system message.

    Only what the template refuses in its own words counts: others may need what transformers alone gives them.
    """
    text = read_default_template(policy.folder) if policy.path else None
    if text is None or environment.size("train") == 0:
        return
    problem = environment.problem("train", 0)
    messages = [dict(message) for message in as_messages(problem.prompt)]
    try:
        _render(text, messages=messages, tools=problem.tools or None, **problem.template_arguments)
    except _TemplateRefused as refused:
        roles = ", ".join(message["role"] for message in messages)
        raise ValueError(
            f"the chat template of policies.{name} refuses the first prompt of environment {environment.name}, whose "
            f"messages are of {roles}: {refused}. Give the prompt in a form that the template "
            "accepts, for example without `system`, or use a model with another template"
        ) from None
    except Exception:  # noqa: BLE001 - what else fails here is no proof
        return


def _render(text: str, **values: Any) -> None:
    """Render a template as transformers does. Raises _TemplateRefused."""

    def refuse(words: str) -> None:
        raise _TemplateRefused(words)

    jinja = make_jinja()
    jinja.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    given = {"bos_token": "", "eos_token": "", "add_generation_prompt": True, "raise_exception": refuse}
    jinja.from_string(drop_generation_tags(text)).render(
        **given, strftime_now=lambda form: datetime.now(UTC).strftime(form), **values
    )


def _choose_counter(policy: Policy) -> Callable[[str], int] | None:
    """Return a function that counts the tokens of a prompt; None if the tokenizer is not on this machine."""
    if policy.alphabet:
        return len  # a character is a token
    tokenizer = read_tokenizer(policy.folder) if policy.path else None
    if tokenizer is None:
        return None

    def count(text: str) -> int:
        try:
            return len(tokenizer.encode(text).ids)
        except Exception:  # noqa: BLE001 - the tokenizers library raises bare Exception for text it cannot encode
            return 0

    return count
