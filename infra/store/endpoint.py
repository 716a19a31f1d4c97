"""Checks a recipe's endpoint and bucket of an object store."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator

from headrace.infra.errors import MaskedValueError
from headrace.infra.kafka.bootstrap import LAST_PORT

_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/?#@\[\]]+)(?::(\d{1,5}))?")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_IP = re.compile(r"(\d+\.){3}\d+")


def split_scheme(given: dict[str, Any]) -> dict[str, Any]:
    """Return a `[store]` table with the endpoint's scheme moved into `secure`. Raises ValueError."""
    endpoint = given.get("endpoint")
    scheme, _, host = endpoint.strip().partition("://") if isinstance(endpoint, str) else ("", "", "")
    if not host or scheme not in {"http", "https"}:
        return given  # `parse_endpoint` refuses it
    if scheme == "http" and given.get("secure") is True:
        raise ValueError("endpoint begins with http://, but secure is true: write https://host:port for TLS")
    return {**given, "endpoint": host, "secure": scheme == "https"}


def parse_endpoint(text: str) -> str:
    """Return `host:port` or a host, without blanks; empty for an empty text.

    Raises MaskedValueError.
    """
    host = text.strip()
    host = host if host.endswith("://") else host.removesuffix("/")
    if "@" in host:
        raise MaskedValueError(
            "holds a user or a password: write host:port, and set HEADRACE_S3_ACCESS_KEY and HEADRACE_S3_SECRET_KEY in "
            "the environment"
        )
    found = _HOST.fullmatch(host)
    if host and (found is None or not 1 <= int(found[1] or LAST_PORT) <= LAST_PORT):
        raise MaskedValueError(
            f"holds {host!r}, which is not HOST:PORT: write host:port, or https://host:port for TLS, and the bucket in "
            "store.bucket"
        )
    return host


def check_bucket(name: str) -> str:
    """Return the name of a bucket. Raises ValueError for an invalid bucket name."""
    if not _BUCKET.fullmatch(name) or ".." in name or _IP.fullmatch(name):
        raise ValueError(
            f"must have 3 to 63 lower-case letters, digits, '-' and '.', without two dots in a row, begin and end with "
            f"a letter or digit, and not be an IP address; got {name[:80]!r}"
        )
    return name


Endpoint: TypeAlias = Annotated[str, AfterValidator(parse_endpoint)]
"""A text of a recipe that names a store, or none."""
BucketName: TypeAlias = Annotated[str, AfterValidator(check_bucket)]
"""A text of a recipe that names a bucket."""
