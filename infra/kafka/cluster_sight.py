"""Inspects a cluster, without changes, before anything is started on it; `ops.preflight.cluster` judges the result.

Data that cannot be read is None, with the reason in `refused`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, ResourceType

from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.admin_answers import await_answer
from headrace.infra.kafka.advertised import Advertised, look_at_advertised
from headrace.infra.kafka.clients import (
    Connection,
    KafkaRefused,
    call_patiently,
    get_admin,
    open_transactional_producer,
)
from headrace.infra.kafka.cluster_topics import fetch_topics
from headrace.infra.kafka.group_offsets import REQUEST_S, await_coordinator
from headrace.infra.kafka.topic_creation import list_errors, request_topics
from headrace.schemas.topics import TopicSpec

TRANSACTION_S = 15.0
COORDINATOR_S = 5.0
"""Seconds to wait for a new coordinator."""
IDLE = ("EMPTY", "DEAD", "UNKNOWN")
"""States of a group without members."""
FORBIDDEN = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED)
UNMAKEABLE = (KafkaError.POLICY_VIOLATION, KafkaError.INVALID_CONFIG, KafkaError.INVALID_REPLICATION_FACTOR)
CREATE, ALL_BUT_CREATE = frozenset({"CREATE"}), frozenset({"READ", "WRITE", "DESCRIBE", "DELETE"})
INTERNAL = ("__consumer_offsets", "__transaction_state")


@dataclass(frozen=True, slots=True)
class SeenTopic:
    """An existing topic."""

    partitions: int
    replicas: int = 1
    """Replicas of the partition with the fewest."""
    config: Mapping[str, str] | None = None
    operations: frozenset[str] | None = None
    """Operations that this client may do on it, by Kafka's names."""


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """A consumer group."""

    is_at_work: bool = False
    """Whether it has members."""
    is_classic: bool = False
    """Whether its members use the older protocol."""
    operations: frozenset[str] | None = None
    """Operations that this client may do on it; None if unknown."""


