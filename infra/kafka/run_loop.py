"""The run loop of every component that turns records into records: handle, produce, commit.

Only the loop writes: a component returns records, and gets the offsets at which they were written.

A component with a group's partitions (curator) is a `GroupConsumer`; a component with its own positions (feeder,
evaluator, trainer) implements `Component` itself. Both use this loop, so the order of the steps is defined once.
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
    """The interface of a component that the loop drives."""

    def poll(self, watch: Stopwatch) -> list[Message]:
        """Return the next records of owned and restored partitions; empty if there are none now."""

    def handle(self, message: Message) -> Iterable[Outgoing]:
        """Take in one record; return the resulting records."""

    def tick(self) -> Iterable[Outgoing]:
        """Return records that result from time or memory, not from one record; called once per turn."""

    def before_commit(self, ticked: Sequence[Ticket]) -> Iterable[Outgoing]:
        """Return records that need the offsets of the turn's records, such as a snapshot.

        Args:
            ticked: Tickets of the records that `tick` returned in this turn, in order.
        """

    def offsets(self, before: Sequence[Ticket]) -> GroupOffsets | None:
        """Return a consumer group's offsets; None for a component that keeps positions in its own records.

        Args:
            before: Tickets of the records that `before_commit` returned in this turn, in order.
        """

    @property
    def is_commit_due(self) -> bool:
        """Return whether a commit is due even if this turn gave no records."""

    def rewind(self) -> None:
        """Drop records and memory after the last commit, and go back to it.

        A component that cannot do so raises; its process then starts again.
        """

    def close(self) -> None:
        """Close the component after the loop has ended."""


def run_loop(
    component: Component,
    writer: TransactionalWriter,
    stop: threading.Event,
    watch: Stopwatch,
) -> bool:
    """Drive a component until `stop` is set; return whether its memory equals the committed state.

    One turn:

    1. poll: some records (a curator: up to 64, or 150 ms). Rebalances happen here, and new partitions are restored. A
       group's metadata is taken right after; no other poll comes before the commit.
    2. handle: every record, then the tick. Later steps change the component's memory only by the offsets that they get.
    3. produce: all resulting records in one transaction, and flush, which gives their offsets.
    4. before_commit: records that need these offsets, and due snapshots, in the same transaction, and flush.
    5. offsets: the consumer group's offsets, in the same transaction.
    6. commit.

    If the transaction is aborted or a server is unreachable, the turn has not happened: the component rewinds and the
    loop continues. Nothing is retried from memory. Raises Fenced if another process took over, MustRestart if Kafka
    never ended the last commit, and the errors of `rewind`.
    """
    backoff, undone_at = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S), math.inf
    while not stop.is_set():
        try:
            writer.refuse_hanging_commit()
            messages = component.poll(watch)  # 1
            with watch.measure("handle"):  # 2
                handled: list[Outgoing] = []
                for message in messages:  # every log line meanwhile has the message's position
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
                # The process works again after `turn.undone`.
                log.info("turn.resumed", seconds=round(time.monotonic() - undone_at, 1))
            undone_at = math.inf
            backoff.reset()
        except Unavailable as error:
            if undone_at == math.inf:
                undone_at = time.monotonic()
                # A turn of reading, handling and committing was aborted; its records are read again.
                log.warning("turn.undone", error=str(error))
            _undo(component, writer, stop, backoff.next_s())
    return undone_at == math.inf


def _undo(component: Component, writer: TransactionalWriter, stop: threading.Event, pause_s: float) -> None:
    """Abort and rewind, repeatedly while servers are unreachable."""
    while not stop.wait(pause_s):
        with suppress(Unavailable):
            writer.abort()
            component.rewind()
            return
