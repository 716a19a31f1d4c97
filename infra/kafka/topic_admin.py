"""Creates a run's topics, and checks existing ones."""

from __future__ import annotations

import time
from collections.abc import Iterable

import structlog
from confluent_kafka import KafkaError, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from headrace.infra.errors import HeadraceError
from headrace.infra.inflection import inflect
from headrace.infra.kafka.admin_answers import await_answer
from headrace.infra.kafka.clients import (
    Connection,
    KafkaAway,
    KafkaRefused,
    get_admin,
    translate_error,
    translate_kafka_errors,
)
from headrace.infra.kafka.cluster_topics import fetch_topics
from headrace.infra.kafka.topic_creation import request_topics
from headrace.infra.kafka.topic_offsets import fetch_partition_count
from headrace.schemas.topics import TopicSpec, list_unmet

log = structlog.get_logger()

TOPICS_PATIENCE_S = 30.0
SESSION_S = 45.0
"""Kafka's default of `group.consumer.session.timeout.ms`, in seconds."""


class TopicDiffers(HeadraceError):
    """A topic exists with other settings than the run needs."""


def ensure_topics(connection: Connection, specs: Iterable[TopicSpec], replication: int = -1) -> list[str]:
    """Create missing topics; return their names. Raises TopicDiffers if an existing topic differs.

    The number of partitions is fixed for a run: a group's partition is its number modulo this, so with another count a
    second copy of a number would bypass the dedupe that saw the first.
    """
    wanted = {spec.name: spec for spec in specs}
    found = fetch_topics(connection, TOPICS_PATIENCE_S).topics
    admin = get_admin(connection)
    missing = [spec for name, spec in wanted.items() if name not in found]
    counts = [
        _describe_count(name, len(found[name].partitions), spec.partitions)
        for name, spec in wanted.items()
        if name in found and len(found[name].partitions) != spec.partitions
    ]
    settings = _find_config_differences(admin, [spec for name, spec in wanted.items() if name in found])
    if counts or settings:
        remedy = (
            advise_other_name(connection, next(iter(wanted)))
            if counts
            else "Correct the topics' settings with Kafka's tools, or begin a run of another name by --set name=NAME"
        )
        raise TopicDiffers(f"topics differ from what the run needs: {'; '.join([*counts, *settings])}. {remedy}")
    _create(admin, missing, replication)
    return [spec.name for spec in missing]


def require_partition_count(connection: Connection, topic: str, wanted: int) -> None:
    """Raise TopicDiffers unless a topic has its run's number of partitions. Also raises KafkaAway and KafkaRefused.

    With another count a component would look for a number on the wrong partition.
    """
    found = fetch_partition_count(connection, topic)
    if found != wanted:
        raise TopicDiffers(f"{_describe_count(topic, found, wanted)}. {advise_other_name(connection, topic)}")


def _describe_count(topic: str, found: int, wanted: int) -> str:
    return f"{topic} has {found} {inflect(found, 'partition')}, the run needs {wanted}"


def advise_other_name(connection: Connection, topic: str) -> str:
    """Return the advice for a topic with another number of partitions."""
    run = topic.partition(".")[0]
    return (
        "The number of partitions is fixed for a run, and Kafka cannot lower it: begin a new run with --set name=NAME. "
        "To begin it with the weights of this run, use " + describe_branching(connection.bootstrap, run, f"{run}-2")
    )


def describe_branching(bootstrap: str, run: str, name: str, version: object = "best") -> str:
    """Return the command that begins run `name` with the weights of a version of a run."""
    return (
        f"`headrace up RECIPE --set name={name} --branch kafka://{bootstrap}/{run}@{version}` (if the Kafka of {run} "
        f"is embedded, --branch FOLDER@{version} with the data folder of {run})"
    )


def _create(admin: AdminClient, missing: list[TopicSpec], replication: int) -> None:
    if not missing:
        return
    for name, error in request_topics(admin, missing, replication, operation_timeout=30, request_timeout=35).items():
        if error is not None and error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # another launcher was faster
            raise translate_error(error, f"creating topic {name}") from error
    _await_listed(admin, {spec.name for spec in missing})
    log.info("topics.created", count=len(missing))


def delete_topics(connection: Connection, names: Iterable[str]) -> None:
    """Delete existing topics among these. Raises KafkaAway or KafkaRefused."""
    found = fetch_topics(connection, TOPICS_PATIENCE_S).topics
    admin = get_admin(connection)
    there = [name for name in names if name in found]
    if not there:
        return
    for name, future in admin.delete_topics(there, operation_timeout=30, request_timeout=35).items():
        with translate_kafka_errors(f"deleting topic {name}"):
            await_answer(future)


def fetch_topic_ids(connection: Connection, names: Iterable[str]) -> dict[str, str]:
    """Return Kafka's ids of topics (KIP-516): a recreated topic has another id."""
    wanted = TopicCollection(list(names))
    futures = get_admin(connection).describe_topics(wanted, request_timeout=10)
    with translate_kafka_errors("describing topics"):
        return {name: str(await_answer(future).topic_id) for name, future in futures.items()}


def _await_listed(admin: AdminClient, names: set[str], patience_s: float = 10) -> None:
    """Wait until the broker lists new topics; before that, requests would find them missing."""
    end = time.monotonic() + patience_s
    while missing := names - admin.list_topics(timeout=10).topics.keys():
        if time.monotonic() > end:
            raise KafkaAway(
                f"topics were created, but Kafka does not list them after {patience_s:.0f} s: "
                f"{', '.join(sorted(missing))}. Check that all brokers run, and give the same command again"
            )
        time.sleep(0.02)


def fetch_session_timeout_s(connection: Connection) -> float:
    """Return the consumer session time-out of the cluster in seconds.

    Returns Kafka's default if this client may not read settings. Raises KafkaAway.
    """
    admin = get_admin(connection)
    with translate_kafka_errors("listing brokers"):
        brokers = admin.list_topics(timeout=10).brokers
    resource = ConfigResource(ResourceType.BROKER, str(next(iter(brokers), 0)))
    try:
        with translate_kafka_errors("reading settings of a broker"):
            entries = await_answer(admin.describe_configs([resource], request_timeout=10)[resource])
    except KafkaRefused as error:
        # Kafka does not tell the session timeout of consumers; its default is assumed.
        log.info("session.not_asked", why=str(error))
        return SESSION_S
    entry = entries.get("group.consumer.session.timeout.ms")
    return int(entry.value) / 1000 if entry is not None and entry.value else SESSION_S


def _find_config_differences(admin: AdminClient, specs: list[TopicSpec]) -> list[str]:
    if not specs:
        return []
    resources = [ConfigResource(ResourceType.TOPIC, spec.name) for spec in specs]
    futures = admin.describe_configs(resources, request_timeout=10)
    differences = []
    for spec, resource in zip(specs, resources, strict=True):
        with translate_kafka_errors(f"reading settings of topic {spec.name}"):
            entries = await_answer(futures[resource])
        config = {key: str(entry.value) for key, entry in entries.items()}
        differences += [
            f"{spec.name} has {key}={config[key]}, the run needs {spec.config[key]}"
            for key in list_unmet(spec.config, config)
        ]
    return differences
