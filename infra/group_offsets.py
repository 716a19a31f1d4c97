"""How far a consumer group is, asked from outside; and deleting what it is done with."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from infra.kafka import kafka_errors, partitions_of

REQUEST_S = 10.0


def committed_offsets(admin: AdminClient, group: str, topics: Iterable[str]) -> dict[tuple[str, int], int]:
    """Return a group's next offset by (topic, partition); what was never committed is left out.

    Raises KafkaAway or KafkaRefused.
    """
    asked = [TopicPartition(topic, p) for topic in topics for p in range(partitions_of(admin, topic))]
    with kafka_errors(f"asking how far group {group} is"):
        request = [ConsumerGroupTopicPartitions(group, asked)]
        future = admin.list_consumer_group_offsets(request, request_timeout=REQUEST_S)[group]
        try:
            found = future.result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return {}
            raise
    return {(tp.topic, tp.partition): tp.offset for tp in found.topic_partitions if tp.error is None and tp.offset >= 0}


def delete_before(admin: AdminClient, offsets: dict[tuple[str, int], int]) -> None:
    """Delete the records below these offsets. Raises KafkaAway or KafkaRefused."""
    asked = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
    with kafka_errors("deleting records that are done with"):
        for future in admin.delete_records(asked, request_timeout=REQUEST_S).values() if asked else ():
            future.result()
