"""Gets a trainer past a batch that ends its process, for example out of memory on a long sequence. No I/O.

Without this, the same groups would form the same batch at every start, and no further version would come. So the first
step after a start is noted on the log before it begins. If noted steps to a version never ended, the version gets a
batch with a sixteenth of the groups, then a sixteenth of these, down to the smallest batch. If the smallest batch ends
the process too, its groups leave the window as dead letters with reason `poison`. If a smaller batch works, it becomes
a version, and the next batches are as small, each noted, until a whole batch's number of groups is through. No other
step runs beside a noted one, so that its death cannot be blamed on the wrong step.
"""

from __future__ import annotations

from dataclasses import dataclass

WHOLE_TRIES = 3
"""Noted steps with a whole batch before a smaller batch is tried. So kills from outside cost no groups, unless they
hit the same version four times."""
BITS_A_DEATH = 4
"""Each death divides the batch by this: few steps are needed before the supervisor gives up."""


@dataclass(slots=True)
class Trials:
    """The trials of one trainer process."""

    full: int
    """Groups of a whole batch."""
    unit: int
    """Groups of the smallest batch; every smaller batch is a multiple of it."""
    version: int
    """Version of the next step under trial: the first after a start, or the next of small batches."""
    died: int = 0
    """Noted steps to this version that never ended."""
    suspects: int = 0
    """Groups still to go through small batches."""
    is_noted: bool = False
    """Whether the step to this version must be noted: after every start except the run's first."""
    noted: int = -1
    """The last version whose step this process has noted."""

    def __post_init__(self) -> None:
        self.suspects = self.suspects or self.full

    def groups(self, version: int) -> int:
        """Return the number of groups for a version's batch."""
        if not self._smaller or version != self.version:
            return self.full
        groups = min(self._at(self._smaller), self.suspects)
        return max(self.unit, groups // self.unit * self.unit)

    def is_poison(self, version: int) -> bool:
        """Return whether even the smallest batch has ended the process."""
        return version == self.version and self._smaller > 0 and self._at(self._smaller - 1) <= self.unit

    def note(self, version: int) -> int:
        """Return how often the step to a version was begun, this time included; 0 if it need not be noted."""
        if not self.is_noted or version != self.version:
            return 0
        self.is_noted, self.noted = False, version
        return self.died + 1

    def has_to_wait(self, version: int) -> bool:
        """Return whether the step to a version may begin only when the last version is on the log."""
        return version == self.noted + 1

    def note_version(self, version: int, groups: int) -> None:
        """Take in that a version was made from this number of groups."""
        if version != self.version:
            return
        self.suspects -= groups
        if self._smaller and self.suspects > 0:
            self.version, self.is_noted = version + 1, True
        else:
            self.died = 0

    def restore_whole_batch(self) -> None:
        """Start again with a whole batch, because the poison is removed; the next step is noted again."""
        self.died, self.suspects, self.is_noted = 0, self.full, True

    @property
    def _smaller(self) -> int:
        """How many times the batch is divided."""
        return max(0, self.died + 1 - WHOLE_TRIES)

    def _at(self, smaller: int) -> int:
        return self.full >> BITS_A_DEATH * smaller
