"""Progress lines that a command prints between pages."""

from __future__ import annotations

from rich.console import Console


def say(console: Console, words: str, style: str = "none") -> None:
    """Print a line with the prefix `headrace:`. Words may hold markup; escape text from elsewhere."""
    console.print(f"[dim]headrace:[/] [{style}]{words}[/]", highlight=False, soft_wrap=True)
