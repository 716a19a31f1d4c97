"""Parses the addresses of a Kafka cluster in recipes and run addresses."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from headrace.infra.errors import MaskedValueError

_BROKER = re.compile(r"(?:\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[^\s:/@\[\]]+):(\d{1,5})")
LAST_PORT = 65535


def parse_bootstrap(text: str) -> str:
    """Return the brokers as `host:port`, separated by commas without blanks; empty for an empty text.

    Raises MaskedValueError, which names the first invalid part.
    """
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    for part in parts:
        found = _BROKER.fullmatch(part)
        if found is None or not 1 <= int(found[1]) <= LAST_PORT:
            shown = f"…@{part.rpartition('@')[2]}" if "@" in part else part  # before it may be a password
            raise MaskedValueError(
                f"holds {shown!r}, which is not HOST:PORT: write addresses as kafka-1:9092 or [::1]:9092, separated by "
                "commas and without a scheme (for TLS set security.protocol in kafka.client)"
            )
    return ",".join(parts)


Bootstrap: TypeAlias = Annotated[str, AfterValidator(parse_bootstrap)]
"""A recipe's text with broker addresses, perhaps empty."""
