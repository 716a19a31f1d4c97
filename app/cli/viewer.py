"""The consoles of commands that show something: what happens when nobody reads their output any more."""

from __future__ import annotations

from contextlib import suppress

from rich.console import Console


class AnswerConsole(Console):
    """A console whose command goes on to its own exit code, without output, when nobody reads its output any more."""

    def on_broken_pipe(self) -> None:
        """Send the output to the null device from now on; rich would end the command with exit code 1."""
        with suppress(SystemExit):
            super().on_broken_pipe()


class Viewer(Console):
    """A console whose command ends with exit code 0 when nobody reads its output any more."""

    def on_broken_pipe(self) -> None:
        """End the command; the output goes to the null device from now on."""
        try:
            super().on_broken_pipe()
        except SystemExit:
            raise SystemExit(0) from None
