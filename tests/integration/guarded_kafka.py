"""A broker that wants a user and a password, also over TLS, and gives rights to users by their prefix."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from headrace.infra.embedded.kafka_server import EmbeddedKafka
from headrace.infra.embedded.loopback_ports import HOST
from headrace.infra.kafka.clients import Connection

PASSWORDS = {"alice": "a-secret", "bob": "b-secret", "carol": "c-secret"}
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
Right = tuple[ResourceType, AclOperation]


class GuardedKafka(EmbeddedKafka):
    """`bootstrap` is for its administrator; the addresses are for users, of whom none may do anything yet."""

    port_names = (*EmbeddedKafka.port_names, "guarded", "encrypted")

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port('guarded')}"

    @property
    def encrypted_address(self) -> str:
        return f"{HOST}:{self.port('encrypted')}"

    @property
    def certificate(self) -> Path:
        """Who trusts this trusts the listener of `encrypted_address`."""
        return self.folder / "certificate.pem"

    def _write_properties(self) -> None:
        own_store = self.folder / "store.pem"
        own_store.write_text(sign_itself(self.certificate) + self.certificate.read_text())
        listeners = {"PLAINTEXT": f"{HOST}:{self.port('broker')}", "USERS": self.address, "TLS": self.encrypted_address}
        open_to_all = ",".join(f"{name}://{address}" for name, address in listeners.items())
        users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
        self._config |= {
            "listeners": f"{open_to_all},CONTROLLER://{HOST}:{self.port('controller')}",
            "advertised.listeners": open_to_all,
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,USERS:SASL_PLAINTEXT,TLS:SASL_SSL"
            ),
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.users.plain.sasl.jaas.config": f"{PLAIN} required {users};",
            "listener.name.tls.plain.sasl.jaas.config": f"{PLAIN} required {users};",
            "listener.name.tls.ssl.keystore.type": "PEM",
            "listener.name.tls.ssl.keystore.location": str(own_store),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }
        super()._write_properties()

    def connect(self, user: str, password: str = "") -> Connection:
        client = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": password or PASSWORDS[user],
        }
        return Connection(self.address, client)

    def connect_encrypted(self, user: str, trusted: Path | None = None) -> Connection:
        """`trusted` is the file of certificates that the client trusts; the machine's own without it."""
        client = {**self.connect(user).client, "security.protocol": "SASL_SSL"}
        return Connection(self.encrypted_address, client | ({"ssl.ca.location": str(trusted)} if trusted else {}))

    def allow(self, user: str, run: str, rights: Iterable[Right]) -> None:
        """Give a user rights on what begins with the name of a run."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        pattern, yes = ResourcePatternType.PREFIXED, AclPermissionType.ALLOW
        bindings = [AclBinding(kind, f"{run}.", pattern, f"User:{user}", "*", op, yes) for kind, op in rights]
        for future in admin.create_acls(bindings).values():
            future.result()


def sign_itself(certificate: Path) -> str:
    """Write a certificate for this machine, signed by itself; return its key. Both are PEM."""
    key = certificate.with_name("key.pem")
    names = ("-subj", f"/CN={HOST}", "-addext", f"subjectAltName=IP:{HOST}")
    made = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", str(key), "-out", str(certificate))
    subprocess.run(["openssl", "req", *made, *names], check=True, capture_output=True)
    return key.read_text()
