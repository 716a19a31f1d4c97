"""Counts the generated tokens of a group."""

from __future__ import annotations

from headrace.schemas.records import TrajectoryGroup


def count_generated(group: TrajectoryGroup) -> tuple[int, ...]:
    """Return the number of generated tokens of each trajectory, for outcomes.

    A sequence counts at most its ids, even if its spans are malformed and claim more.
    """
    lengths = []
    for member in group.trajectories:
        length = 0
        for sequence in member.sequences:
            claimed = 0
            for span in sequence.spans:
                if span.kind == "generated":
                    claimed += span.length
            length += max(0, min(claimed, sequence.ids.size))
        lengths.append(length)
    return tuple(lengths)
