"""Text on pages. It shows control characters as escapes, because any text may be of a model, a tool or a data set."""

from __future__ import annotations

from typing import Any, cast

import rich.text
from rich.style import Style

from headrace.infra.printable import escape_controls


class Text(rich.text.Text):
    """As rich's; all pages use this one."""

    def __init__(self, text: str = "", style: str | Style = "", **more: Any) -> None:
        super().__init__(escape_controls(text), style, **more)

    @classmethod
    def assemble(cls, *parts: Any, **more: Any) -> Text:
        """Put texts, words, and pairs of words and style together."""
        return cast("Text", super().assemble(*parts, **more))

    def append(self, text: rich.text.Text | str, style: str | Style | None = None) -> Text:
        """Add text with a style."""
        super().append(escape_controls(text) if isinstance(text, str) else text, style)
        return self
