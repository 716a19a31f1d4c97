"""Which environment and data a run has, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.infra.run.recorded_data import describe_data
from headrace.schemas.records import UsedEnvironment


def environment_lines(environments: Iterable[UsedEnvironment]) -> Iterator[str]:
    """Yield a line for the environment of each workflow."""
    for one in environments:
        data = "; ".join(f"{source.path}, {describe_data(source)}" for source in one.data)
        package = f" ({one.version})" if one.version else ""
        yield f"{one.workflow}: {one.name}{package}{': ' * bool(data)}{data}"
