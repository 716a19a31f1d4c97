"""The addresses by which a client finds a Kafka cluster, as recipes and run addresses name them."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from headrace.infra.errors import MaskedValueError

_BROKER = re.compile(r"(?:\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[^\s:/@\[\]]+):(\d{1,5})")
LAST_PORT = 65535


def parse_bootstrap(text: str) -> str:
    """Return `host:port` of each broker, with commas and without blanks; empty for an empty text.

    Raises MaskedValueError that names the first part which is no address.
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
"""A text of a recipe that names brokers, or none."""
