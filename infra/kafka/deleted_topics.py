"""Detects topics deleted during a run, as opposed to an unreachable broker, by listing the topics.

Clients do not report a deletion: a producer without a time-out waits for ever for the topic, and a member of a consumer
group simply gets no partitions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable

import structlog
from confluent_kafka import KafkaException

from headrace.infra.kafka.clients import Connection, KafkaRefused, forget_admins, get_admin

log = structlog.get_logger()

GONE_S = 20.0
"""A topic that is missing for so many seconds, while Kafka answers, counts as deleted."""
TOPICS_LOOK_EVERY_S = 10.0
"""Seconds between two checks: a loss is reported after at most this plus GONE_S."""
SOON_S = 1.0
"""Seconds between two checks while a topic is missing."""
ANSWER_S = 5.0


class MissingTopics:
    """Tracks since when topics are missing that existed before, while Kafka answers without a gap. No I/O.

    Args:
        topics: The topics. One that never existed, for instance of a region not mirrored yet, is not reported.
        patience_s: Seconds after which a missing topic counts as deleted.
    """

    def __init__(self, topics: Iterable[str], patience_s: float) -> None:
        self._topics, self._patience_s = tuple(topics), patience_s
        self._seen: set[str] = set()
        self.since: dict[str, float] = {}
        """Time since which each topic is missing."""

    def note_existing(self, known: Collection[str] | None, now: float) -> str:
        """Take in the existing topics (None if Kafka does not answer); return a deleted topic, or an empty text."""
        if known is None:
            self.since = {}
            return ""
        self._seen.update(topic for topic in self._topics if topic in known)
        self.since = {topic: self.since.get(topic, now) for topic in self._topics if topic in self._seen - set(known)}
        return next((topic for topic, since in self.since.items() if now - since >= self._patience_s), "")


class TopicWatch(threading.Thread):
    """Checks repeatedly that all topics of a component still exist.

    Args:
        connection: The cluster.
        topics: The topics to watch.
    """

    def __init__(self, connection: Connection, topics: Iterable[str]) -> None:
        super().__init__(name="topic-watch", daemon=True)
        self.error: KafkaRefused | None = None
        """The error with which the component must end."""
        self._connection, self._over = connection, threading.Event()
        self._missing = MissingTopics(topics, GONE_S)

    def run(self) -> None:
        """Check until `stop`, or until a topic is deleted."""
        self.look()
        while self.error is None and not self._over.wait(SOON_S if self._missing.since else TOPICS_LOOK_EVERY_S):
            self.look()

    def look(self) -> None:
        """Check once."""
        before = self._missing.since
        topic = self._missing.note_existing(self._list_topics(), time.monotonic())
        for name in self._missing.since.keys() - before.keys():
            # Kafka answers but lacks the topic. The process ends if this lasts `patience_s`. Partition -1: all are
            # missing.
            log.warning("topic.gone", topic=name, partition=-1, patience_s=GONE_S)
        if topic:
            self.error = KafkaRefused(describe_deleted(topic, GONE_S))

    def stop(self) -> None:
        """End the thread after its current request."""
        self._over.set()

    def _list_topics(self) -> Collection[str] | None:
        try:
            return get_admin(self._connection).list_topics(timeout=ANSWER_S).topics  # naming one might recreate it
        except KafkaException:
            forget_admins()
            return None


def describe_deleted(what: str, patience_s: float) -> str:
    """Return the message about a deleted topic or partition."""
    return (
        f"{what} was deleted: Kafka has answered for {patience_s:.0f} s that it does not exist. The run cannot go on "
        "without its records: begin a new run"
    )
