"""Where a run's objects are stored."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlencode, urlsplit

from headrace.infra.errors import UsageError

LONGEST_FILE = 65_536
"""Most bytes that are read of a file of keys."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where a run's objects are. `endpoint` is `host:port`; `prefix` is put before every key as it is ("runs/a/").

    If it has no keys, those of `keys_file` are used, or else those of the environment (`access.py`).
    """

    endpoint: str
    bucket: str
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    secure: bool = False
    region: str = "us-east-1"
    prefix: str = ""
    keys_file: str = ""
    """For an embedded store: the file in its data folder that holds its keys, which only its owner can read. Keys are
    never in a record: processes on the same machine, as the same user, read them there."""

    def to_url(self) -> str:
        """Return `http[s]://endpoint/bucket/prefix?region=…`, without the keys."""
        return (
            f"{'https' if self.secure else 'http'}://{self.endpoint}/{self.bucket}/{self.prefix}"
            f"?{urlencode({'region': self.region})}"
        )

    @classmethod
    def from_url(cls, url: str, *, access_key: str = "", secret_key: str = "") -> Self:
        """Read `to_url`'s form. Raises UsageError."""
        try:
            parts = urlsplit(url)
        except ValueError as error:  # such as an unclosed bracket of an IPv6 address
            shown = url.rpartition("@")[2]
            raise UsageError(f"{shown!r} is not an object store's address: {error}") from error
        bucket, _, prefix = parts.path.lstrip("/").partition("/")
        if parts.scheme not in {"http", "https"} or not parts.hostname or not bucket or "@" in parts.netloc:
            from headrace.infra.store.access import KEY_SOURCES

            shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
            raise UsageError(
                f"{shown!r} is not an object store's address: write http[s]://host:port/bucket/prefix, and give the "
                f"keys by {KEY_SOURCES}"
            )
        region = parse_qs(parts.query).get("region", ["us-east-1"])[0]
        return cls(parts.netloc, bucket, access_key, secret_key, parts.scheme == "https", region, prefix)


def read_kept_keys(keys_file: str) -> tuple[str, str]:
    """Return the two keys in an embedded store's file; two empty texts where it cannot be read."""
    try:
        with Path(keys_file).open("rb") as file:
            saved = json.loads(file.read(LONGEST_FILE))
        return str(saved["access_key"]), str(saved["secret_key"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "", ""
