"""Asks Kafka to create topics, without the settings that only tune where a cluster refuses those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.infra.kafka.admin_answers import await_answer
from headrace.schemas.topics import TopicSpec

log = structlog.get_logger()

REFUSED_SETTINGS = frozenset({KafkaError.POLICY_VIOLATION, KafkaError.INVALID_CONFIG})
"""Answers to settings that a cluster does not allow, such as a `segment.bytes` below its least."""


def request_topics(
    admin: AdminClient, specs: Sequence[TopicSpec], replication: int = -1, **options: Any
) -> dict[str, KafkaException | None]:
    """Create topics, or only validate this; return the error of each, None for success.

    A topic that Kafka refuses because of its settings is requested again, only with those that the run requires.
    """
    new = [NewTopic(one.name, one.partitions, replication, config={**one.config, **one.made_with}) for one in specs]
    errors = list_errors(admin.create_topics(new, **options))
    again = [one for one in specs if one.made_with and _is_refused(errors[one.name])]
    if again:
        # The cluster refuses settings of topics that only tune; the topics are made without them.
        log.info("topics.not_tuned", topics=[one.name for one in again], why=str(errors[again[0].name]))
        plain = [NewTopic(one.name, one.partitions, replication, config=one.config) for one in again]
        errors |= list_errors(admin.create_topics(plain, **options))
    return errors


def list_errors(futures: Mapping[str, Future[Any]]) -> dict[str, KafkaException | None]:
    """Return the error of each answer; None for success."""
    found: dict[str, KafkaException | None] = {}
    for name, future in futures.items():
        try:
            await_answer(future)
        except KafkaException as error:
            found[name] = error
        else:
            found[name] = None
    return found


def _is_refused(error: KafkaException | None) -> bool:
    return error is not None and error.args[0].code() in REFUSED_SETTINGS
