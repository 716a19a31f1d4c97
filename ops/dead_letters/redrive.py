"""`headrace redrive`: sends the messages of dead letters back to their partitions after a fix, each dead letter once.

The message is sent unchanged, with a header that names its dead letter. In the same transaction, a dead letter of
reason `redriven` opens its task again. If the message cannot be read at its new offset either, it becomes a new dead
letter, which can be sent back once. The transactional id is the run's: if two redrives run at once, the second fences
the first, and reads what the first did before it begins.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Outgoing
from headrace.infra.kafka.dead_letters import MOST_KEY_BYTES, REDRIVE_HEADER, REDRIVEN, VERDICT_HEADER
from headrace.infra.kafka.transactions import Ticket, TransactionalWriter, split_into_transactions
from headrace.infra.run.run import Run, RunEnded
from headrace.ops.dead_letters.listing import (
    LetterSource,
    ListedDeadLetter,
    kind_of,
    listing,
    read_full_records,
    select_by_reason,
)
from headrace.schemas import codec
from headrace.schemas.ids import now_ms
from headrace.schemas.records import DeadLetter

log = structlog.get_logger()

REDRIVER = "redrive"
MOST_MESSAGES_A_TRANSACTION = 100
"""Messages in one transaction, at most."""

INPUTS = ("tasks", "eval-tasks", "trajectories", "eval-groups", "curated")
"""Kinds of topics that are consumed once. All other topics are always read from the beginning."""
FOR_GOOD = {
    "other_run": "its record belongs to another run",
    "misrouted": "its topic or partition does not accept the record, and would not accept a copy",
    "not_issued": "its task was not issued when the record arrived, so no worker of this run wrote the record",
    "poison": "its task has concluded with reason poison, so a copy would be a duplicate",
    "forgotten": "it was sent back before, but its curator had too many dead letters, and no longer knows whether a "
    "copy would be a duplicate",
}
"""Reasons of dead letters that can never be sent back."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The plan for the dead letters that the user chose."""

    send: dict[LetterSource, list[ListedDeadLetter]] = field(default_factory=dict)
    """The dead letters about each record that is to be sent back."""
    already: list[ListedDeadLetter] = field(default_factory=list)
    refused: list[tuple[ListedDeadLetter, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SentBack:
    """A record that was sent back, or would be."""

    offsets: tuple[int, ...]
    """Offsets of the dead letters about it."""
    topic: str
    partition: int
    source_offset: int
    """Offset at which it was read."""
    stands_at: int | None
    """Its offset now; None in a dry run."""
    reason: str
    stream: str
    number: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A dead letter that cannot be sent back."""

    offset: int
    why: str


@dataclass(frozen=True, slots=True)
class Redriven:
    """The results for the dead letters that the user chose."""

    run: str
    dry_run: bool
    redriven: tuple[SentBack, ...]
    already: tuple[int, ...]
    """Offsets of the dead letters that had been sent back before."""
    refused: tuple[Refused, ...]


def redrive(
    run: Run, offsets: Iterable[int], reason: str | None, *, dry_run: bool = False, ledger: Path | None = None
) -> Redriven:
    """Send back the dead letters at these offsets and of this reason, or all if neither is given; return the results.

    `ledger` is the file of the run's ledger; None to read its topics into memory.

    Raises UsageError for an offset without a dead letter and for an unknown reason; RunEnded if there is something to
    send, but the run has ended; Fenced if another redrive took over; and Aborted. After Aborted, call it again: it
    sends nothing twice. A dry run raises the first two as well.
    """
    wanted = set(offsets)
    if dry_run or run.ended:
        choice = choose(listing(run, ledger=ledger), wanted, reason)
        if choice.send and run.ended:
            raise RunEnded(
                f"run {run.address.run} has ended ({run.ended}), so nothing would process the records that are sent "
                "back: resume it first, for instance with `headrace up … --set trainer.steps=N --new-recipe`"
            )
        return _build_report(run, choice, {}, dry_run=dry_run)
    sent: dict[LetterSource, int] = {}
    with closing(TransactionalWriter(run.connection, f"{run.address.run}.{REDRIVER}", run.topic_names)) as writer:
        choice = choose(listing(run, ledger=ledger), wanted, reason)
        one_about_each = {about[0].offset for about in choice.send.values()}
        for batch in split_into_transactions(read_full_records(run, one_about_each), MOST_MESSAGES_A_TRANSACTION):
            sent |= _send(run, writer, batch, choice)
    return _build_report(run, choice, sent, dry_run=False)


def choose(dead_letters: list[ListedDeadLetter], offsets: set[int], reason: str | None) -> Choice:
    """Decide which of the dead letters that the user chose are sent back.

    Raises UsageError for an offset without a dead letter, and for an unknown reason.
    """
    if unknown := offsets - {dead_letter.offset for dead_letter in dead_letters}:
        raise UsageError(
            f"there is no dead letter at offset {', '.join(map(str, sorted(unknown)))} that could be sent back; "
            "`headrace dead-letters` lists the offsets"
        )
    about: defaultdict[LetterSource, list[ListedDeadLetter]] = defaultdict(list)
    for dead_letter in dead_letters:
        about[dead_letter.source].append(dead_letter)
    choice = Choice()
    for dead_letter in select_by_reason(dead_letters, reason):
        if offsets and dead_letter.offset not in offsets:
            continue
        if dead_letter.redriven is not None:
            choice.already.append(dead_letter)
        elif why := explain_refusal(dead_letter):
            choice.refused.append((dead_letter, why))
        else:
            choice.send[dead_letter.source] = about[dead_letter.source]
    return choice


def explain_refusal(dead_letter: ListedDeadLetter) -> str:
    """Return why a dead letter's message cannot be sent back; empty if it can."""
    if dead_letter.reason in FOR_GOOD:
        return FOR_GOOD[dead_letter.reason]
    if kind_of(dead_letter.topic) not in INPUTS:
        return f"{dead_letter.topic} is always read from its beginning, and a copy would count twice"
    if dead_letter.is_counted:
        return "its evaluation has counted the task as unanswered, and accepts no further answer"
    if dead_letter.cut_bytes:
        return (
            f"it lacks {dead_letter.cut_bytes} bytes of its record, because a dead letter holds 7 MiB at most; the "
            f"whole record was read at {dead_letter.topic}[{dead_letter.partition}]@{dead_letter.source_offset}"
        )
    return ""


def _send(run: Run, writer: TransactionalWriter, batch: list[DeadLetter], choice: Choice) -> dict[LetterSource, int]:
    """Send a batch back in one transaction; return the new offset of each message."""
    sources = [(record.topic, record.partition, record.offset) for record in batch]
    writer.begin()
    first = [choice.send[source][0].offset for source in sources]
    tickets = writer.produce(_build_message(record, offset) for record, offset in zip(batch, first, strict=True))
    writer.flush()
    for record, source, ticket in zip(batch, sources, tickets, strict=True):
        writer.produce([_build_notice(run, record, dead_letter.offset, ticket) for dead_letter in choice.send[source]])
    writer.commit()
    log.info("letters.redriven", count=len(batch))
    return {source: ticket.offset for source, ticket in zip(sources, tickets, strict=True)}


def _build_message(record: DeadLetter, offset: int) -> Outgoing:
    # The header of `headrace replay` was decided for the old position: the curator must decide again.
    stale = (REDRIVE_HEADER, VERDICT_HEADER)
    headers = [(name, value) for name, value in record.headers.items() if name not in stale]
    headers.append((REDRIVE_HEADER, str(offset).encode()))
    return Outgoing(record.topic, record.value, record.key, headers, record.partition)


def _build_notice(run: Run, record: DeadLetter, offset: int, ticket: Ticket) -> Outgoing:
    dead_letter = DeadLetter(
        run_id=run.run_id,
        component=REDRIVER,
        topic=record.topic,
        partition=record.partition,
        offset=ticket.offset,
        reason=REDRIVEN,
        detail=f"dead letter {offset} was sent back to {record.topic}[{record.partition}]@{ticket.offset}",
        policy=record.policy,
        stream=record.stream,
        number=record.number,
        use=record.use,
        key=record.key[:MOST_KEY_BYTES],
        redrives=offset,
        created_ms=now_ms(),
    )
    return Outgoing(run.topics.dead_letters, codec.encode(dead_letter), dead_letter.key)


def _build_report(run: Run, choice: Choice, sent: dict[LetterSource, int], *, dry_run: bool) -> Redriven:
    return Redriven(
        run=run.address.run,
        dry_run=dry_run,
        redriven=tuple(
            SentBack(
                tuple(dead_letter.offset for dead_letter in dead_letters),
                *source,
                stands_at=sent.get(source),
                reason=dead_letters[0].reason,
                stream=dead_letters[0].stream,
                number=dead_letters[0].number,
            )
            for source, dead_letters in choice.send.items()
        ),
        already=tuple(dead_letter.offset for dead_letter in choice.already),
        refused=tuple(Refused(dead_letter.offset, why) for dead_letter, why in choice.refused),
    )
