"""One look at a cluster before anything is started on it: what `ops.cluster_checks` judges. Nothing is changed.

What may not be asked, or cannot be, is None, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType

from headrace.infra.errors import HeadraceError
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
from headrace.schemas.topics import TopicSpec

TRANSACTION_S = 15.0
COORDINATOR_S = 5.0
"""How long a coordinator may take that is just made."""
IDLE = ("EMPTY", "DEAD", "UNKNOWN")
"""States of a group without members."""
FORBIDDEN = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED)
UNMAKEABLE = (KafkaError.POLICY_VIOLATION, KafkaError.INVALID_CONFIG, KafkaError.INVALID_REPLICATION_FACTOR)
CREATE, ALL_BUT_CREATE = frozenset({"CREATE"}), frozenset({"READ", "WRITE", "DESCRIBE", "DELETE"})
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
    operations: frozenset[str] | None = None
    """What this client may do with it; None if nobody says."""


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
    forbidden: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Topics that are not there, or not shown, with operations that this client may not do with them for certain."""
    unmakeable: Mapping[str, str] = field(default_factory=dict)
    """Topics that are not there and cannot be made, and why; not for lack of a right."""


def look_at_cluster(
    connection: Connection, topics: Sequence[TopicSpec], groups: Iterable[str], transactional_id: str
) -> SeenCluster:
    """Return what is there of some topics and groups. Raises KafkaAway and KafkaRefused when no broker answers.

    Args:
        connection: The cluster.
        topics: As they should be.
        groups: Names.
        transactional_id: With which a transaction is tried, empty for none; nobody else may have it.
    """
    brokers = look_at_advertised(connection)
    if any(broker.error for broker in brokers):  # every further question would wait for it
        return SeenCluster(connection.bootstrap, brokers)
    look = _Look(connection)
    listed = fetch_topics(connection, REQUEST_S)
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
    return SeenCluster(connection.bootstrap, brokers, settings, found, seen, look.refused, forbidden, unmakeable)


def _try_transaction(connection: Connection, transactional_id: str) -> None:
    """Take a transactional id over, as every component does at its start; nothing is written."""
    open_transactional_producer(connection, transactional_id, TRANSACTION_S)


class _Look:
    """Asks, and keeps why there was no answer."""

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

    def fetch_groups(self, names: Iterable[str]) -> dict[str, SeenGroup]:
        """Return groups as this client is shown them; where a coordinator does not answer, no more is asked."""
        found: dict[str, SeenGroup] = {}
        for name in names:
            known = None if "groups" in self.refused else self.ask("groups", partial(self.fetch_group, name))
            found[name] = known or SeenGroup()
        return found

    def fetch_group(self, name: str) -> SeenGroup:
        """Return a group as this client is shown it; one that never was has no members."""

        def describe() -> Any:
            asked = self.admin.describe_consumer_groups(
                [name], include_authorized_operations=True, request_timeout=REQUEST_S
            )
            return asked[name].result()

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
        """Let Kafka check, and not make, topics that are not there; return what is forbidden, and why else it refuses.

        Who may not even describe a topic may not read, write or delete it: each of these rights holds that one.
        """
        if not missing:
            return {}, {}
        new = [NewTopic(spec.name, spec.partitions, config={**spec.config, **spec.made_with}) for spec in missing]
        made = _errors_of(self.admin.create_topics(new, validate_only=True, request_timeout=REQUEST_S))
        names = TopicCollection([spec.name for spec in missing])
        described = _errors_of(self.admin.describe_topics(names, request_timeout=REQUEST_S))
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


def _errors_of(futures: Mapping[str, Future[Any]]) -> dict[str, KafkaException | None]:
    found: dict[str, KafkaException | None] = {}
    for name, future in futures.items():
        try:
            future.result()
        except KafkaException as error:
            found[name] = error
        else:
            found[name] = None
    return found


def _is_forbidden(error: BaseException | None) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() in FORBIDDEN


def _operations(described: Any) -> frozenset[str] | None:
    operations = described.authorized_operations
    return None if operations is None else frozenset(operation.name for operation in operations)


def _values(entries: Any) -> dict[str, str]:
    return {key: entry.value for key, entry in entries.items() if entry.value is not None}
