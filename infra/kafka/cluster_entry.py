"""Knows why a cluster refuses this client: librdkafka retries for ever, and reports refusals only outside calls.

After a process has once been accepted, a refusal is temporary: a starting broker does not know its users yet. A missing
token is always temporary, because the server of the tokens may be away.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from confluent_kafka import KafkaError

from headrace.infra.environment import KAFKA_CLIENT_VARIABLE
from headrace.infra.kafka.listener_security import Listener, look_at_listener

TLS_SETTINGS = "security.protocol and ssl.ca.location"
LOGIN_SETTINGS = {
    "OAUTHBEARER": (
        "sasl.mechanism, and the function of oauth_cb or sasl.oauthbearer.client.id, sasl.oauthbearer.client.secret "
        "and sasl.oauthbearer.scope"
    ),
    "GSSAPI": "sasl.mechanism, sasl.kerberos.service.name, sasl.kerberos.principal and sasl.kerberos.keytab",
}
"""By SASL mechanism: the settings to check after a refusal."""
NO_TOKEN = "Failed to acquire SASL OAUTHBEARER token: "  # noqa: S105 - a report of librdkafka
_BAD_CLIENT = re.compile(r"invalid_\w+|unauthorized_client|access_denied|unsupported_grant_type")
"""Matches the answers of a token server (RFC 6749) that does not accept the client."""
HOW = (
    f"in the environment variable {KAFKA_CLIENT_VARIABLE} (librdkafka's settings as a JSON object, or the path of a "
    "file that holds them)"
)


class ClusterEntries:
    """Clusters that have accepted this process, and refusals of others. Safe to use from several threads."""

    def __init__(self) -> None:
        self._entered: set[str] = set()
        self._refusals: dict[str, KafkaError] = {}
        self._tokenless: dict[str, str] = {}

    def has_entered(self, cluster: str) -> bool:
        """Return whether the cluster has answered this process."""
        return cluster in self._entered

    def note_entry(self, cluster: str) -> None:
        """Note that a cluster has answered."""
        self._entered.add(cluster)
        self._tokenless.pop(cluster, None)

    def note_report(self, cluster: str, error: KafkaError) -> None:
        """Take in a client's report, which may be a refusal."""
        is_login = error.code() == KafkaError._AUTHENTICATION  # noqa: SLF001 - librdkafka's own codes begin so
        if is_login and error.str().startswith(NO_TOKEN) and not _BAD_CLIENT.search(error.str()):
            self.note_missing_token(cluster, error.str().removeprefix(NO_TOKEN))
        elif is_login or error.code() == KafkaError._SSL:  # noqa: SLF001
            self._refusals[cluster] = error

    def note_missing_token(self, cluster: str, why: str) -> None:
        """Note that no token can be had now: the server of the tokens is away, or the user's function raises."""
        self._tokenless[cluster] = why

    def describe_missing_token(self, cluster: str, client: Mapping[str, str]) -> str:
        """Return why there is no token for a cluster, and where it comes from; empty if there is one, or if unknown."""
        if (why := self._tokenless.get(cluster)) is None:
            return ""
        server = client.get("sasl.oauthbearer.token.endpoint.url")
        source = f"the token server {server} gives no token" if server else f"{client.get('oauth_cb')} gives no token"
        what = "start it, or correct sasl.oauthbearer.token.endpoint.url" if server else "correct the function"
        return f"{source} ({why}): {what}"

    def find_refusal(self, cluster: str, bootstrap: str, client: Mapping[str, str]) -> str:
        """Return why a cluster refuses this process, and what to set; empty after it was accepted, or if unknown.

        Args:
            cluster: Key of the cluster.
            bootstrap: Its addresses, which are probed if no client reported a reason.
            client: The client settings in use.
        """
        if cluster in self._entered or cluster in self._tokenless:
            return ""
        if (error := self._refusals.get(cluster)) is None:
            return describe_wrong_protocol(bootstrap, client)
        mechanism = client.get("sasl.mechanism", client.get("sasl.mechanisms", ""))
        login = LOGIN_SETTINGS.get(mechanism, "sasl.mechanism, sasl.username and sasl.password")
        return f"{error.str()}: correct {TLS_SETTINGS if error.code() == KafkaError._SSL else login} {HOW}"  # noqa: SLF001


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
