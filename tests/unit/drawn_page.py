"""What a person sees of a page of a command."""

from typing import Any

from rich.console import Console


def drawn(page: Any, width: int = 80) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(page)
    return captured.get()
