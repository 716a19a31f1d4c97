"""What one look at a cluster asks of Kafka, and what it makes of the answers; a stand-in for its admin client."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from headrace.infra.kafka import cluster_sight
from headrace.infra.kafka.advertised import Advertised
from headrace.infra.kafka.clients import Connection
from headrace.infra.kafka.cluster_sight import SeenGroup, SeenTopic, look_at_cluster
from headrace.infra.kafka.topic_creation import request_topics
from headrace.schemas.topics import TopicSpec

THERE, MISSING, UNMAKEABLE = TopicSpec("t.there", 2), TopicSpec("t.missing", 1), TopicSpec("t.unmakeable", 1)
ANSWERING: list[str] = []
"""Groups whose coordinator was waited for."""
TOPICS = (THERE, MISSING, UNMAKEABLE)


def answer(given: Any) -> Future[Any]:
    """Return what Kafka's client returns of a question: a future of the answer, or of the error of that code."""
    done = Future[Any]()
    if isinstance(given, int):
        done.set_exception(KafkaException(KafkaError(given, "as said")))
    else:
        done.set_result(given)
    return done


def may(*operations: str) -> list[Any]:
    return [SimpleNamespace(name=operation) for operation in operations]


class Admin:
    """Kafka's answers to a client that may not do everything. It makes nothing."""

    def describe_configs(self, resources: list[Any], **_: Any) -> dict[Any, Future[Any]]:
        setting = {"max.message.bytes": SimpleNamespace(value="200")}
        return {
            one: answer(setting if one.name == THERE.name else KafkaError.CLUSTER_AUTHORIZATION_FAILED)
            for one in resources
        }

    def describe_topics(self, _names: Any, *, include_authorized_operations: bool = False, **_: Any) -> dict[str, Any]:
        if include_authorized_operations:
            return {THERE.name: answer(SimpleNamespace(authorized_operations=may("READ")))}
        codes = {
            MISSING.name: KafkaError.TOPIC_AUTHORIZATION_FAILED,
            UNMAKEABLE.name: KafkaError.UNKNOWN_TOPIC_OR_PART,
        }
        return {name: answer(code) for name, code in codes.items()}

    def create_topics(self, new: list[Any], *, validate_only: bool, **_: Any) -> dict[str, Any]:
        assert validate_only, "nothing is changed"
        assert [one.topic for one in new] == [MISSING.name, UNMAKEABLE.name]
        codes = {MISSING.name: KafkaError.TOPIC_AUTHORIZATION_FAILED, UNMAKEABLE.name: KafkaError.POLICY_VIOLATION}
        return {name: answer(code) for name, code in codes.items()}

    def describe_consumer_groups(self, names: list[str], **_: Any) -> dict[str, Any]:
        group = SimpleNamespace(
            state=SimpleNamespace(name="STABLE"),
            type=SimpleNamespace(name="CLASSIC"),
            authorized_operations=may("DESCRIBE"),
        )
        assert [name for name in names if name in ANSWERING] == names, "a coordinator answers before that is asked"
        return {name: answer(group if name == "t.seen" else KafkaError.GROUP_AUTHORIZATION_FAILED) for name in names}


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The transactional ids that were tried, on a cluster of one broker."""
    found = list[str]()

    def open_producer(_connection: Connection, transactional_id: str, _timeout_s: float) -> None:
        found.append(transactional_id)
        raise KafkaException(KafkaError(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "authorization failed"))

    partition = SimpleNamespace(replicas=[1])
    listed = SimpleNamespace(
        brokers={7: None}, topics={THERE.name: SimpleNamespace(partitions={0: partition, 1: partition})}
    )
    monkeypatch.setattr(cluster_sight, "look_at_advertised", lambda _: (Advertised("k", 1),))
    monkeypatch.setattr(cluster_sight, "get_admin", lambda _: Admin())
    monkeypatch.setattr(cluster_sight, "await_coordinator", lambda _, group, __: ANSWERING.append(group))
    monkeypatch.setattr(cluster_sight, "fetch_topics", lambda *_: listed)
    monkeypatch.setattr(cluster_sight, "open_transactional_producer", open_producer)
    return found


def test_one_look_finds_all_that_is_there_and_all_that_is_refused_and_makes_nothing(tried: list[str]) -> None:
    seen = look_at_cluster(Connection("k:1"), TOPICS, ["t.seen", "t.hidden"], "t.look")
    assert seen.topics == {THERE.name: SeenTopic(2, 1, {"max.message.bytes": "200"}, frozenset({"READ"}))}
    assert seen.groups == {
        "t.seen": SeenGroup(is_at_work=True, is_classic=True, operations=frozenset({"DESCRIBE"})),
        "t.hidden": SeenGroup(operations=frozenset()),
    }
    assert seen.forbidden == {
        MISSING.name: frozenset({"CREATE", "READ", "WRITE", "DESCRIBE", "DELETE"}),
        UNMAKEABLE.name: frozenset(),
    }
    assert seen.unmakeable == {UNMAKEABLE.name: "as said"}
    assert seen.refused == {"transactions": "authorization failed", "settings": "as said"}
    assert (seen.settings, tried) == (None, ["t.look"])


def test_without_a_transactional_id_none_is_tried(tried: list[str]) -> None:
    assert "transactions" not in look_at_cluster(Connection("k:1"), (), (), "").refused
    assert tried == []


def test_of_a_cluster_with_an_address_that_nobody_reaches_no_more_is_asked(
    tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = (Advertised("k", 1), Advertised("far", 9, "timed out"))
    monkeypatch.setattr(cluster_sight, "look_at_advertised", lambda _: silent)
    monkeypatch.setattr(cluster_sight, "fetch_topics", lambda *_: pytest.fail("it was asked further"))
    seen = look_at_cluster(Connection("k:1"), TOPICS, ["t.seen"], "t.look")
    assert (seen.brokers, dict(seen.topics), tried) == (silent, {}, [])


def test_a_topic_whose_tuning_the_cluster_refuses_is_made_without_it() -> None:
    made: list[dict[str, str]] = []

    class Admin:
        def create_topics(self, new: list[Any], **_: Any) -> dict[str, Any]:
            made.extend(one.config for one in new)
            return {
                one.topic: answer(KafkaError.POLICY_VIOLATION if "segment.bytes" in one.config else None) for one in new
            }

    specs = [TopicSpec("t.state", 1, {"cleanup.policy": "compact"}, {"segment.bytes": "1"}), TopicSpec("t.tasks.a", 1)]
    assert request_topics(cast("AdminClient", Admin()), specs) == {"t.state": None, "t.tasks.a": None}
    assert made == [{"cleanup.policy": "compact", "segment.bytes": "1"}, {}, {"cleanup.policy": "compact"}]
