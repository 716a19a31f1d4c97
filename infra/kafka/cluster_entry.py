"""The way into a cluster: librdkafka tries what was refused there again for ever, and tells it beside its calls alone.

Once a process has been in, a refusal is a broker that does not know its users yet, and passes with time.
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
"""What a client reports that is not let in, and the settings to look at."""
HOW = (
    f"in the environment variable {KAFKA_CLIENT_VARIABLE} (librdkafka's settings as a JSON object, or the path of a "
    "file that holds them)"
)


class ClusterEntries:
    """Which clusters have let this process in, and why others have not. Safe to use from several threads."""

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
        """Take what a client of a cluster reports; most of it is no refusal."""
        if error.code() in REFUSALS:
            self._refusals[cluster] = f"{error.str()}: correct {REFUSALS[error.code()]} {HOW}"

    def find_refusal(self, cluster: str, bootstrap: str, client: Mapping[str, str]) -> str:
        """Return why a cluster does not let this process in, and what to set; empty once it has, or if nobody says.

        Args:
            cluster: The name under which it was noted.
            bootstrap: Its addresses; where no client was told why, they are asked.
            client: The settings with which it was tried.
        """
        if cluster in self._entered:
            return ""
        return self._refusals.get(cluster, "") or describe_misfit(bootstrap, client)


ENTRIES = ClusterEntries()


def describe_misfit(bootstrap: str, client: Mapping[str, str]) -> str:
    """Return how a listener and these settings differ, and what to set; empty if they do not, or none answers."""
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
    return f"the listener uses {listener}, but this client {protocol}: set {', '.join(settings)} {HOW}"
