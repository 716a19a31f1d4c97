"""Where the records stand that tell of a number: read a second time, only when something is wrong with one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from headrace.infra.kafka.clients import Message
from headrace.infra.run.run import Run
from headrace.ops.audit.fold import spot
from headrace.ops.audit.problems import Problem, Problems
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.headers import HeaderError, Stamp
from headrace.schemas.records import BatchTrained, DeadLetter, Outcome
from headrace.schemas.topics import policy_of

Key = tuple[str, str, int]
"""(policy or shadow, stream, number)."""
MOST_PLACES = 8
"""Of one number."""


def with_places(run: Run, problems: Problems, messages: Iterable[Message]) -> Problems:
    """Return the problems with the places of the records that tell of their numbers."""
    wanted: dict[Key, list[str]] = {(p.policy, p.stream, p.number): [] for p in problems.listed if p.stream}
    if wanted:
        for message in messages:
            _look(run, message, wanted)
    return Problems([_placed(problem, wanted) for problem in problems.listed], problems.total)


def _placed(problem: Problem, places: dict[Key, list[str]]) -> Problem:
    found = places.get((problem.policy, problem.stream, problem.number), [])
    more = (f"and {len(found) - MOST_PLACES} more records",) if len(found) > MOST_PLACES else ()
    return replace(problem, places=(*found[:MOST_PLACES], *more)) if problem.stream else problem


def _look(run: Run, message: Message, wanted: dict[Key, list[str]]) -> None:
    try:
        for key, word in _mentions(run, message):
            if key in wanted:
                wanted[key].append(f"{spot(message)}{word}")
    except (SchemaError, HeaderError):
        return


def _mentions(run: Run, message: Message) -> list[tuple[Key, str]]:
    """Return the numbers that a message tells of, and what it says of them."""
    kind, _, line = message.topic.removeprefix(f"{run.address.run}.").partition(".")
    if kind == "batches":
        batch: dict[str, Any] = codec.decode_plain(message.value, BatchTrained)
        evicted = [(e["group"], f" {e['verdict']}") for e in batch["evictions"] if e["group"]]
        uses = [*((group, f" version {batch['version']}") for group in batch["groups"]), *evicted]
        return [((line, use["stream"], use["number"]), word) for use, word in uses]
    if kind == "dead-letters":
        letter = codec.decode(message.value, DeadLetter)
        policies = [letter.policy] if letter.policy else run.recipe.lines
        return [((policy, letter.stream, letter.number), f" {letter.reason}") for policy in policies]
    stamp = Stamp.from_headers(message.headers)
    if kind == "tasks":
        return [((line, stamp.stream, stamp.number), "") for line in run.recipe.lines]
    if kind == "trajectories":
        return [((one, stamp.stream, stamp.number), "") for one in run.recipe.lines if policy_of(one) == line]
    word = ""
    if kind == "outcomes":
        outcome = codec.decode(message.value, Outcome)
        word = f" {outcome.verdict}"
    return [((line, stamp.stream, stamp.number), word)]
