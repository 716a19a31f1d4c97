"""Which data a run goes by: what its revisions record, against what is read here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.infra.errors import UsageError
from headrace.infra.recipe.plug_in_sources import SHOWN_DIGITS
from headrace.schemas.records import ReadData, UsedEnvironment


class OtherData(UsageError):
    """The data here is not that which the run goes by: replayed, it would draw other problems."""


def newest_environments(recorded: Iterable[tuple[UsedEnvironment, ...]]) -> tuple[UsedEnvironment, ...]:
    """Return the environment of each workflow, the newest of each, from revisions in order; old runs have none."""
    return tuple({one.workflow: one for environments in recorded for one in environments}.values())


def find_data_differences(known: Iterable[UsedEnvironment], here: Iterable[UsedEnvironment]) -> list[str]:
    """Return `data of WORKFLOW, PATH: OLD -> NEW` for data that has another content here than recorded.

    Of another path it is the recipe that differs. An environment's version is recorded, and not compared.
    """
    before = {one.workflow: one for one in known}
    return [
        f"data of {one.workflow}, {path}: {_describe(old)} -> {_describe(new)}"
        for one in here
        if one.workflow in before
        for path, old, new in _find_changed(before[one.workflow].data, one.data)
    ]


def check_data(known: Iterable[UsedEnvironment], here: Iterable[UsedEnvironment]) -> None:
    """Raise OtherData where data here is not what the run goes by; data without a record is accepted."""
    if differing := find_data_differences(known, here):
        raise OtherData(
            "the data on this machine differs from the data of the run:\n"
            + "\n".join(f"  {line}" for line in differing)
            + "\nCopy the run's data here; or, to use this data, stop the run and give the command that began it again "
            "with --new-recipe"
        )


def _find_changed(
    old: tuple[ReadData, ...], new: tuple[ReadData, ...]
) -> Iterator[tuple[str, list[ReadData], list[ReadData]]]:
    """Yield each path that both have, with what stands under it; one path may be read as several splits."""
    for path in dict.fromkeys(one.path for one in new):
        before, after = ([one for one in some if one.path == path] for some in (old, new))
        if before and before != after:
            yield path, before, after


def describe_data(one: ReadData) -> str:
    """Return how many rows it has, and the first digits of its hash."""
    return f"{one.rows:,} rows, {one.content[:SHOWN_DIGITS]}"


def _describe(some: list[ReadData]) -> str:
    return " and ".join(map(describe_data, some))
