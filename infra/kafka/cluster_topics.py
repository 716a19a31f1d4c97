"""Lists the topics of a cluster. This is the first request, so it also finds out whether the client is refused."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import KafkaException
from confluent_kafka.admin import ClusterMetadata

from headrace.infra.backoff import Backoff
from headrace.infra.kafka.clients import (
    Connection,
    KafkaAway,
    KafkaRefused,
    build_cluster_key,
    call_patiently,
    get_admin,
)
from headrace.infra.kafka.cluster_entry import ENTRIES
from headrace.infra.kafka.topic_offsets import SETTLING_S, fetch_end_offsets, fetch_stable_ends

FIRST_ANSWER_S = 1.0


class NotLetIn(KafkaRefused):
    """The cluster refuses this client's user, password or certificates, and has never accepted them."""


def fetch_topics(connection: Connection, patience_s: float, longest_answer_s: float = 10.0) -> ClusterMetadata:
    """Return the topics and brokers of a cluster, waiting for unreachable ones.

    It lists all topics, because a request for one by name may create it. Until the first answer, each request waits
    only twice as long as the last one, because a refusal is known only when a request ends.

    Raises KafkaAway after `patience_s`, and NotLetIn at once if the cluster has never accepted this client.
    """
    cluster = build_cluster_key(connection)
    waits = Backoff(FIRST_ANSWER_S, longest_answer_s)

    def ask() -> ClusterMetadata:
        admin = get_admin(connection)
        try:
            found = admin.list_topics(timeout=longest_answer_s if ENTRIES.has_entered(cluster) else waits.next_s())
        except KafkaException:
            admin.poll(0)  # takes in its reports
            if refusal := ENTRIES.find_refusal(cluster, connection.bootstrap, connection.client):
                raise NotLetIn(f"Kafka at {connection.bootstrap} does not let this client in: {refusal}") from None
            raise
        ENTRIES.note_entry(cluster)
        return found

    try:
        found: ClusterMetadata = call_patiently(ask, "listing topics", patience_s)
    except KafkaAway as error:
        if why := ENTRIES.describe_missing_token(cluster, connection.client):
            raise KafkaAway(f"Kafka at {connection.bootstrap} cannot be asked: {why}") from error
        raise
    return found


def list_partitions(connection: Connection, topics: Iterable[str]) -> list[tuple[str, int]]:
    """Return the partitions of these topics, which may be missing."""
    wanted = list(topics)
    if not wanted:
        return []
    known = fetch_topics(connection, SETTLING_S).topics
    return [(topic, partition) for topic in wanted if topic in known for partition in known[topic].partitions]


def find_held_back(connection: Connection, topics: Iterable[str]) -> list[tuple[str, int]]:
    """Return the partitions of these topics whose readers wait for a transaction to end; topics may be missing."""
    if not (partition_ids := list_partitions(connection, topics)):
        return []
    stable, ends = fetch_stable_ends(connection, partition_ids), fetch_end_offsets(connection, partition_ids)
    return [partition_id for partition_id in partition_ids if stable[partition_id] < ends[partition_id]]
