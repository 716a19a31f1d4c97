"""The environment variables that Headrace reads, and which are set. No value is shown: some are secrets."""

from __future__ import annotations

from rich.table import Table

from headrace.infra.environment import FOR_USERS, read_environment


def variables_table() -> Table:
    """Return what `headrace doctor` shows of the environment."""
    shown = Table("environment variable", "", "what it sets", title_justify="left")
    for name, what in FOR_USERS.items():
        shown.add_row(name, "set" if read_environment(name) else "", what)
    return shown
