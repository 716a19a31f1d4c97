"""`headrace redrive`: sends what could not be read back to where it came from, after a fix, each dead letter once.

What cannot be read at its new offset either becomes a dead letter of its own there, which can be sent back once in its
turn. The message goes to the partition that it was read from, as it was, with a header that names its dead letter; in
the same transaction a dead letter of reason `redriven` opens its number again. The transactional id is the run's, so of
two at once
the second fences the first, and reads what that one did before it begins.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field

import structlog

from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Outgoing
from headrace.infra.kafka.dead_letters import MOST_KEY_BYTES, REDRIVE_HEADER, REDRIVEN, VERDICT_HEADER
from headrace.infra.kafka.transactions import Ticket, TransactionalWriter, split_into_transactions
from headrace.infra.run.run import Run, RunEnded
from headrace.ops.dead_letters.listing import (
    LetterSource,
    ListedDeadLetter,
    iterate_full_records,
    kind_of,
    of_reason,
    read_dead_letters,
)
from headrace.schemas import codec
from headrace.schemas.ids import now_ms
from headrace.schemas.records import DeadLetter

log = structlog.get_logger()

REDRIVER = "redrive"
MOST_MESSAGES_A_TRANSACTION = 100
"""Messages in one transaction, at most."""

INPUTS = ("tasks", "eval-tasks", "trajectories", "eval-groups", "curated")
"""Kinds of topics that are consumed once; the others are records of what happened, always read from the beginning."""
FOR_GOOD = {
    "other_run": "it is of another run",
    "misrouted": "it is on a wrong partition, and a copy would be on it too",
    "not_issued": "its number was not issued when it arrived, so no worker of this run made it",
    "poison": "its number has concluded with reason poison, so a copy would be a duplicate",
    "forgotten": "it was sent back before, but its curator no longer remembers its number: it had too many dead ones",
}
"""Reasons of dead letters that can never be sent back."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The plan for the dead letters that were asked for."""

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
    """The results for the dead letters that were asked for."""

    run: str
    dry_run: bool
    redriven: tuple[SentBack, ...]
    already: tuple[int, ...]
    """Offsets of those that had been sent back before."""
    refused: tuple[Refused, ...]


def redrive(run: Run, offsets: Iterable[int], reason: str | None, *, dry_run: bool = False) -> Redriven:
    """Send back the dead letters at these offsets and of this reason; all when neither is given. Return what was done.

    Raises UsageError for an offset without a dead letter and for an unknown reason, RunEnded when there is something
    to send, Fenced when another redrive took over, and Aborted, whereupon it is to be asked for again:
    what was sent back until then is not sent twice. A dry run raises the first two as well.
    """
    wanted = set(offsets)
    if dry_run or run.ended:
        choice = choose(read_dead_letters(run), wanted, reason)
        if choice.send and run.ended:
            raise RunEnded(
                f"run {run.address.run} has ended ({run.ended}), so nothing would process the records that are sent "
                "back: resume it first, for instance with `headrace up … --set trainer.steps=N --new-recipe`"
            )
        return _report(run, choice, {}, dry_run=dry_run)
    sent: dict[LetterSource, int] = {}
    with closing(TransactionalWriter(run.connection, f"{run.address.run}.{REDRIVER}", run.topic_names)) as writer:
        choice = choose(read_dead_letters(run), wanted, reason)
        one_about_each = {about[0].offset for about in choice.send.values()}
        records = (record for _, record in iterate_full_records(run, one_about_each))
        for batch in split_into_transactions(records, MOST_MESSAGES_A_TRANSACTION):
            sent |= _send(run, writer, batch, choice)
    return _report(run, choice, sent, dry_run=False)


def choose(dead_letters: list[ListedDeadLetter], offsets: set[int], reason: str | None) -> Choice:
    """Show what becomes of the dead letters asked for.

    Raises UsageError for an offset at which there is none, and for an unknown reason.
    """
    if unknown := offsets - {dead_letter.offset for dead_letter in dead_letters}:
        raise UsageError(
            f"there is no dead letter at offset {', '.join(map(str, sorted(unknown)))} that could be sent back; "
            "`headrace dead-letters` lists them"
        )
    about: defaultdict[LetterSource, list[ListedDeadLetter]] = defaultdict(list)
    for dead_letter in dead_letters:
        about[dead_letter.source].append(dead_letter)
    choice = Choice()
    for dead_letter in of_reason(dead_letters, reason):
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
        return "its evaluation has counted it as unanswered and does not accept another answer"
    if dead_letter.cut_bytes:
        return (
            f"its dead letter lacks {dead_letter.cut_bytes} of its bytes, as a dead letter holds 7 MiB at most; "
            f"the whole record was read at {dead_letter.topic}[{dead_letter.partition}]@{dead_letter.source_offset}"
        )
    return ""


def _send(run: Run, writer: TransactionalWriter, batch: list[DeadLetter], choice: Choice) -> dict[LetterSource, int]:
    """Send a batch back in one transaction; return where each message is now."""
    sources = [(record.topic, record.partition, record.offset) for record in batch]
    writer.begin()
    first = [choice.send[source][0].offset for source in sources]
    tickets = writer.produce(_message(record, offset) for record, offset in zip(batch, first, strict=True))
    writer.flush()
    for record, source, ticket in zip(batch, sources, tickets, strict=True):
        writer.produce([_redriven(run, record, dead_letter.offset, ticket) for dead_letter in choice.send[source]])
    writer.commit()
    log.info("letters.redriven", count=len(batch))
    return {source: ticket.offset for source, ticket in zip(sources, tickets, strict=True)}


def _message(record: DeadLetter, offset: int) -> Outgoing:
    # What a replay says of a message was decided for its old position: it is decided again now.
    stale = (REDRIVE_HEADER, VERDICT_HEADER)
    headers = [(name, value) for name, value in record.headers.items() if name not in stale]
    headers.append((REDRIVE_HEADER, str(offset).encode()))
    return Outgoing(record.topic, record.value, record.key, headers, record.partition)


def _redriven(run: Run, record: DeadLetter, offset: int, ticket: Ticket) -> Outgoing:
    dead_letter = DeadLetter(
        run_id=run.run_id,
        component=REDRIVER,
        topic=record.topic,
        partition=record.partition,
        offset=ticket.offset,
        reason=REDRIVEN,
        detail=f"the message of dead letter {offset} is at {record.topic}[{record.partition}]@{ticket.offset} again",
        policy=record.policy,
        stream=record.stream,
        number=record.number,
        use=record.use,
        key=record.key[:MOST_KEY_BYTES],
        redrives=offset,
        created_ms=now_ms(),
    )
    return Outgoing(run.topics.dead_letters, codec.encode(dead_letter), dead_letter.key)


def _report(run: Run, choice: Choice, sent: dict[LetterSource, int], *, dry_run: bool) -> Redriven:
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
