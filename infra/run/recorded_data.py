"""Compares the data on this machine with the data recorded in a run's revisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.infra.errors import UsageError
from headrace.infra.recipe.plug_in_sources import SHOWN_DIGITS
from headrace.schemas.records import ReadData, UsedEnvironment


class OtherData(UsageError):
    """The data on this machine differs from the run's, so a replay would draw other problems."""


def newest_environments(recorded: Iterable[tuple[UsedEnvironment, ...]]) -> tuple[UsedEnvironment, ...]:
    """Return the newest environment of each workflow, from revisions in order; old runs have none."""
    return tuple({one.workflow: one for environments in recorded for one in environments}.values())


def find_data_differences(known: Iterable[UsedEnvironment], here: Iterable[UsedEnvironment]) -> list[str]:
    """Return `data of WORKFLOW, PATH: OLD -> NEW` for data whose content differs from the recorded one.

    For another path the recipe differs, not the data. `find_other_versions` compares the environments' versions.
    """
    before = {one.workflow: one for one in known}
    return [
        f"data of {one.workflow}, {path}: {_describe(old)} -> {_describe(new)}"
        for one in here
        if one.workflow in before
        for path, old, new in _find_changed(before[one.workflow].data, one.data)
    ]


def find_other_versions(
    known: Iterable[UsedEnvironment], here: Iterable[UsedEnvironment]
) -> Iterator[tuple[str, str, str]]:
    """Yield workflow, recorded version and today's version for each environment whose known versions differ."""
    before = {one.workflow: one.version for one in known}
    for one in here:
        if (recorded := before.get(one.workflow)) and one.version and recorded != one.version:
            yield one.workflow, recorded, one.version


def check_data(known: Iterable[UsedEnvironment], here: Iterable[UsedEnvironment]) -> None:
    """Raise OtherData if data differs from the run's; data without a record is accepted."""
    if differing := find_data_differences(known, here):
        raise OtherData(
            "the data on this machine differs from the data of the run:\n"
            + "\n".join(f"  {line}" for line in differing)
            + "\nCopy the run's data here; or, to use this data, stop the run and repeat the command that began it, "
            "with --new-recipe"
        )


def _find_changed(
    old: tuple[ReadData, ...], new: tuple[ReadData, ...]
) -> Iterator[tuple[str, list[ReadData], list[ReadData]]]:
    """Yield each common path with its data on both sides; one path may be read as several splits."""
    for path in dict.fromkeys(one.path for one in new):
        before, after = ([one for one in some if one.path == path] for some in (old, new))
        if before and before != after:
            yield path, before, after


def describe_data(one: ReadData) -> str:
    """Return the number of rows and the first digits of the hash."""
    return f"{one.rows:,} rows, {one.content[:SHOWN_DIGITS]}"


def _describe(some: list[ReadData]) -> str:
    return " and ".join(map(describe_data, some))
