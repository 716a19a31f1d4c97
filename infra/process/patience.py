"""When a component that dies is started again no more. No I/O, no clock.

Two limits: deaths in a row that each come soon after a start; and, for whatever lives longer or ends as a server was
away, deaths while the run gets no further.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from headrace.infra.errors import FENCED

SERVER_AWAY = os.EX_TEMPFAIL
"""A component ends with this when it was stuck because a server was unreachable: not its own fault."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How often, and how soon, a child is started again."""

    most_short_lives: int
    """A child that dies so often in a row, each time soon after its start, is given up."""
    most_deaths: int = 50
    """One that dies so often, after lives of any length and with any exit code, while the run gets no further, too."""
    first_pause_s: float = 0.5
    longest_pause_s: float = 10.0
    healthy_after_s: float = 30.0
    """A life of this length makes the next pause the first again."""
    short_life_s: float = 60.0
    """Deaths within this time of the start count, one after the other."""


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
            exit_code: Of the process.
            lived_s: Seconds from its start.
            progress: How far the run is, as anything that differs once it is further; None while nobody can get
                further, as a server is unreachable: such a death is not counted.
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
        """Whether the child is to be given up."""
        return self.short_lives >= self.patience.most_short_lives or self.stuck >= self.patience.most_deaths
