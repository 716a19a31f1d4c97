"""Which environment and data a run has, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.schemas.records import UsedEnvironment

SHOWN = 12
"""Digits of a hash that are shown; `--json` has all."""


def environment_lines(environments: Iterable[UsedEnvironment]) -> Iterator[str]:
    """Yield a line for the environment of each workflow."""
    for one in environments:
        data = "; ".join(f"{source.path}, {source.rows:,} rows, {source.content[:SHOWN]}" for source in one.data)
        package = f" ({one.version})" if one.version else ""
        yield f"{one.workflow}: {one.name}{package}{': ' * bool(data)}{data}"
