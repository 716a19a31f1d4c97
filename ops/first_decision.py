"""Which outcomes are a curator's decision on the first use of a group: exactly one for every produced group."""

from __future__ import annotations

from headrace.schemas.records import Outcome
from headrace.schemas.topics import is_eval


def is_first_decision(outcome: Outcome) -> bool:
    """Return whether an outcome is a curator's decision on a first use, and not of a trainer, replay or trajectory."""
    return outcome.level == "group" and outcome.component == "curate" and not outcome.use


def is_first_training_decision(outcome: Outcome) -> bool:
    """Return whether an outcome is a first decision of a curator that belongs to training, not an evaluation."""
    return is_first_decision(outcome) and not is_eval(outcome.stream)
