"""How episodes failed and what became dead letters: each error once, with its count and first position."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.infra.kafka.dead_letters import REDRIVEN
from headrace.ledger.ledger import Ledger
from headrace.schemas import codec
from headrace.schemas.episode_errors import TOOL_ERROR, describe_error, error_key_of
from headrace.schemas.records import EpisodeError, EvalResult

MOST_KINDS_OF_RUN = 1000
"""Largest number of different errors that are listed."""


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


_OF_EPISODES = """
    SELECT stream, max(episodes), coalesce(min(traced_id), min(first_id)) FROM error_kind
    WHERE variant IN (SELECT value FROM json_each(:variants)) GROUP BY stream, kind ORDER BY min(first_id) LIMIT :most
"""
"""The policies are counted apart, because the group of each holds all failures of its task."""
_FIRST = """
    SELECT episodes, reason, detail, at, role, turn, stream, number, task_id, '', -1, has_traceback FROM episode_error
    WHERE id = ?
"""
_ASKED = """
    SELECT stream, sum(asked) FROM decided
    WHERE variant IN (SELECT value FROM json_each(:variants)) GROUP BY stream, variant
"""
_OF_LETTERS = f"""
    SELECT kind, max(letters), min(first) FROM (
        SELECT kind, policy, count(*) AS letters, min(id) AS first FROM dead_letter
        WHERE reason NOT IN ('{REDRIVEN}', 'other_run') GROUP BY kind, policy
    ) GROUP BY kind ORDER BY min(first) LIMIT ?
"""
"""Records that were sent back or belong to another run are not errors."""


def list_errors(ledger: Ledger) -> tuple[ErrorSeen, ...]:
    """Return each error of episodes and evaluations, and each reason of dead letters, once: the most frequent first."""
    found = [*list_episode_errors(ledger, ledger.streams.recipe.policies), *_list_evaluation_errors(ledger)]
    for _, count, first_id in ledger.query(_OF_LETTERS, MOST_KINDS_OF_RUN):
        [letter] = ledger.query(
            "SELECT 0, reason, detail, '', '', 0, stream, number, '', component FROM dead_letter WHERE id = ?", first_id
        )
        found.append(replace(ErrorSeen(*letter), count=count))
    return tuple(sorted(found, key=lambda error: -error.count)[:MOST_KINDS_OF_RUN])


def list_episode_errors(ledger: Ledger, variants: Iterable[str]) -> list[ErrorSeen]:
    """Return each error of the training episodes of some policies or shadows once, in the order of the first ones."""
    of: dict[str, object] = {"variants": json.dumps([*variants]), "most": MOST_KINDS_OF_RUN}
    asked = dict[str, int]()
    for stream, episodes in ledger.query(_ASKED, **of):
        asked[stream] = max(asked.get(stream, 0), episodes)
    found = []
    for stream, count, first_id in ledger.query(_OF_EPISODES, **of):
        [first] = ledger.query(_FIRST, first_id)
        found.append(replace(_read_seen(first), count=count, asked=asked.get(stream, 0)))
    return found


def _read_seen(row: Sequence[Any]) -> ErrorSeen:
    *fields, has_traceback = row
    return replace(ErrorSeen(*fields), has_traceback=bool(has_traceback))


def _list_evaluation_errors(ledger: Ledger) -> Iterator[ErrorSeen]:
    first: dict[tuple[str, ...], ErrorSeen] = {}
    counts: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for (value,) in ledger.query("SELECT value FROM evaluation ORDER BY id"):
        result = codec.decode(value, EvalResult)
        for error in result.errors:
            kind = result.workflow, *error_key_of(error)
            seen = ErrorSeen(*_list_fields(error), result.workflow, -1, version=result.version)
            first.setdefault(kind, seen)
            counts[kind][result.policy] += error.episodes
    return (replace(one, count=max(counts[kind].values())) for kind, one in first.items())


def _list_fields(error: EpisodeError) -> tuple[int, str, str, str, str, int]:
    """Return what an ErrorSeen begins with."""
    return error.episodes, error.reason, error.detail, error.at, error.role, error.turn
