"""How a trainer comes past a batch that ends its process: out of memory on one long sequence, say. No I/O.

The same groups would be cut to the same batch at every start, and no version would come any more. So the first step
after a start is noted on the log before it begins. A version to which noted steps never ended gets a batch of a
sixteenth of the groups, then of a sixteenth of these, down to the smallest. If that ends the process too, its groups
leave the window as dead letters of reason `poison`. A smaller batch need not hold the group that is at fault: then a
version is made of it, and the next batches are as small, each noted, until as many groups as a whole batch has are
through. No step begins beside a noted one: its death would be blamed on that.
"""

from __future__ import annotations

from dataclasses import dataclass

WHOLE_TRIES = 3
"""Noted steps over a whole batch before a smaller one is tried. Kills from outside cost no version its groups, unless
they come at the same version four times."""
BITS_A_DEATH = 4
"""A sixteenth at each death: who starts the process again gives up after a few, too."""


@dataclass(slots=True)
class Trials:
    """Of one life of a trainer."""

    full: int
    """Groups of a whole batch."""
    unit: int
    """Groups of the smallest; every part of a whole one is a multiple of it."""
    version: int
    """That the next step in question is to make: the first after a start, or the next of small batches."""
    died: int = 0
    """Noted steps to it that never ended."""
    suspects: int = 0
    """Groups that go through small batches yet, where it gets one."""
    is_noted: bool = False
    """Whether the step to it is to be noted: after a start, but for a run's first of all."""
    noted: int = -1
    """The version whose step this life has noted last."""

    def __post_init__(self) -> None:
        self.suspects = self.suspects or self.full

    def groups(self, version: int) -> int:
        """Return of how many groups the batch of a version is to be."""
        if not self._smaller or version != self.version:
            return self.full
        groups = min(self._at(self._smaller), self.suspects)
        return max(self.unit, groups // self.unit * self.unit)

    def is_poison(self, version: int) -> bool:
        """Return whether the smallest batch has ended the process too."""
        return version == self.version and self._smaller > 0 and self._at(self._smaller - 1) <= self.unit

    def note(self, version: int) -> int:
        """Return which time the step to a version is begun, to be noted before it is; 0 for one that is not noted."""
        if not self.is_noted or version != self.version:
            return 0
        self.is_noted, self.noted = False, version
        return self.died + 1

    def has_to_wait(self, version: int) -> bool:
        """Return whether the step to a version begins only when the version before is on the log."""
        return version == self.noted + 1

    def note_version(self, version: int, groups: int) -> None:
        """Learn that a version was made of so many groups."""
        if version != self.version:
            return
        self.suspects -= groups
        if self._smaller and self.suspects > 0:
            self.version, self.is_noted = version + 1, True
        else:
            self.died = 0

    def start_over(self) -> None:
        """Begin anew with a whole batch: the poison is gone, and the next step is noted again."""
        self.died, self.suspects, self.is_noted = 0, self.full, True

    @property
    def _smaller(self) -> int:
        """How often the batch is made smaller."""
        return max(0, self.died + 1 - WHOLE_TRIES)

    def _at(self, smaller: int) -> int:
        return self.full >> BITS_A_DEATH * smaller
