"""One look at a cluster before anything is started on it: what `ops.cluster_checks` judges. Nothing is changed.

What may not be asked, or cannot be, is None, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.advertised import Advertised, look_at_advertised
from headrace.infra.kafka.clients import (
    Connection,
    KafkaAway,
    KafkaRefused,
    fetch_topics,
    open_admin,
    open_transactional_producer,
)
from headrace.infra.kafka.group_offsets import REQUEST_S, fetch_commits

TRANSACTION_S = 15.0
IDLE = ("EMPTY", "DEAD", "UNKNOWN")
"""States of a group without members."""
INTERNAL = ("__consumer_offsets", "__transaction_state")


@dataclass(frozen=True, slots=True)
class SeenTopic:
    """A topic that is there."""

    partitions: int
    replicas: int = 1
    """Of the partition with the fewest."""
    config: Mapping[str, str] | None = None
    operations: frozenset[str] | None = None
    """What this client may do with it, as Kafka names operations."""


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """A consumer group."""

    is_at_work: bool = False
    """Whether it has members."""
    is_classic: bool = False
    """Whether they speak the older protocol."""
    refused: str = ""
    """Why its offsets may not be read."""


@dataclass(frozen=True, slots=True)
class SeenCluster:
    """A cluster as this client sees it."""

    bootstrap: str
    brokers: tuple[Advertised, ...] = ()
    settings: Mapping[str, str] | None = None
    """Of one broker; None where this client may not ask."""
    topics: Mapping[str, SeenTopic] = field(default_factory=dict)
    """Those that were asked about and are there, and Kafka's own."""
    groups: Mapping[str, SeenGroup] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    """What was asked and not answered, and why: settings, topics, groups, transactions."""


def look_at_cluster(
    connection: Connection, topics: Iterable[str], groups: Mapping[str, Iterable[str]], transactional_id: str
) -> SeenCluster:
    """Return what is there of some topics and groups. Raises KafkaAway and KafkaRefused when no broker answers.

    Args:
        connection: The cluster.
        topics: Names.
        groups: Names, each with the topics that it reads.
        transactional_id: With which a transaction is tried, empty for none; nobody else may have it.
    """
    brokers = look_at_advertised(connection)
    if any(broker.error for broker in brokers):  # every further question would wait for it
        return SeenCluster(connection.bootstrap, brokers)
    look = _Look(open_admin(connection))
    listed = fetch_topics(connection, REQUEST_S)
    broker = str(next(iter(listed.brokers), 0))
    own = [name for name in topics if name in listed.topics]
    configs = look.fetch_configs("topics", ResourceType.TOPIC, own)
    rights = look.ask("topics", lambda: look.fetch_rights(own)) or {}
    found = {name: SeenTopic(len(listed.topics[name].partitions)) for name in INTERNAL if name in listed.topics} | {
        name: SeenTopic(
            len(listed.topics[name].partitions),
            min((len(one.replicas) for one in listed.topics[name].partitions.values()), default=0),
            configs[name],
            rights.get(name),
        )
        for name in own
    }
    seen = look.ask("groups", look.fetch_groups) or {}
    seen = {
        name: replace(
            seen.get(name, SeenGroup()), refused=_try_group(connection, name, [t for t in read if t in found])
        )
        for name, read in groups.items()
    }
    if transactional_id:
        look.ask("transactions", lambda: _try_transaction(connection, transactional_id))
    settings = look.fetch_configs("settings", ResourceType.BROKER, [broker])[broker]
    return SeenCluster(connection.bootstrap, brokers, settings, found, seen, look.refused)


def _try_transaction(connection: Connection, transactional_id: str) -> None:
    """Take a transactional id over, as every component does at its start; nothing is written."""
    open_transactional_producer(connection, transactional_id, TRANSACTION_S)


def _try_group(connection: Connection, group: str, topics: list[str]) -> str:
    """Return why a group's offsets may not be read; empty where they may, or where nothing is there to read."""
    try:
        if topics:
            fetch_commits(connection, group, topics[:1])
    except KafkaAway:  # a transaction of the group is pending: whoever may not read is told so at once
        return ""
    except KafkaRefused as error:
        return str(error)
    return ""


class _Look:
    """Asks, and keeps why there was no answer."""

    def __init__(self, admin: AdminClient) -> None:
        self.admin = admin
        self.refused: dict[str, str] = {}

    def ask(self, what: str, call: Any) -> Any:
        try:
            return call()
        except KafkaException as error:
            self.refused.setdefault(what, error.args[0].str() or error.args[0].name())
        except HeadraceError as error:
            self.refused.setdefault(what, str(error))
        return None

    def fetch_configs(self, what: str, kind: ResourceType, names: list[str]) -> dict[str, dict[str, str] | None]:
        """Return the settings of each, all asked for at once; None where they may not be read."""
        resources = {name: ConfigResource(kind, name) for name in names}
        futures = self.admin.describe_configs([*resources.values()], request_timeout=REQUEST_S) if names else {}
        return {
            name: self.ask(what, lambda resource=resource: _values(futures[resource].result()))
            for name, resource in resources.items()
        }

    def fetch_rights(self, names: list[str]) -> dict[str, frozenset[str] | None]:
        if not names:
            return {}
        futures = self.admin.describe_topics(
            TopicCollection(names), include_authorized_operations=True, request_timeout=REQUEST_S
        )
        return {name: _operations(future.result()) for name, future in futures.items()}

    def fetch_groups(self) -> dict[str, SeenGroup]:
        """Return all groups that this client is shown."""
        listed = self.admin.list_consumer_groups(request_timeout=REQUEST_S).result().valid
        return {
            one.group_id: SeenGroup(one.state.name not in IDLE, getattr(one.type, "name", "") == "CLASSIC")
            for one in listed
        }


def _operations(described: Any) -> frozenset[str] | None:
    operations = described.authorized_operations
    return None if operations is None else frozenset(operation.name for operation in operations)


def _values(entries: Any) -> dict[str, str]:
    return {key: entry.value for key, entry in entries.items() if entry.value is not None}
