"""Finds the records that name a number with a problem. The topics are read a second time for this."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.topic_reader import name_offset
from headrace.infra.run.run import Run
from headrace.ops.audit.problems import AuditProblem, Problems
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.headers import HeaderError, Stamp
from headrace.schemas.ids import GroupId
from headrace.schemas.records import BatchTrained, DeadLetter, Outcome
from headrace.schemas.topics import policy_of

Mention = tuple[str, GroupId]
"""Policy variant and group."""
MOST_RECORDS = 8
"""Largest number of records that are named for one number."""


def add_record_names(run: Run, problems: Problems, messages: Iterable[Message]) -> Problems:
    """Return the problems, each with the positions of the records that name its number."""
    wanted: dict[Mention, list[str]] = {(p.policy, GroupId.of(p)): [] for p in problems.listed if p.stream}
    if wanted:
        for message in messages:
            _note_mentions(run, message, wanted)
    return Problems([_add_records(problem, wanted) for problem in problems.listed], problems.total)


def _add_records(problem: AuditProblem, records: dict[Mention, list[str]]) -> AuditProblem:
    found = records.get((problem.policy, GroupId.of(problem)), [])
    more = (f"and {len(found) - MOST_RECORDS} more records",) if len(found) > MOST_RECORDS else ()
    return replace(problem, records=(*found[:MOST_RECORDS], *more)) if problem.stream else problem


def _note_mentions(run: Run, message: Message, wanted: dict[Mention, list[str]]) -> None:
    try:
        for key, word in _find_mentions(run, message):
            if key in wanted:
                wanted[key].append(f"{name_offset(message)}{word}")
    except (SchemaError, HeaderError):
        return


def _find_mentions(run: Run, message: Message) -> list[tuple[Mention, str]]:
    """Return the numbers that a message names, each with a word on what the message says of it."""
    kind, _, policy_variant = message.topic.removeprefix(f"{run.address.run}.").partition(".")
    if kind == "batches":
        batch: dict[str, Any] = codec.decode_plain(message.value, BatchTrained)
        evicted = [(e["group"], f" {e['verdict']}") for e in batch["evictions"] if e["group"]]
        uses = [*((group, f" version {batch['version']}") for group in batch["groups"]), *evicted]
        return [((policy_variant, GroupId(use["stream"], use["number"])), word) for use, word in uses]
    if kind == "dead-letters":
        dead_letter = codec.decode(message.value, DeadLetter)
        policies = [dead_letter.policy] if dead_letter.policy else run.recipe.policy_variants
        return [((policy, GroupId.of(dead_letter)), f" {dead_letter.reason}") for policy in policies]
    stamp = Stamp.from_headers(message.headers)
    if kind == "tasks":
        return [((policy_variant, GroupId.of(stamp)), "") for policy_variant in run.recipe.policy_variants]
    if kind == "trajectories":
        return [
            ((one, GroupId.of(stamp)), "") for one in run.recipe.policy_variants if policy_of(one) == policy_variant
        ]
    word = ""
    if kind == "outcomes":
        outcome = codec.decode(message.value, Outcome)
        word = f" {outcome.verdict}"
    return [((policy_variant, GroupId.of(stamp)), word)]
