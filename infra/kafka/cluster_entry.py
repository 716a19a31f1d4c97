"""Knows why a cluster refuses this client: librdkafka retries for ever, and reports refusals only outside calls.

After a process has once been accepted, a refusal is temporary: a starting broker does not know its users yet.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError

from headrace.infra.environment import KAFKA_CLIENT_VARIABLE
from headrace.infra.kafka.listener_security import Listener, look_at_listener

REFUSALS = {
    KafkaError._SSL: "security.protocol and ssl.ca.location",  # noqa: SLF001 - librdkafka's own codes begin so
    KafkaError._AUTHENTICATION: "sasl.mechanism, sasl.username and sasl.password",  # noqa: SLF001
}
"""Reports of refused clients, and the settings to check."""
HOW = (
    f"in the environment variable {KAFKA_CLIENT_VARIABLE} (librdkafka's settings as a JSON object, or the path of a "
    "file that holds them)"
)


class ClusterEntries:
    """Clusters that have accepted this process, and refusals of others. Safe to use from several threads."""

    def __init__(self) -> None:
        self._entered: set[str] = set()
        self._refusals: dict[str, str] = {}

    def has_entered(self, cluster: str) -> bool:
        """Return whether the cluster has answered this process."""
        return cluster in self._entered

    def note_entry(self, cluster: str) -> None:
        """Note that a cluster has answered."""
        self._entered.add(cluster)

    def note_report(self, cluster: str, error: KafkaError) -> None:
        """Take in a client's report, which may be a refusal."""
        if error.code() in REFUSALS:
            self._refusals[cluster] = f"{error.str()}: correct {REFUSALS[error.code()]} {HOW}"

    def find_refusal(self, cluster: str, bootstrap: str, client: Mapping[str, str]) -> str:
        """Return why a cluster refuses this process, and what to set; empty after it was accepted, or if unknown.

        Args:
            cluster: Key of the cluster.
            bootstrap: Its addresses, which are probed if no client reported a reason.
            client: The client settings in use.
        """
        if cluster in self._entered:
            return ""
        return self._refusals.get(cluster, "") or describe_wrong_protocol(bootstrap, client)


ENTRIES = ClusterEntries()


def describe_wrong_protocol(bootstrap: str, client: Mapping[str, str]) -> str:
    """Return how these settings differ from a listener's, and what to set; empty if equal or without an answer."""
    protocol = client.get("security.protocol", "PLAINTEXT").upper()
    for address in bootstrap.split(","):
        host, _, port = address.rpartition(":")
        if (listener := look_at_listener(host.strip("[]"), int(port))) is not None:
            return "" if listener.is_fit_for(protocol) else _describe(listener, protocol)
    return ""


def _describe(listener: Listener, protocol: str) -> str:
    settings = ["security.protocol"]
    settings += ["ssl.ca.location"] if listener.has_tls else []
    settings += ["sasl.mechanism", "sasl.username", "sasl.password"] if listener.mechanisms else []
    return f"the listener uses {listener}, but this client uses {protocol}: set {', '.join(settings)} {HOW}"