@dataclass(frozen=True, slots=True)
class SeenCluster:
    """A cluster as this client sees it."""

    bootstrap: str
    brokers: tuple[Advertised, ...] = ()
    settings: Mapping[str, str] | None = None
    """Settings of one broker; None if this client may not read them."""
    topics: Mapping[str, SeenTopic] = field(default_factory=dict)
    """Existing topics among those requested, and Kafka's internal topics."""
    groups: Mapping[str, SeenGroup] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    """Requests without an answer and the reasons: settings, topics, groups, transactions."""
    forbidden: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Missing or hidden topics, with operations that this client certainly may not do on them."""
    unmakeable: Mapping[str, str] = field(default_factory=dict)
    """Missing topics that cannot be created, and why, if not for lack of a right."""
    round_trip_s: float = 0.0
    """Seconds of a request over a connection that was there; 0 if none was measured."""


def look_at_cluster(
    connection: Connection, topics: Sequence[TopicSpec], groups: Iterable[str], transactional_id: str
) -> SeenCluster:
    """Return the state of some topics and groups. Raises KafkaAway or KafkaRefused if no broker answers.

    Args:
        connection: The cluster.
        topics: Specifications of the topics.
        groups: Names of the groups.
        transactional_id: Unused id to try a transaction with; empty for none.
    """
    brokers = look_at_advertised(connection)
    if any(broker.error for broker in brokers):  # every further request would wait for it
        return SeenCluster(connection.bootstrap, brokers)
    began_s = time.monotonic()
    listed = fetch_topics(connection, REQUEST_S)
    round_trip_s = time.monotonic() - began_s
    look = _Look(connection)
    broker = str(next(iter(listed.brokers), 0))
    own = [spec.name for spec in topics if spec.name in listed.topics]
    missing = [spec for spec in topics if spec.name not in listed.topics]
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
    seen = look.fetch_groups(groups)
    forbidden, unmakeable = look.ask("topics", lambda: look.try_topics(missing)) or ({}, {})
    if transactional_id:
        look.ask("transactions", lambda: _try_transaction(connection, transactional_id))
    settings = look.fetch_configs("settings", ResourceType.BROKER, [broker])[broker]
    return SeenCluster(
        connection.bootstrap, brokers, settings, found, seen, look.refused, forbidden, unmakeable, round_trip_s
    )


def _try_transaction(connection: Connection, transactional_id: str) -> None:
    """Take over a transactional id, as every component does at its start, without writing."""
    open_transactional_producer(connection, transactional_id, TRANSACTION_S)


class _Look:
    """Makes requests, and keeps the reasons for missing answers."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.admin = get_admin(connection)
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
        """Return the settings of each resource with one request; None if they may not be read."""
        resources = {name: ConfigResource(kind, name) for name in names}
        futures = self.admin.describe_configs([*resources.values()], request_timeout=REQUEST_S) if names else {}
        return {
            name: self.ask(what, lambda resource=resource: _values(await_answer(futures[resource])))
            for name, resource in resources.items()
        }

    def fetch_rights(self, names: list[str]) -> dict[str, frozenset[str] | None]:
        if not names:
            return {}
        futures = self.admin.describe_topics(
            TopicCollection(names), include_authorized_operations=True, request_timeout=REQUEST_S
        )
        return {name: _operations(await_answer(future)) for name, future in futures.items()}

    def fetch_groups(self, names: Iterable[str]) -> dict[str, SeenGroup]:
        """Return the groups as shown to this client; stop if a coordinator does not answer."""
        found: dict[str, SeenGroup] = {}
        for name in names:
            known = None if "groups" in self.refused else self.ask("groups", partial(self.fetch_group, name))
            found[name] = known or SeenGroup()
        return found

    def fetch_group(self, name: str) -> SeenGroup:
        """Return a group as shown to this client; a group that never existed has no members."""

        def describe() -> Any:
            asked = self.admin.describe_consumer_groups(
                [name], include_authorized_operations=True, request_timeout=REQUEST_S
            )
            return await_answer(asked[name])

        await_coordinator(self.connection, name, COORDINATOR_S)
        try:
            one = call_patiently(describe, f"looking at group {name}", COORDINATOR_S)
        except KafkaRefused as error:
            if _is_forbidden(error.__cause__):
                return SeenGroup(operations=frozenset())
            raise
        is_at_work = one.state.name not in IDLE
        return SeenGroup(is_at_work, getattr(one.type, "name", "") == "CLASSIC", _operations(one))

    def try_topics(self, missing: list[TopicSpec]) -> tuple[dict[str, frozenset[str]], dict[str, str]]:
        """Let Kafka validate the creation of missing topics; return forbidden operations, and other refusals.

        A client that may not describe a topic may not read, write or delete it either, because these rights include it.
        """
        if not missing:
            return {}, {}
        made = request_topics(self.admin, missing, validate_only=True, request_timeout=REQUEST_S)
        names = TopicCollection([spec.name for spec in missing])
        described = list_errors(self.admin.describe_topics(names, request_timeout=REQUEST_S))
        forbidden = {
            spec.name: (CREATE if _is_forbidden(made[spec.name]) else frozenset())
            | (ALL_BUT_CREATE if _is_forbidden(described[spec.name]) else frozenset())
            for spec in missing
        }
        other = {
            name: error.args[0].str() or error.args[0].name()
            for name, error in made.items()
            if error is not None and not _is_forbidden(error) and error.args[0].code() in UNMAKEABLE
        }
        return forbidden, other


def _is_forbidden(error: BaseException | None) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() in FORBIDDEN


def _operations(described: Any) -> frozenset[str] | None:
    operations = described.authorized_operations
    return None if operations is None else frozenset(operation.name for operation in operations)


def _values(entries: Any) -> dict[str, str]:
    return {key: entry.value for key, entry in entries.items() if entry.value is not None}
