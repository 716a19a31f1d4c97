"""When a version is overdue, from the times of the versions before it. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

FIRST_MS = 300_000
LEAST_MS = 60_000
TIMES = 5
PACE_LOOK_BACK = 20
"""Number of newest versions from which the usual time is taken. A quarter of them may be longer, because of pauses."""


def patience_ms(made_ms: Iterable[int]) -> int:
    """Return how long a version may take before it is overdue, from the times of the versions before it."""
    times = sorted(made_ms)[-PACE_LOOK_BACK - 1 :]
    took = sorted(later - earlier for earlier, later in pairwise(times))
    if not took:
        return FIRST_MS
    return max(LEAST_MS, TIMES * took[(len(took) - 1) * 3 // 4])


def describe_longest_pause(variant: str, made_ms: Mapping[int, int]) -> str:
    """Return a sentence on the longest pause of a policy or shadow in a finished run; empty if no pause was too long.

    Args:
        variant: Name of the policy or shadow.
        made_ms: Version to when it was made, in ms since the epoch.
    """
    versions = sorted(made_ms)
    late = [
        (made_ms[after] - made_ms[before], after)
        for at, (before, after) in enumerate(pairwise(versions))
        if made_ms[after] - made_ms[before] > patience_ms(made_ms[version] for version in versions[: at + 1])
    ]
    if not late:
        return ""
    longest_ms, version = max(late)
    return (
        f"{variant} made no version for {longest_ms / 1000:,.0f} s before version {version}, including times when the "
        f"run was stopped; this run had {len(late)} pause(s) that were longer than expected"
    )
