"""How episodes failed and what became dead letters: each error once, with its count and first position. No I/O."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, replace

from headrace.infra.kafka.dead_letters import REDRIVEN
from headrace.ops.first_decision import is_first_training_decision
from headrace.schemas.episode_errors import TOOL_ERROR, describe_error, error_key_of
from headrace.schemas.records import DeadLetter, EpisodeError, EvalResult, Outcome

MOST_KINDS_OF_RUN = 1000
"""Largest number of different errors; further ones are not counted."""


@dataclass(frozen=True, slots=True)
class ErrorSeen:
    """Episodes that failed alike, or records that became dead letters for one reason."""

    count: int
    reason: str
    """Reason of the first of them, as in `DeadLetter` or in `Failure`; the next four are as in `Failure`."""
    detail: str
    at: str
    """File, line and function of the user's own code."""
    role: str
    turn: int
    stream: str
    """Stream, or workflow of the evaluation, of the first of them; the next two fields also describe the first."""
    number: int
    task_id: str = ""
    component: str = ""
    """Component that wrote the dead letters; empty for failed episodes."""
    version: int = -1
    """Version in whose evaluation the first of them failed; -1 for episodes of training, and for dead letters."""
    has_traceback: bool = False
    """Whether the group of that stream and number holds the traceback: then it is the first that does."""
    asked: int = 0
    """Number of training episodes of that stream, failed or not; 0 for others."""

    @property
    def sentence(self) -> str:
        """The error in one line, with its count and where it happened first."""
        if self.component:
            records = "1 record is a dead letter" if self.count == 1 else f"{self.count:,} records are dead letters"
            one = "of" if self.count == 1 else "one of"
            task = f"; {one} task {self.stream}:{self.number}" if self.stream else ""
            return f"{records} of {self.component} ({self.reason}): {self.detail}{task}"
        held_out = "held-out " if self.version >= 0 else ""
        episodes = f"1 {held_out}episode" if self.count == 1 else f"{self.count:,} {held_out}episodes"
        if held_out:
            if self.reason == TOOL_ERROR:
                said = describe_error(self.first)
                return f"a tool failed in {episodes} of {self.stream}: {said}; first at version {self.version}"
            return f"{episodes} of {self.stream} failed: {describe_error(self.first)}; first at version {self.version}"
        task = f"{self.stream}:{self.number}" + (f" ({self.task_id})" if self.task_id else "")
        if self.has_traceback:
            task += f"; `headrace lineage --group {self.stream}:{self.number}` shows its traceback"
        one = "in" if self.count == 1 else "one in"
        if self.asked > 1:
            episodes = f"{self.count:,} of {self.asked:,} episodes"
        if self.reason == TOOL_ERROR:
            said = describe_error(self.first)
            return f"a tool failed in {episodes}, where the policy read its error: {said}; {one} task {task}"
        return f"{episodes} failed: {describe_error(self.first)}; {one} task {task}"

    @property
    def first(self) -> EpisodeError:
        """The error in the outcome of the first of them."""
        return EpisodeError(self.reason, self.detail, self.at, self.role, self.turn, self.count)


class ErrorsFold:
    """Counts failed episodes and dead letters by what they have in common."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, ...], ErrorSeen] = {}
        self._counts: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        """Policy to its errors. They are kept apart because the group of each policy holds all failures of its task."""
        self._asked: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Stream to policy to its training episodes."""

    def fold_outcome(self, outcome: Outcome) -> None:
        """Take in an outcome of a group; only a curator's outcome of the first use counts."""
        if not is_first_training_decision(outcome):
            return
        self._asked[outcome.stream][outcome.policy] += outcome.n_asked
        for error in outcome.errors:
            kind = outcome.stream, *error_key_of(error)
            before = self._first.get(kind)
            is_new = before is None and len(self._first) < MOST_KINDS_OF_RUN
            if is_new or (before is not None and error.has_traceback and not before.has_traceback):
                where = (outcome.stream, outcome.number, outcome.task_id)
                self._first[kind] = ErrorSeen(*_list_fields(error), *where, has_traceback=error.has_traceback)
            if kind in self._first:
                self._counts[kind][outcome.policy] += error.episodes

    def fold_evaluation(self, result: EvalResult) -> None:
        """Take in the result of an evaluation."""
        for error in result.errors:
            kind = f"eval.{result.workflow}", *error_key_of(error)
            if kind not in self._first and len(self._first) < MOST_KINDS_OF_RUN:
                self._first[kind] = ErrorSeen(*_list_fields(error), result.workflow, -1, version=result.version)
            if kind in self._first:
                self._counts[kind][result.policy] += error.episodes

    def fold_dead_letter(self, dead_letter: DeadLetter) -> None:
        """Take in a dead letter; records that were sent back or belong to another run are not errors."""
        kind = dead_letter.component, dead_letter.reason, re.sub("[0-9]+", "", dead_letter.detail)
        if dead_letter.reason in {REDRIVEN, "other_run"} or (
            kind not in self._first and len(self._first) >= MOST_KINDS_OF_RUN
        ):
            return
        seen = ErrorSeen(
            0,
            dead_letter.reason,
            dead_letter.detail,
            "",
            "",
            0,
            dead_letter.stream,
            dead_letter.number,
            component=dead_letter.component,
        )
        self._first.setdefault(kind, seen)
        self._counts[kind][dead_letter.policy] += 1

    def errors(self) -> tuple[ErrorSeen, ...]:
        """Return each error once, the most frequent first."""
        counted = (
            replace(one, count=max(self._counts[kind].values()), asked=self._count_asked(one))
            for kind, one in self._first.items()
        )
        return tuple(sorted(counted, key=lambda error: -error.count))

    def _count_asked(self, one: ErrorSeen) -> int:
        is_training = not one.component and one.version < 0
        return max(self._asked[one.stream].values(), default=0) if is_training else 0


def _list_fields(error: EpisodeError) -> tuple[int, str, str, str, str, int]:
    """Return what an ErrorSeen begins with."""
    return error.episodes, error.reason, error.detail, error.at, error.role, error.turn
