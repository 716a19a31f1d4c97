"""Fatal errors of the Kafka client, which may reach Python as something that is no exception."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException


def call_client(call: Callable[[], Any]) -> Any:
    """Call librdkafka. Raises KafkaException for a fatal error that the client meets while it polls.

    Such an error was once seen as a bare KafkaError (confluent-kafka 2.16), which is no exception: nothing but a bare
    `except` catches it.
    """
    try:
        return call()
    except:  # noqa: E722
        fatal = sys.exc_info()[1]
        if not isinstance(fatal, KafkaError):
            raise
    raise KafkaException(fatal)  # outside of the handler: the KafkaError must not become its context
