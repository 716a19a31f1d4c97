"""How much was generated for a group."""

from __future__ import annotations

from headrace.schemas.records import TrajectoryGroup


def count_generated(group: TrajectoryGroup) -> tuple[int, ...]:
    """Return the number of generated tokens of each trajectory, as outcomes carry them.

    Of a sequence it is never more than its ids, whatever the spans of a malformed one claim.
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
