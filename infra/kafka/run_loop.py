"""The run loop of every component that turns records into records: handle, produce, commit.

Only the loop writes: a component returns what is to be written, and is passed the offsets at which it was written.

A component with partitions of a group (curator) is a `GroupConsumer`; one that keeps its own positions (feeder,
evaluator, trainer) implements `Component` itself. Both run here, so the order of the steps is written once.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Protocol

import structlog
from structlog.contextvars import bound_contextvars

from headrace.infra.backoff import Backoff
from headrace.infra.errors import Unavailable
from headrace.infra.failpoints import reach
from headrace.infra.kafka.clients import Message, Outgoing
from headrace.infra.kafka.transactions import GroupOffsets, Ticket, TransactionalWriter
from headrace.infra.stopwatch import Stopwatch

log = structlog.get_logger()

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0


class Component(Protocol):
    """What the loop drives."""

    def poll(self, watch: Stopwatch) -> list[Message]:
        """Return the next records, restored and owned; empty when there are none for now."""

    def handle(self, message: Message) -> Iterable[Outgoing]:
        """Take in one record; return what follows from it."""

    def tick(self) -> Iterable[Outgoing]:
        """Return what follows from time or memory rather than from one record; called once a turn."""

    def before_commit(self, ticked: Sequence[Ticket]) -> Iterable[Outgoing]:
        """Return what can be written only now that the turn's records have their offsets, such as a snapshot.

        Args:
            ticked: Where the records are that `tick` returned in this turn, in their order.
        """

    def offsets(self, before: Sequence[Ticket]) -> GroupOffsets | None:
        """Return the offsets of a consumer group; None for a component that keeps its positions in its own records.

        Args:
            before: Where the records are that `before_commit` returned in this turn, in their order.
        """

    @property
    def is_commit_due(self) -> bool:
        """True when there is something to commit even if nothing followed from this turn."""

    def rewind(self) -> None:
        """Drop records and memory that ran ahead of the last commit, and go back to where that left off.

        A component that cannot do so raises; its process then starts again.
        """

    def close(self) -> None:
        """Leave, once the loop has ended."""


def run_loop(
    component: Component,
    writer: TransactionalWriter,
    stop: threading.Event,
    watch: Stopwatch,
) -> bool:
    """Drive a component until `stop` is set; return whether its memory is what is committed, or ran ahead.

    One turn:

    1. poll: some records (a curator: up to 64, or 150 ms). Rebalances happen in here, and partitions that are new are
       restored. A group's metadata is taken right after; no other poll comes before the commit.
    2. handle: every record, then the tick. No step after this one changes the component's memory.
    3. produce: all that followed, in one transaction, and flush: it yields their offsets.
    4. before_commit: what rests on these offsets and snapshots that are due, in the same transaction, and flush.
    5. offsets: those of the consumer group, in the same transaction.
    6. commit.

    When the transaction is aborted, or a server is unreachable, the turn has not happened: the component rewinds and
    the loop goes on. Nothing is retried from memory. Raises Fenced when another process took over, and whatever
    `rewind` raises.
    """
    backoff, undone_at = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S), math.inf
    while not stop.is_set():
        try:
            messages = component.poll(watch)  # 1
            with watch.measure("handle"):  # 2
                handled: list[Outgoing] = []
                for message in messages:  # its position is on every line that is logged meanwhile
                    with bound_contextvars(topic=message.topic, partition=message.partition, offset=message.offset):
                        handled += component.handle(message)
            ticked = list(component.tick())
            if handled or ticked or component.is_commit_due:
                reach(f"{writer.component}.handled")
                with watch.measure("produce"):  # 3
                    writer.begin()
                    writer.produce(handled)
                    tickets = writer.produce(ticked)
                with watch.measure("commit"):
                    writer.flush()
                    before = writer.produce(component.before_commit(tickets))  # 4
                    writer.flush()
                    if (offsets := component.offsets(before)) is not None:  # 5
                        writer.send_offsets(offsets)
                    writer.commit()  # 6
            if undone_at < math.inf:
                log.info("turn.resumed", seconds=round(time.monotonic() - undone_at, 1))
            undone_at = math.inf
            backoff.reset()
        except Unavailable as error:
            if undone_at == math.inf:
                undone_at = time.monotonic()
                log.warning("turn.undone", error=str(error))
            _undo(component, writer, stop, backoff.next_s())
    return undone_at == math.inf


def _undo(component: Component, writer: TransactionalWriter, stop: threading.Event, pause_s: float) -> None:
    """Abort and rewind, as often as it takes while servers are unreachable."""
    while not stop.wait(pause_s):
        with suppress(Unavailable):
            writer.abort()
            component.rewind()
            return
