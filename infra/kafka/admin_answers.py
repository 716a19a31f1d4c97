"""Takes the answers of the admin client, which may lose a request."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

T = TypeVar("T")

LONGEST_ANSWER_S = 40.0
"""Longer than the longest timeout that a request is given, which is 35 s."""


def await_answer(future: Future[T], timeout_s: float = LONGEST_ANSWER_S) -> T:
    """Return an answer. Raises KafkaException: what the request met, or `_TIMED_OUT` for a request that was lost."""
    try:
        return future.result(timeout_s)
    except TimeoutError:
        lost = KafkaError(KafkaError._TIMED_OUT, f"the Kafka client gave no answer within {timeout_s:g} s")  # noqa: SLF001
    raise KafkaException(lost)
