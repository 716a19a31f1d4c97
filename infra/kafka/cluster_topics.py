"""The topics of a cluster: the first question that is asked of it, and so the one that tells who is not let in."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import KafkaException
from confluent_kafka.admin import ClusterMetadata

from headrace.infra.backoff import Backoff
from headrace.infra.kafka.clients import (
    SETTLING_S,
    Connection,
    KafkaRefused,
    call_patiently,
    fetch_end_offsets,
    fetch_stable_ends,
    get_admin,
    name_cluster,
)
from headrace.infra.kafka.cluster_entry import ENTRIES

FIRST_ANSWER_S = 1.0


class NotLetIn(KafkaRefused):
    """The cluster does not take this client's user, password or certificates, and never has."""


def fetch_topics(connection: Connection, patience_s: float, longest_answer_s: float = 10.0) -> ClusterMetadata:
    """Return the topics and brokers of a cluster, waiting for unreachable ones.

    All topics are listed: asking for one by its name may create it. As long as nobody has answered this process, each
    question waits only twice as long as the last: what is refused is known when a question ends, not before.

    Raises KafkaAway at the end of patience, and NotLetIn at once where the cluster never let this client in.
    """
    admin, cluster = get_admin(connection), name_cluster(connection)
    waits = Backoff(FIRST_ANSWER_S, longest_answer_s)

    def ask() -> ClusterMetadata:
        try:
            found = admin.list_topics(timeout=longest_answer_s if ENTRIES.has_entered(cluster) else waits.next_s())
        except KafkaException:
            admin.poll(0)  # takes its reports
            if refusal := ENTRIES.find_refusal(cluster, connection.bootstrap, connection.client):
                raise NotLetIn(f"Kafka at {connection.bootstrap} does not let this client in: {refusal}") from None
            raise
        ENTRIES.note_entry(cluster)
        return found

    found: ClusterMetadata = call_patiently(ask, "listing topics", patience_s)
    return found


def find_held_back(connection: Connection, topics: Iterable[str]) -> list[tuple[str, int]]:
    """Return the partitions of these topics whose readers wait for a transaction to end; topics may be missing."""
    wanted = list(topics)
    if not wanted:
        return []
    known = fetch_topics(connection, SETTLING_S).topics
    partition_ids = [(topic, partition) for topic in wanted if topic in known for partition in known[topic].partitions]
    stable, ends = fetch_stable_ends(connection, partition_ids), fetch_end_offsets(connection, partition_ids)
    return [partition_id for partition_id in partition_ids if stable[partition_id] < ends[partition_id]]
