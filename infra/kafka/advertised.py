"""The addresses that brokers advertise: a client finds a cluster by one address, and then uses only these."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Connection
from headrace.infra.kafka.cluster_topics import fetch_topics

CONNECT_S = 3.0
MOST_AT_ONCE = 32
BROKERS_LISTING_S = 10.0


class AddressUnreachable(UsageError):
    """A broker advertises an address that this machine cannot reach."""


@dataclass(frozen=True, slots=True)
class Advertised:
    """One broker's advertised address, and why it cannot be reached (empty if it can)."""

    host: str
    port: int
    error: str = ""

    def __str__(self) -> str:
        """Return `host:port`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def look_at_advertised(connection: Connection) -> tuple[Advertised, ...]:
    """Return every broker's advertised address, and whether a broker answers there. Raises KafkaAway.

    A silent address is tried twice, because its broker may just be starting.
    """
    brokers = fetch_topics(connection, BROKERS_LISTING_S).brokers
    found = try_addresses(connection, [(str(broker.host), broker.port) for broker in brokers.values()])
    silent = [(one.host, one.port) for one in found if one.error]
    again = dict(zip(silent, try_addresses(connection, silent), strict=True))
    return tuple(again.get((one.host, one.port), one) for one in found)


def try_addresses(connection: Connection, addresses: Iterable[tuple[str, int]]) -> tuple[Advertised, ...]:
    """Try all addresses in parallel; return the results in order."""
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        return tuple(pool.map(lambda address: _try(connection, *address), addresses))


def _try(connection: Connection, host: str, port: int) -> Advertised:
    """Connect and send a request, because a firewall or load balancer may accept a connection but pass nothing on."""
    found = Advertised(host, port)
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except (OSError, ValueError) as error:  # ValueError: an invalid host name
        return replace(found, error=str(error))
    if str(found) in connection.bootstrap.split(","):
        return found  # it has just answered
    admin = AdminClient(replace(connection, bootstrap=str(found)).config())
    try:
        admin.list_topics(timeout=CONNECT_S)
    except KafkaException:
        return replace(found, error=f"the address accepts connections, but no broker answers within {CONNECT_S:g} s")
    return found


def refuse_unreachable(connection: Connection) -> None:
    """Raise AddressUnreachable if a broker advertises an address that this machine cannot reach, or KafkaAway."""
    if silent := [one for one in look_at_advertised(connection) if one.error]:
        raise AddressUnreachable(describe_unreachable(connection.bootstrap, silent))


def describe_unreachable(bootstrap: str, silent: Iterable[Advertised]) -> str:
    """Return the sentence that names the addresses."""
    named = ", ".join(f"{one} ({one.error})" for one in silent)
    return (
        f"Kafka at {bootstrap} advertises {named}, which does not answer from here: set the broker's "
        "advertised.listeners to an address that this machine reaches, or make that name and port reachable"
    )
