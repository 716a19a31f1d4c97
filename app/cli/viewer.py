"""The console of a command that only shows: the command ends when nobody reads its output any more."""

from __future__ import annotations

from rich.console import Console


class Viewer(Console):
    """A console whose command ends with exit code 0 when nobody reads its output any more."""

    def on_broken_pipe(self) -> None:
        """End the command; the output goes to the null device from now on."""
        try:
            super().on_broken_pipe()
        except SystemExit:
            raise SystemExit(0) from None
