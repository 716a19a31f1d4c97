"""Which policy versions generated the tokens of trajectories."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.schemas.records import Trajectory


def find_version_range(trajectories: Iterable[Trajectory]) -> tuple[int, int]:
    """Return the oldest and newest version that generated a token, or (-1, -1) if no token was generated."""
    oldest, newest = _NEVER, -1
    for trajectory in trajectories:
        for sequence in trajectory.sequences:
            runs = sequence.version_runs.tolist()
            for at in range(0, len(runs) - 1, 2):
                version = runs[at]
                if version >= 0 and runs[at + 1] > 0:
                    if version < oldest:  # noqa: PLR1730 - a call costs more than all the rest
                        oldest = version
                    if version > newest:  # noqa: PLR1730
                        newest = version
    return (oldest, newest) if newest >= 0 else (-1, -1)


_NEVER = 1 << 31
"""Newer than any version."""
