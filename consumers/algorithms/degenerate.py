"""Common base of algorithms that flag degenerate generations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from headrace.consumers.algorithms.contract import Candidate, Keep, Rejection, Result
from headrace.consumers.algorithms.sizes import keep_or_drop
from headrace.schemas.records import Sequence, Trajectory


class Flagging:
    """Base of algorithms that leave flagged trajectories out of the loss, or only monitor.

    Flagged trajectories still count in the group's statistics. The snapshot holds their number. With `monitor` nothing
    is left out, and flagged trajectories are listed in `Candidate.flagged`.
    """

    def __init__(self, reason: str, *, monitor: bool) -> None:
        self.flagged = 0
        """Number of trajectories flagged so far."""
        self._reason = reason
        self._monitor = monitor

    def find_fault(self, trajectory: Trajectory) -> str:
        """Return why a trajectory is flagged, or an empty text."""
        raise NotImplementedError

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:  # noqa: ARG002 - the protocol's
        """Look at every kept trajectory."""
        members = candidate.group.trajectories
        faults = [(index, self.find_fault(members[index])) for index in candidate.kept]
        found = tuple(Rejection(index, self._reason, fault) for index, fault in faults if fault)
        self.flagged += len(found)
        if not found:
            return [Keep(candidate)]
        if self._monitor:
            return [Keep(replace(candidate, flagged=candidate.flagged + found))]
        return [keep_or_drop(candidate.without(found), self._reason)]

    def snapshot(self) -> dict[str, Any]:
        """Return the count."""
        return {"flagged": self.flagged}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the count."""
        self.flagged = int(state["flagged"])


def iterate_generated_stretches(sequence: Sequence, tokens: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Yield the tokens [n] of every unbroken run of generated tokens; `tokens` is [T]."""
    begin = end = 0
    for span in sequence.spans:
        if span.kind == "generated":
            end += span.length
        elif span.length:
            if end > begin:
                yield tokens[begin:end]
            begin = end = end + span.length
    if end > begin:
        yield tokens[begin:end]
