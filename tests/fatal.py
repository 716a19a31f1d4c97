"""A fatal error of the Kafka client, as it raises one: in Python it is no exception."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

from confluent_kafka import KafkaError


def raise_no_exception(error: KafkaError) -> None:
    """Raise a KafkaError, as code in C can: in Python it is no exception."""
    raising = ctypes.pythonapi.PyErr_SetObject
    raising.argtypes = [ctypes.py_object, ctypes.py_object]
    raising(KafkaError, error)


def find_raised(call: Callable[[], object]) -> object:
    """Return what a call raises, also if it is no exception, which pytest would not survive."""
    try:
        call()
    except:  # noqa: E722
        return sys.exc_info()[1]
    return None
