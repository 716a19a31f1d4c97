"""Which outcomes are a curator's word on the first use of a group: what was rolled out, once, whatever became of it."""

from __future__ import annotations

from headrace.schemas.records import Outcome
from headrace.schemas.topics import is_eval


def is_first_word(outcome: Outcome) -> bool:
    """Return whether an outcome is one of those. Trainers add theirs, and so do replays and single trajectories."""
    return outcome.level == "group" and outcome.component == "curate" and not outcome.use


def is_first_word_of_training(outcome: Outcome) -> bool:
    """Return whether an outcome is a first word (see `is_first_word`), and of no evaluation."""
    return is_first_word(outcome) and not is_eval(outcome.stream)
