"""A reader needs no right beyond the run's prefix, and says of what it was refused."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError

from headrace.infra.kafka import clients
from headrace.infra.kafka.clients import Connection, KafkaRefused
from headrace.infra.kafka.topic_reader import TopicReader


class Refusal:
    """What librdkafka hands over where it may not ask for a group: an error of no topic."""

    def error(self) -> KafkaError:
        return KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)

    def topic(self) -> None:
        return None


class Refused:
    """A consumer that is refused at once."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def assign(self, _: Any) -> None: ...

    def consume(self, *_: Any) -> list[Refusal]:
        return [Refusal()]


def test_a_reader_stays_under_the_prefix_of_its_run_and_names_what_it_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Refused] = []
    monkeypatch.setattr(clients, "WatchedConsumer", lambda config: made.append(Refused(config)) or made[-1])
    reader = TopicReader(Connection("k:1"), {("a-run.recipe", 0): 0, ("a-run.state", 0): 0}, "page")
    assert made[0].config["group.id"].startswith("a-run.")
    with pytest.raises(KafkaRefused, match=r"^reading a-run\.recipe, a-run\.state: Kafka answers GROUP_AUTHORIZATION"):
        reader.poll()
