"""Who runs `headrace up` for a run on a cluster that several machines share: a live member of the group `RUN.up`.

The statuses of its workers say so too, but only some time after the start.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import structlog
from confluent_kafka import Consumer, TopicPartition

from headrace.infra.kafka.clients import RunAddress, call_patiently, open_admin, open_consumer
from headrace.schemas.topics import Topics

log = structlog.get_logger()

JOIN_S = 15.0
"""How long it may take to be a member; a group's first one waits for its coordinator."""
PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Holder:
    """One `headrace up`, as the id of its client tells it to the others."""

    host: str
    folder: str
    since_ms: int


class UpLease:
    """Membership in `RUN.up` for as long as this process runs the run. Raises KafkaAway and KafkaRefused."""

    def __init__(self, address: RunAddress, holder: Holder) -> None:
        self._address, self._holder = address, holder
        self._group = Topics(address.run).up_group
        self._id = json.dumps(asdict(holder))
        self._closed = threading.Event()
        connection = address.connection  # whose settings may hold an id for all clients, and win over ours
        as_holder = replace(connection, client={**connection.client, "client.id": self._id})
        self._consumer = open_consumer(as_holder, "up", self._group)
        self._consumer.subscribe([Topics(address.run).recipe], on_assign=_read_nothing)
        self._stays = threading.Thread(target=self._stay, name="up-lease", daemon=True)
        self._stays.start()

    def find_others(self) -> list[Holder]:
        """Return others that run this run, once this process is a member itself: of two, one at least sees the other.

        None where it does not become a member in time, which is logged.
        """
        end = time.monotonic() + JOIN_S
        while time.monotonic() < end:
            described = call_patiently(self._describe, f"looking at group {self._group}", JOIN_S)
            members = [member.client_id for member in described.members]
            if self._id in members:
                here = self._holder.host, self._holder.folder  # of one folder, a lock lets one run at a time
                holders = [Holder(**json.loads(member)) for member in members if member.startswith("{")]
                return [one for one in holders if (one.host, one.folder) != here]
            time.sleep(PAUSE_S)
        log.warning("lease.not_taken", group=self._group, seconds=JOIN_S)
        return []

    def close(self) -> None:
        """Leave the group, so that another may run the run at once."""
        self._closed.set()
        self._stays.join()
        self._consumer.close()

    def _describe(self) -> Any:
        return open_admin(self._address.connection).describe_consumer_groups([self._group])[self._group].result()

    def _stay(self) -> None:
        while not self._closed.is_set():
            self._consumer.poll(PAUSE_S)  # returns its errors, which pass with time, or are told to the components too


def _read_nothing(consumer: Consumer, partitions: list[TopicPartition]) -> None:
    consumer.incremental_assign(partitions)
    consumer.pause(partitions)
