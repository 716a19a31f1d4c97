"""The page of `headrace try --api`: what was said in each episode, and its reward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding

from headrace.app.views.columns import make_facts
from headrace.app.views.inspection_page import SPAN_STYLES, crop
from headrace.app.views.safe_text import Text
from headrace.app.views.trial_page import describe_count, show_failures, show_solutions

if TYPE_CHECKING:
    from headrace.ops.offline.api_trial import ApiTried, Conversation, EpisodePlayed


def api_trial_page(tried: ApiTried) -> RenderableType:
    """Return what `headrace try --api` shows."""
    episodes = {one.episode for one in tried.played} | {one.episode for one in tried.failures}
    said = f"  {describe_count(len(episodes), 'episode')} by {tried.model} in {tried.seconds:.1f} s: nothing is trained"
    parts: list[RenderableType] = [Text.assemble((tried.recipe, "bold"), said)]
    if tried.solutions:
        parts += [Text(), *show_solutions(tried.solutions)]
    for one in tried.played:
        parts += [Text(), _show_title(one), *map(_show_conversation, one.conversations)]
    if tried.failures:
        title = f"{len(tried.failures)} of {describe_count(len(episodes), 'episode')} failed"
        parts += [Text(), *show_failures(title, tried.failures)]
    if tried.tool_errors:
        parts += [Text(), *show_failures("a tool failed, and the model read its error", tried.tool_errors)]
    if tried.played:
        mean = sum(one.reward for one in tried.played) / len(tried.played)
        parts += [Text(), Text(f"mean reward {mean:.2f}", style="bold")]
    return Group(*parts)


def _show_title(one: EpisodePlayed) -> Text:
    parts = "".join(f"  {name} {value:g}" for name, value in one.parts.items() if value)
    style = "green" if one.reward > 0 else "yellow"
    return Text.assemble(
        (one.episode, "bold"), f"  {one.role}  {one.task_id}  ", (f"reward {one.reward:g}", style), parts
    )


def _show_conversation(conversation: Conversation) -> RenderableType:
    table = make_facts(fold=True)
    if conversation.agent_id:
        table.add_row("agent", conversation.agent_id)
    for message in conversation.messages:
        role = str(message["role"])
        style = SPAN_STYLES["generated"] if role == "assistant" else ""
        table.add_row(role, Text(crop(str(message.get("content") or "")), style=style))
    return Padding(table, (0, 0, 0, 2))
