"""A fatal error of the Kafka client, as it raises one."""

from __future__ import annotations

import ctypes

from confluent_kafka import KafkaError


def raise_no_exception(error: KafkaError) -> None:
    """Raise a KafkaError, as confluent-kafka does in C: in Python it is no exception."""
    raising = ctypes.pythonapi.PyErr_SetObject
    raising.argtypes = [ctypes.py_object, ctypes.py_object]
    raising(KafkaError, error)
