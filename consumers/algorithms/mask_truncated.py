"""Leaves truncated trajectories out of the loss."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.consumers.algorithms.contract import Candidate, Keep, Rejection, Result, Stateless
from headrace.consumers.algorithms.sizes import keep_or_drop
from headrace.schemas.records import Trajectory


class MaskTruncated(Stateless):
    """Do not train on a trajectory if the last generation of any sequence was cut for its length or cancelled.

    Its reward does not measure what it would have become. It still counts in the group's mean and deviation, unless
    `counted = false`. A group is dropped if nothing is left to train on. Source: DAPO's overlong filtering (arXiv
    2503.14476), TRL's `mask_truncated_completions`.
    """

    def __init__(self, *, cancelled: bool = True, counted: bool = True) -> None:
        self._reasons = {"length", "cancelled"} if cancelled else {"length"}
        self._counted = counted

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:  # noqa: ARG002 - the protocol's
        """Reject trajectories that were cut off; drop the group if nothing is left."""
        members = candidate.group.trajectories
        ends = [(index, self._find_cut(members[index])) for index in candidate.kept]
        rejections = [Rejection(index, "truncated", f"its finish reason is {cut}") for index, cut in ends if cut]
        if not rejections:
            return [Keep(candidate)]
        return [keep_or_drop(candidate.without(rejections, counted=self._counted), "truncated")]

    def _find_cut(self, trajectory: Trajectory) -> str:
        """Return the finish reason of a cut-off sequence's last generation, or an empty text."""
        for sequence in trajectory.sequences:
            last = next((s for s in reversed(sequence.spans) if s.kind == "generated" and s.length), None)
            if last is not None and last.finish_reason in self._reasons:
                return last.finish_reason
        return ""
