"""Settings of the Kafka client that a recipe may not hold: secrets, as many can read the topic of a recipe."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from confluent_kafka import KafkaException

from headrace.infra.environment import KAFKA_CLIENT_VARIABLE, expand_user, read_environment
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import TRANSACTION_TIMEOUT_MS, Connection, open_consumer, open_producer

LEAST_MESSAGE_BYTES = 1_000_000
"""librdkafka's default: ordinary groups are smaller."""
SECRETS = frozenset(
    {
        "sasl.password",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.private.key.pem",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
    }
)
"""librdkafka's settings whose values are secrets."""
PROMISED_SETTINGS = {
    **dict.fromkeys(("bootstrap.servers", "metadata.broker.list", "group.id", "group.instance.id"), ()),
    **dict.fromkeys(("transactional.id", "auto.offset.reset", "delivery.report.only.error"), ()),
    **dict.fromkeys(("message.timeout.ms", "delivery.timeout.ms"), ()),
    "isolation.level": ("read_committed",),
    "enable.auto.commit": ("false",),
    "enable.auto.offset.store": ("false",),
    "enable.idempotence": ("true",),
    "acks": ("all", "-1"),
    "request.required.acks": ("all", "-1"),
    "produce.offset.report": ("true",),
    "group.protocol": ("consumer",),
}
"""Settings on which the promises rest, and the values that they may be given: with another, a run would read what was
aborted, or lose groups, in silence."""


def read_client_settings(*, alone: bool = False) -> dict[str, str]:
    """Return the client settings that the environment gives: a JSON object, or the path of a file that holds one.

    `alone` is that of `check_client_settings`. Raises UsageError, which quotes nothing of them, also for settings that
    librdkafka does not take.
    """
    where, text = KAFKA_CLIENT_VARIABLE, read_environment(KAFKA_CLIENT_VARIABLE).strip()
    if not text:
        if KAFKA_CLIENT_VARIABLE in os.environ:
            raise UsageError(f"{where} is set and empty: unset it, or give librdkafka settings as a JSON object")
        return {}
    if not _is_json(text) and not text.startswith("{"):
        where = f"{KAFKA_CLIENT_VARIABLE}, file {text}"
        try:
            text = expand_user(Path(text), KAFKA_CLIENT_VARIABLE).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UsageError(f"{where}: cannot be read: {type(error).__name__}") from None
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{where} must hold librdkafka settings as a JSON object; line {error.lineno} is invalid: {error.msg}"
        ) from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise UsageError(f'{where} must hold librdkafka settings as a JSON object of strings: {{"KEY": "VALUE"}}')
    check_client_settings(found, where, alone=alone)
    return found


def check_client_settings(client: Mapping[str, str], where: str, *, alone: bool = True) -> None:
    """Raise UsageError that names the setting which librdkafka does not take; no value is quoted, as it may be secret.

    Args:
        client: librdkafka's settings.
        where: Where they were given, for the message.
        alone: Whether these are all: then also for settings that need others.
    """
    for key, allowed in PROMISED_SETTINGS.items():
        if key in client and client[key] not in allowed:
            needs = f"must be {allowed[0]}" if allowed else "is set by each component"
            raise UsageError(f"{where}: {key} {needs}, because a run's promises depend on it: leave it out")
    fault = _find_fault(client) if client else None
    if fault is None:
        if int(client.get("message.max.bytes", LEAST_MESSAGE_BYTES)) < LEAST_MESSAGE_BYTES:
            raise UsageError(f"{where}: message.max.bytes is {LEAST_MESSAGE_BYTES} or more, or records do not fit")
        return
    for key, value in client.items():
        own = _find_fault({key: value}) or ""
        if own.startswith("No such configuration property"):
            raise UsageError(f"{where}: {key} is no setting of librdkafka: look for a misspelling")
        if own.startswith(("Invalid value", "Configuration property")):
            raise UsageError(f"{where}: {key} cannot have the value that it is given")
        if own == fault and own.startswith("`"):
            raise UsageError(f"{where}: {key} does not go with what every component sets: {own}")
    if alone:
        shown = "" if any(value and value in fault for key, value in client.items() if key in SECRETS) else f": {fault}"
        raise UsageError(f"{where}: librdkafka does not take {', '.join(client)} together{shown}")


def _find_fault(client: Mapping[str, str]) -> str | None:
    """Return what librdkafka says against settings beside ours, None when it takes them. It connects to nobody."""
    if own := [key for key in client if key.endswith("_cb")]:
        return f'No such configuration property: "{own[0]}"'  # the Python client wants a function there
    nobody = Connection("", client)
    try:
        open_consumer(nobody, "check", "check").close()
        open_producer(nobody, "check", transactional_id="check", transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
    except KafkaException as error:
        return re.sub("^Failed to create [a-z]+: ", "", str(error.args[0].str()))
    except TypeError as error:  # what the Python client reads itself
        return f"Invalid value: {error}"
    return None


def _is_json(text: str) -> bool:
    with suppress(json.JSONDecodeError):
        json.loads(text)
        return True
    return False


def refuse_secrets(keys: Iterable[str], where: str) -> None:
    """Refuse secrets among the keys of a `kafka.client` table. Raises UsageError that tells where they belong."""
    secret = sorted(SECRETS.intersection(keys))
    if secret:
        raise UsageError(
            f"{where}: kafka.client holds {', '.join(secret)}, and a recipe is written to a topic for all to read. "
            f"Take it out, and give it by {KAFKA_CLIENT_VARIABLE}: a JSON object as "
            f'{{"{secret[0]}": "…"}}, or the path of a file that holds it'
        )


def hide_secrets(client: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that may be shown and compared."""
    return {key: value for key, value in client.items() if key not in SECRETS}
