"""Lines between pages: what a command reports while it works."""

from __future__ import annotations

from rich.console import Console


def say(console: Console, words: str, style: str = "none") -> None:
    """Print a line that says who speaks. Words may hold markup; escape what others wrote."""
    console.print(f"[dim]headrace:[/] [{style}]{words}[/]", highlight=False, soft_wrap=True)
