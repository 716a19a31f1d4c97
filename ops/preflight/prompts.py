"""The checks that prompts fit into each policy's context and its chat template, before anything is started."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from headrace.envs.contract import Environment, tool_name
from headrace.envs.messages import as_messages
from headrace.infra.recipe.settings import Policy
from headrace.infra.weights.model_config import read_config, read_context
from headrace.infra.weights.prompt_tokens import render_calls
from headrace.ops.preflight.contract import Doubt
from headrace.ops.preflight.models import drop_generation_tags, make_jinja, read_default_template, read_tokenizer

_Render = Callable[[Sequence[Mapping[str, Any]]], str]
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

    Only what the template refuses in its own words is sure. Raises Doubt for any other error of it, because it may need
    what transformers alone gives it, and if it leaves out tools.
    """
    text = read_default_template(policy.folder) if policy.path else None
    if environment.size("train") == 0 or (text is None and policy.path and not policy.folder.is_dir()):
        return
    problem = environment.problem("train", 0)
    tools = [tool_name(tool) for tool in problem.tools]
    if text is None:
        _doubt_hidden(environment, name, tools)
        return
    messages = [dict(message) for message in as_messages(problem.prompt)]
    render = _compile(text, tools=problem.tools or None, **problem.template_arguments)
    if render is None:
        return
    try:
        shown = render_calls(render, messages)
    except Exception as error:  # noqa: BLE001 - a template may raise anything
        at = _find_message(render, messages, error)
        said = f"of environment {environment.name}, at message {at} ({messages[at]['role']})"
        if not isinstance(error, _TemplateRefused):
            raise Doubt(
                f"the chat template of policies.{name} fails on the first prompt {said}: {type(error).__name__}: "
                f"{error}. Compare the message with what the template reads"
            ) from None
        roles = ", ".join(message["role"] for message in messages)
        raise ValueError(
            f"the chat template of policies.{name} refuses the first prompt {said}; its messages are of {roles}: "
            f"{error}. Give the prompt in a form that the template accepts, for example without `system`, or use a "
            "model with another template"
        ) from None
    _doubt_hidden(environment, name, [tool for tool in tools if tool not in shown])


def _doubt_hidden(environment: Environment, name: str, hidden: Sequence[str]) -> None:
    """Raise Doubt if there are tools that a chat template does not show."""
    if hidden:
        raise Doubt(
            f"policies.{name} has no chat template that shows the tools of environment {environment.name}: "
            f"{', '.join(hidden)}. A chat with these tools fails: use a template that shows tools, or describe them in "
            "the prompt"
        )


def _find_message(render: _Render, messages: list[dict[str, Any]], error: Exception) -> int:
    """Return the index of the message with which a template's error begins."""
    for count in range(1, len(messages)):
        try:
            render_calls(render, messages[:count])
        except Exception as other:  # noqa: BLE001 - a template may raise anything
            if str(other) == str(error):
                return count - 1
    return len(messages) - 1


def _compile(text: str, **values: Any) -> _Render | None:
    """Return a function that renders messages by a template as transformers does; None if it needs transformers."""
    from jinja2 import TemplateError

    def refuse(words: str) -> None:
        raise _TemplateRefused(words)

    jinja = make_jinja()
    jinja.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    given = {"bos_token": "", "eos_token": "", "add_generation_prompt": True, "raise_exception": refuse}
    given["strftime_now"] = lambda form: datetime.now(UTC).strftime(form)
    try:
        template = jinja.from_string(drop_generation_tags(text))
    except TemplateError:
        return None
    return lambda messages: template.render(messages=messages, **given, **values)


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
