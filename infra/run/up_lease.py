"""Finds other `headrace up` processes of a run on a shared cluster: they are members of the group `RUN.up`.

Worker statuses show this too, but only some time after the start.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog
from confluent_kafka import Consumer, TopicPartition

from headrace.infra.kafka.admin_answers import await_answer
from headrace.infra.kafka.broker_contact import BrokerContact
from headrace.infra.kafka.clients import RunAddress, call_patiently, get_admin, open_consumer
from headrace.infra.kafka.group_offsets import await_coordinator
from headrace.schemas.ids import now_ms
from headrace.schemas.topics import Topics

log = structlog.get_logger()

JOIN_S = 15.0
"""Most seconds to become a member; the first member of a group waits for its coordinator."""
ANSWER_S = 3.0
"""Seconds for one answer; a new coordinator gives none at first, and is asked again."""
LEAVE_S = 2.0
PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Holder:
    """One `headrace up`, as encoded in its client id."""

    host: str
    folder: str
    since_ms: int

    @classmethod
    def of_folder(cls, folder: Path) -> Holder:
        """Return the holder for this process and a data folder."""
        return cls(socket.gethostname(), str(folder.absolute()), now_ms())


class UpLease:
    """Membership in `RUN.up` from `take` to the end of the block."""

    def __init__(self, holder: Holder) -> None:
        self._holder, self._id = holder, json.dumps(asdict(holder))
        self._leaving = threading.Event()
        self._stay: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Return the lease, not yet taken."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the group, so that another may run the run at once."""
        self._leaving.set()
        if self._stay is not None:
            self._stay.join(LEAVE_S)

    def take(self, address: RunAddress) -> list[Holder]:
        """Become a member; return other holders. Of two concurrent processes, at least one sees the other.

        If joining takes too long, logs this and returns none. Raises KafkaAway and KafkaRefused.
        """
        group = Topics(address.run).up_group
        self._stay = threading.Thread(target=self._be_member, args=(address, group), name="up-lease", daemon=True)
        self._stay.start()

        end = time.monotonic() + JOIN_S
        _await_group(address)
        while time.monotonic() < end:
            holders = _list_holders(address)
            if self._holder in holders:
                here = self._holder.host, self._holder.folder  # of one folder, a lock lets one run at a time
                return [one for one in holders if (one.host, one.folder) != here]
            time.sleep(PAUSE_S)
        # `up` did not join its consumer group in time, so a second `up` cannot see that this one runs.
        log.warning("lease.not_taken", group=group, seconds=JOIN_S)
        return []

    def _be_member(self, address: RunAddress, group: str) -> None:
        connection = address.connection  # whose settings may hold an id for all clients, and win over ours
        as_holder = replace(connection, client={**connection.client, "client.id": self._id})
        topic = Topics(address.run).recipe
        while not self._leaving.is_set():
            consumer = open_consumer(as_holder, "up", group)
            consumer.subscribe([topic], on_assign=_read_nothing)
            contact = BrokerContact(consumer, as_holder, topic)
            while not self._leaving.is_set() and not contact.has_lost_brokers():
                consumer.poll(PAUSE_S)  # returns its errors, which pass with time, or are told to the components too
            consumer.close()


def find_holders(address: RunAddress) -> list[Holder]:
    """Return every `headrace up` that runs a run on a cluster of the user's. Raises KafkaAway and KafkaRefused."""
    _await_group(address)
    return _list_holders(address)


def _await_group(address: RunAddress) -> None:
    group = Topics(address.run).up_group
    call_patiently(lambda: await_coordinator(address.connection, group, ANSWER_S), f"looking for {group}", JOIN_S)


def _list_holders(address: RunAddress) -> list[Holder]:
    group = Topics(address.run).up_group

    def describe() -> Any:
        admin = get_admin(address.connection)
        return await_answer(admin.describe_consumer_groups([group], request_timeout=ANSWER_S)[group])

    members = call_patiently(describe, f"looking at group {group}", JOIN_S).members
    return [Holder(**json.loads(member.client_id)) for member in members if member.client_id.startswith("{")]


def _read_nothing(consumer: Consumer, partitions: list[TopicPartition]) -> None:
    consumer.incremental_assign(partitions)
    consumer.pause(partitions)
