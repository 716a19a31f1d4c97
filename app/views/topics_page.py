"""The page of `headrace topics`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group

from headrace.app.views.columns import make_columns
from headrace.app.views.safe_text import Text

if TYPE_CHECKING:
    from headrace.ops.topic_listing import ListedTopic


def topics_page(listed: Sequence[ListedTopic]) -> Group:
    """Return a table of topics, and below it their settings; equal settings are listed once."""
    is_asked = any(topic.state for topic in listed)
    table = make_columns("topic", "partitions", "kept", "settings", *["state"] * is_asked, pad_edge=True)
    kinds: list[str] = []
    for topic in listed:
        kept = "newest by key" if topic.settings.get("cleanup.policy") == "compact" else "for ever"
        words = " ".join(f"{key}={value}" for key, value in topic.settings.items())
        if words not in kinds:
            kinds.append(words)
        number = str(kinds.index(words) + 1)
        table.add_row(topic.name, str(topic.partitions), kept, number, *([topic.state] if is_asked else []))
    lines = [Text(f"settings {number}: {words}") for number, words in enumerate(kinds, 1)]
    return Group(table, Text(), *lines)
