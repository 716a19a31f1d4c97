"""A broker that wants a user and a password, and gives rights to users by their prefix."""

from __future__ import annotations

from collections.abc import Iterable

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
    """`bootstrap` is for its administrator; `address` for users, of whom none may do anything yet."""

    port_names = (*EmbeddedKafka.port_names, "guarded")

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port('guarded')}"

    def _write_properties(self) -> None:
        open_to_all = f"PLAINTEXT://{HOST}:{self.port('broker')},USERS://{self.address}"
        users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
        self._config |= {
            "listeners": f"{open_to_all},CONTROLLER://{HOST}:{self.port('controller')}",
            "advertised.listeners": open_to_all,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,USERS:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.users.plain.sasl.jaas.config": f"{PLAIN} required {users};",
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

    def allow(self, user: str, run: str, rights: Iterable[Right]) -> None:
        """Give a user rights on what begins with the name of a run."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        pattern, yes = ResourcePatternType.PREFIXED, AclPermissionType.ALLOW
        bindings = [AclBinding(kind, f"{run}.", pattern, f"User:{user}", "*", op, yes) for kind, op in rights]
        for future in admin.create_acls(bindings).values():
            future.result()
