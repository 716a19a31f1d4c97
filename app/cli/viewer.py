"""The consoles of commands: they print control characters as escapes, and survive the end of their reader."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.text import Text

from headrace.infra.printable import escape_controls


class SafeConsole(Console):
    """A console that shows control characters in words as escapes, as `safe_text.Text` does in texts."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return words as a text."""
        return super().render_str(escape_controls(text), **options)


class AnswerConsole(SafeConsole):
    """A console whose command goes on to its own exit code, without output, when nobody reads its output any more."""

    def on_broken_pipe(self) -> None:
        """Send the output to the null device from now on; rich would end the command with exit code 1."""
        with suppress(SystemExit):
            super().on_broken_pipe()


class Viewer(SafeConsole):
    """A console whose command ends with exit code 0 when nobody reads its output any more."""

    def on_broken_pipe(self) -> None:
        """End the command; the output goes to the null device from now on."""
        try:
            super().on_broken_pipe()
        except SystemExit:
            raise SystemExit(0) from None
