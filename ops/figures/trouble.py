"""The troubles of a run, from outcomes and dead letters: errors, whether all episodes fail, and advice."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.ops.episode_errors import ErrorsFold
from headrace.ops.figures.advice import AdviceFold
from headrace.ops.figures.failing import FailingFold
from headrace.schemas.records import Outcome


@dataclass(frozen=True, slots=True)
class Trouble:
    """Takes in the outcomes of all policies, but not of shadows, which have the same episodes."""

    errors: ErrorsFold = field(default_factory=ErrorsFold)
    failing: FailingFold = field(default_factory=FailingFold)
    advice: AdviceFold = field(default_factory=AdviceFold)

    def fold_outcome(self, outcome: Outcome, at_ms: int) -> None:
        """Take in an outcome that was written at that time."""
        self.errors.fold_outcome(outcome)
        self.failing.fold_outcome(outcome.policy, outcome, at_ms)
        self.advice.fold_outcome(outcome, at_ms)
