"""A limit of a topic, as somebody sets it on a shared cluster."""

from __future__ import annotations

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from headrace.infra.kafka.clients import Connection, get_admin


def set_limit(connection: Connection, topic: str, limit_bytes: int) -> None:
    """Set the largest message that a topic takes; brokers know it some time later."""
    limit = ConfigEntry("max.message.bytes", str(limit_bytes), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[limit])
    admin = get_admin(connection)
    admin.incremental_alter_configs([resource])[resource].result()
