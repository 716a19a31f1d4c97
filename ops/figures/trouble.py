"""What goes wrong in a run, by outcomes and dead letters: errors, whether all episodes fail, and advice."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.ops.episode_errors import ErrorsFold
from headrace.ops.figures.advice import AdviceFold
from headrace.ops.figures.failing import FailingFold
from headrace.schemas.records import Outcome


@dataclass(frozen=True, slots=True)
class Trouble:
    """Takes in what became of the groups of all policies; shadows see the same episodes."""

    errors: ErrorsFold = field(default_factory=ErrorsFold)
    failing: FailingFold = field(default_factory=FailingFold)
    advice: AdviceFold = field(default_factory=AdviceFold)

    def fold_outcome(self, outcome: Outcome, at_ms: int) -> None:
        """Take in an outcome that was written at that time."""
        self.errors.fold_outcome(outcome)
        self.failing.fold_outcome(outcome.policy, outcome, at_ms)
        self.advice.fold_outcome(outcome, at_ms)
