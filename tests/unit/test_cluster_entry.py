"""Who is not let into a cluster is told what to set, at once; who has been in before waits."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.infra.kafka import clients, cluster_topics
from headrace.infra.kafka.clients import Connection, KafkaAway
from headrace.infra.kafka.cluster_entry import ClusterEntries, describe_wrong_protocol
from headrace.infra.kafka.cluster_topics import NotLetIn, fetch_topics
from headrace.infra.kafka.listener_security import Listener, look_at_listener

CERTIFICATES = Path(__file__).parents[1] / "certificates"
Serve = Callable[[bytes, bool], int]


def answer_of(error: int, *mechanisms: bytes) -> bytes:
    names = b"".join(struct.pack(">h", len(name)) + name for name in mechanisms)
    body = struct.pack(">ihi", 1, error, len(mechanisms)) + names
    return struct.pack(">i", len(body)) + body


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start listeners that answer every request alike, with TLS or without; return their ports."""
    servers: list[socket.socket] = []

    def answer(server: socket.socket, reply: bytes, context: ssl.SSLContext | None) -> None:
        with suppress(OSError):
            while True:
                connected, _ = server.accept()
                with suppress(OSError), context.wrap_socket(connected, server_side=True) if context else connected as c:
                    if c.recv(1024) and reply:
                        c.sendall(reply)

    def start(reply: bytes, has_tls: bool) -> int:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if has_tls else None
        if context:
            context.load_cert_chain(CERTIFICATES / "public.crt", CERTIFICATES / "private.key")
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)
        threading.Thread(target=answer, args=(server, reply, context), daemon=True).start()
        return int(server.getsockname()[1])

    yield start
    for server in servers:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


@pytest.mark.parametrize("has_tls", [False, True])
def test_a_listener_tells_whether_it_has_tls_and_users(serve: Serve, has_tls: bool) -> None:
    def look(reply: bytes) -> Listener | None:
        return look_at_listener("127.0.0.1", serve(reply, has_tls))

    assert look(answer_of(33, b"PLAIN", b"SCRAM-SHA-512")) == Listener(has_tls, ("PLAIN", "SCRAM-SHA-512"))
    assert look(answer_of(34)) == Listener(has_tls, ()), "one without users takes no handshake"
    assert look(b"HTTP/1.1 400 Bad Request\r\n\r\n") == (Listener(True, None) if has_tls else None)


def test_nobody_is_no_listener() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert look_at_listener("127.0.0.1", closed.getsockname()[1]) is None
        assert not describe_wrong_protocol(f"127.0.0.1:{closed.getsockname()[1]}", {})


def test_settings_that_do_not_fit_the_listener_are_named(serve: Serve) -> None:
    address = f"127.0.0.1:{serve(answer_of(33, b'PLAIN'), False)}"
    said = describe_wrong_protocol(address, {})
    assert said.startswith(
        "the listener uses SASL_PLAINTEXT (PLAIN), but this client uses PLAINTEXT: set security.protocol, "
        "sasl.mechanism, sasl.username, sasl.password in the environment variable HEADRACE_KAFKA_CLIENT"
    )
    assert "this client uses SASL_SSL" in describe_wrong_protocol(address, {"security.protocol": "sasl_ssl"})
    assert not describe_wrong_protocol(address, {"security.protocol": "sasl_plaintext"})
    with_tls = f"127.0.0.1:{serve(answer_of(34), True)}"
    assert (
        "the listener uses SSL, but this client uses PLAINTEXT: set security.protocol, ssl.ca.location in"
        in describe_wrong_protocol(with_tls, {})
    )
    assert not describe_wrong_protocol(with_tls, {"security.protocol": "SSL"})


class RefusingAdmin:
    """An admin client that no broker answers as it should."""

    def __init__(self, report: Callable[[KafkaError], object], why: str = "Invalid username or password") -> None:
        self.report, self.answers, self.asked, self.why = report, False, 0, why

    def list_topics(self, **_: Any) -> Any:
        self.asked += 1
        if self.answers:
            return SimpleNamespace(topics={})
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def poll(self, _: float) -> None:
        self.report(KafkaError(KafkaError._AUTHENTICATION, self.why))


def test_a_wrong_password_ends_the_first_question_and_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Connection("127.0.0.1:1", {"sasl.password": "hunter2"})
    entries = ClusterEntries()
    for module in (clients, cluster_topics):
        monkeypatch.setattr(module, "ENTRIES", entries)
    admin = RefusingAdmin(connection.config()["error_cb"])
    monkeypatch.setattr(cluster_topics, "get_admin", lambda _: admin)
    with pytest.raises(NotLetIn) as raised:
        fetch_topics(connection, 60)
    assert admin.asked == 1
    assert str(raised.value).startswith(
        "Kafka at 127.0.0.1:1 does not let this client in: Invalid username or password: correct sasl.mechanism, "
        "sasl.username and sasl.password in the environment variable HEADRACE_KAFKA_CLIENT"
    )
    assert "hunter2" not in str(raised.value)

    admin.answers = True
    fetch_topics(connection, 60)
    admin.answers = False
    with pytest.raises(KafkaAway):
        fetch_topics(connection, 0.1)


@pytest.mark.parametrize(
    ("why", "error", "says"),
    [
        (
            "Failed to connect to sso:443 after 0 ms",
            KafkaAway,
            "the token server https://sso gives no token .Failed to",
        ),
        ('{"error":"invalid_client"}', NotLetIn, "invalid_client.*correct .*sasl.oauthbearer.client.secret"),
    ],
)
def test_a_token_server_that_is_away_is_a_pause_and_one_that_refuses_the_client_is_not(
    why: str, error: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "https://sso"}
    connection = Connection("127.0.0.1:1", client)
    entries = ClusterEntries()
    for module in (clients, cluster_topics):
        monkeypatch.setattr(module, "ENTRIES", entries)
    admin = RefusingAdmin(connection.config()["error_cb"], f"Failed to acquire SASL OAUTHBEARER token: {why}")
    monkeypatch.setattr(cluster_topics, "get_admin", lambda _: admin)
    with pytest.raises(error, match=says) as raised:
        fetch_topics(connection, 0)
    assert "sasl.password" not in str(raised.value)
