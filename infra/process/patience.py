"""Decides when a dying component is no longer restarted, without I/O or a clock.

There are two limits: for deaths in a row, each soon after a start; and for deaths of any kind without progress of the
run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from headrace.infra.errors import FENCED

SERVER_AWAY = os.EX_TEMPFAIL
"""Exit code of a component that was stuck because a server was unreachable, which is not its fault."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How often and how soon a child is restarted."""

    most_short_lives: int
    """Deaths in a row, each soon after a start, after which a child is given up."""
    most_deaths: int = 50
    """Deaths without progress of the run, after any time and with any exit code, after which a child is given up."""
    first_pause_s: float = 0.5
    longest_pause_s: float = 10.0
    healthy_after_s: float = 30.0
    """After a life of this length the pauses start again from the first one."""
    short_life_s: float = 60.0
    """A death within this time after the start counts as a short life."""


@dataclass(slots=True)
class Deaths:
    """Deaths of one child."""

    patience: Patience
    short_lives: int = 0
    """Number of short lives in a row."""
    stuck: int = 0
    """Number of deaths at the same progress of the run."""
    progress: object = None

    def count(self, exit_code: int | None, lived_s: float, progress: object) -> None:
        """Take in a death.

        Args:
            exit_code: Exit code of the process.
            lived_s: Seconds from its start.
            progress: Any value that changes when the run makes progress. None while an unreachable server prevents
                progress: such a death does not count.
        """
        if exit_code == FENCED:  # another process has replaced it
            return
        if exit_code != SERVER_AWAY:
            self.short_lives = self.short_lives + 1 if lived_s < self.patience.short_life_s else 0
        if progress is not None:
            self.stuck = self.stuck + 1 if progress == self.progress else 1
            self.progress = progress

    @property
    def has_too_many(self) -> bool:
        """Whether to give up the child."""
        return self.short_lives >= self.patience.most_short_lives or self.stuck >= self.patience.most_deaths
