"""How far every component of a running run is, from its topics: what tells that one died at work, and works again."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from typing import Self

from confluent_kafka import KafkaException, TopicPartition

from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.clients import open_consumer
from headrace.infra.kafka.topic_reader import TopicReader
from headrace.infra.run.run import Run
from headrace.schemas import codec
from headrace.schemas.records import WorkerStatus

POLICY = "player"
WORKFLOW = "flips"
PARTITIONS = 4


class Progress:
    """Follows a run's topics in a thread of its own, over any absence of the broker."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.version = -1
        """The newest published."""
        self.records: Counter[str] = Counter()
        """Committed records by topic."""
        self.groups: dict[int, int] = {}
        """Groups that each worker's life, by pid, has delivered."""
        self._curated: dict[int, int] = {}
        topics = run.topics
        self._positions = {(topic, 0): 0 for topic in (topics.weights(POLICY), topics.evals(POLICY), topics.workers)}
        self._positions |= {(topics.tasks(WORKFLOW), partition): 0 for partition in range(PARTITIONS)}
        # It never joins: a question from outside the group.
        self._asks = open_consumer(run.connection, "progress", topics.curate_group(POLICY))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._asks.close()

    @property
    def tasks(self) -> int:
        """Tasks issued."""
        return self.records[self.run.topics.tasks(WORKFLOW)]

    @property
    def evaluations(self) -> int:
        """Evaluations concluded."""
        return self.records[self.run.topics.evals(POLICY)]

    def curated(self) -> dict[int, int]:
        """Return, by partition, how many records the curators have committed; the last known while it is away."""
        topic = self.run.topics.trajectories(POLICY)
        asked = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        with suppress(KafkaException):
            found = self._asks.committed(asked, timeout=2)
            self._curated |= {tp.partition: tp.offset for tp in found if tp.error is None and tp.offset >= 0}
        return dict(self._curated)

    def _follow(self) -> None:
        while not self._over.is_set():
            with suppress(HeadraceError), TopicReader(self.run.connection, self._positions, "progress") as reader:
                while not self._over.is_set():
                    for message in reader.poll(256, 0.1):
                        self._take(message.topic, message.key, message.value)
                    self._positions = dict(reader.positions)
            self._over.wait(0.2)

    def _take(self, topic: str, key: bytes, value: bytes) -> None:
        self.records[topic] += 1
        if topic == self.run.topics.weights(POLICY):
            self.version = max(self.version, int(key))
        elif topic == self.run.topics.workers and value:  # an empty one takes back what was said
            status = codec.decode(value, WorkerStatus)
            self.groups[status.pid] = status.groups_done
