"""Parses a run's address from the command line."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from headrace.infra.errors import UsageError
from headrace.infra.kafka.bootstrap import parse_bootstrap
from headrace.infra.kafka.client_settings import read_client_settings
from headrace.infra.kafka.clients import Connection, RunAddress
from headrace.schemas.topics import NAME_FORM


def parse_run(text: str) -> RunAddress:
    """Read `kafka://host:port/run`. Raises UsageError, which shows the right form with the readable parts."""
    try:
        parts = urlsplit(text.strip())
        bootstrap = parse_bootstrap(parts.netloc)
    except ValueError:  # a bracket of an IPv6 address is missing, or a port
        parts, bootstrap = urlsplit(""), ""
    run = parts.path.strip("/")
    if parts.scheme != "kafka" or not bootstrap or not NAME_FORM.fullmatch(run):
        meant = _BARE.fullmatch(text.removeprefix("kafka://"))
        brokers, named = meant.groups() if meant else ("HOST:PORT", "")
        form = f"kafka://{brokers}/{named if NAME_FORM.fullmatch(named) else 'RUN'}"
        raise UsageError(f"cannot read the run address {text!r}: give {form}, as `headrace up` prints it")
    return RunAddress(Connection(bootstrap, read_client_settings(is_complete=True)), run)


def is_run_address(text: str) -> bool:
    """Return whether a text is meant as the address of a run, also without `kafka://`; any other names a folder."""
    return "://" in text or _BARE.fullmatch(text) is not None


_BARE = re.compile(r"((?:[^/:,]+:\d+,?)+)/?([^/]*)")
"""Matches brokers and perhaps a run, as in an address without its scheme."""
