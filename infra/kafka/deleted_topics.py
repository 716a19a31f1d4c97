"""Topics that were deleted under a running component, told apart from an unreachable broker by listing the topics.

Clients say nothing of it: a producer without a time-out waits for ever for the topic to come back, and a member of a
consumer group is assigned nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable

import structlog
from confluent_kafka import KafkaException

from headrace.infra.kafka.clients import Connection, KafkaRefused, get_admin

log = structlog.get_logger()

GONE_S = 20.0
"""A topic that is not there for so long, while Kafka answers, was deleted."""
TOPICS_LOOK_EVERY_S = 10.0
"""A topic's loss is reported after at most this and GONE_S."""
SOON_S = 1.0
"""How often is asked while one is missing."""
ANSWER_S = 5.0


class MissingTopics:
    """Since when topics have been missing that were there before, while Kafka answered without a gap. No I/O.

    Args:
        topics: Which; one that was never there, as of a region that is not mirrored yet, is waited for.
        patience_s: A topic that is missing for so long is gone.
    """

    def __init__(self, topics: Iterable[str], patience_s: float) -> None:
        self._topics, self._patience_s = tuple(topics), patience_s
        self._seen: set[str] = set()
        self.since: dict[str, float] = {}
        """Topic to when it was missing first."""

    def see(self, known: Collection[str] | None, now: float) -> str:
        """Take in which topics there are, None where Kafka does not answer; return one that is gone, or nothing."""
        if known is None:
            self.since = {}
            return ""
        self._seen.update(topic for topic in self._topics if topic in known)
        self.since = {topic: self.since.get(topic, now) for topic in self._topics if topic in self._seen - set(known)}
        return next((topic for topic, since in self.since.items() if now - since >= self._patience_s), "")


class TopicWatch(threading.Thread):
    """Asks again and again whether all topics are still there that a component reads or writes.

    Args:
        connection: The cluster.
        topics: Which.
    """

    def __init__(self, connection: Connection, topics: Iterable[str]) -> None:
        super().__init__(name="topic-watch", daemon=True)
        self.error: KafkaRefused | None = None
        """What the component has to end with."""
        self._connection, self._over = connection, threading.Event()
        self._missing = MissingTopics(topics, GONE_S)

    def run(self) -> None:
        """Ask until `stop`, or until a topic is gone."""
        self.look()
        while self.error is None and not self._over.wait(SOON_S if self._missing.since else TOPICS_LOOK_EVERY_S):
            self.look()

    def look(self) -> None:
        """Ask once."""
        before = self._missing.since
        topic = self._missing.see(self._list_topics(), time.monotonic())
        for name in self._missing.since.keys() - before.keys():
            log.warning("topic.gone", topic=name, partition=-1, patience_s=GONE_S)
        if topic:
            self.error = KafkaRefused(describe_deleted(topic, GONE_S))

    def stop(self) -> None:
        """End the thread, after the question that it waits for."""
        self._over.set()

    def _list_topics(self) -> Collection[str] | None:
        try:
            return get_admin(self._connection).list_topics(timeout=ANSWER_S).topics  # naming one might make it anew
        except KafkaException:
            return None


def describe_deleted(what: str, patience_s: float) -> str:
    """Return what to say of a topic or partition that was deleted."""
    return (
        f"{what} was deleted: Kafka has answered for {patience_s:.0f} s that it does not exist. The run cannot go on "
        "without its records: begin a new run"
    )
