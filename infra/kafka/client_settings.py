"""Checks settings of the Kafka client, and keeps secrets out of recipes, whose topic many can read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from confluent_kafka import KafkaException

from headrace.infra.environment import KAFKA_CLIENT_VARIABLE, expand_user, read_environment
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import MESSAGE_BYTES, TRANSACTION_TIMEOUT_MS, Connection, open_consumer, open_producer
from headrace.infra.kafka.token_function import OAUTH_CALLBACK, find_token_function

LEAST_MESSAGE_BYTES = 1_000_000
"""librdkafka's default: ordinary groups are smaller."""
LEAST_POLL_MS = 45_000
"""Lowest max.poll.interval.ms: with less, a component that takes longer for one group would lose its membership again
and again. librdkafka also wants at least session.timeout.ms, even without a group."""
SECRETS = frozenset(
    {
        "sasl.password",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.private.key.pem",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
    }
)
"""librdkafka's settings whose values are secrets."""
OBJECTS = frozenset({"logger", "default.topic.config", "on_delivery", "key.serializer", "value.serializer"})
"""Settings of the Python client besides librdkafka's; they cannot be given as text."""
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
    "allow.auto.create.topics": ("false",),
    "group.protocol": ("consumer",),
}
"""Settings on which the guarantees depend, and their allowed values: with other values a run would silently read
aborted records, lose groups, or recreate deleted topics."""


NOT_TAKEN = "does not take the value given: librdkafka's CONFIGURATION.md lists the values of each setting"
OF_PYTHON = "Function or object: "
FAULTS_OF_ONE = {
    OF_PYTHON: "is a function or an object of the Python client, which Headrace makes itself: leave it out",
    "No such configuration property": "is not a librdkafka setting: check its spelling",
    "Invalid value": NOT_TAKEN,
    "Configuration property": NOT_TAKEN,
    "Java ": "is a setting of Java clients: give librdkafka's setting instead ({})",
    "`": "conflicts with a setting that every component makes ({}): leave your setting out",
}
"""Begin of librdkafka's message, and the sentence about the setting."""

_WITH_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]*://[^/@\s]*:[^/@\s]*@", re.IGNORECASE)
_PATH = re.compile(r"[\w./~@%+-]*[./][\w./~@%+-]*")


def read_client_settings(*, is_complete: bool = False) -> dict[str, str]:
    """Return the client settings of the environment: a JSON object, or the path of a file that holds one.

    `is_complete` is as in `check_client_settings`. Raises UsageError, which quotes no values, also for settings that
    librdkafka does not take.
    """
    where, text = KAFKA_CLIENT_VARIABLE, read_environment(KAFKA_CLIENT_VARIABLE).strip()
    if not text:
        if KAFKA_CLIENT_VARIABLE in os.environ:
            raise UsageError(f"{where} is set and empty: unset it, or give librdkafka settings as a JSON object")
        return {}
    if not _is_json(text) and not text.startswith("{"):
        # other text may be settings in a wrong form, with a password
        where = f"{KAFKA_CLIENT_VARIABLE}, file {text}" if _PATH.fullmatch(text) else KAFKA_CLIENT_VARIABLE
        try:
            text = expand_user(Path(text), KAFKA_CLIENT_VARIABLE).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{where}: cannot be read ({type(error).__name__}): give a JSON object, or the path of a file that "
                "holds one"
            ) from None
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{where} must hold librdkafka settings as a JSON object; line {error.lineno} is invalid: {error.msg}"
        ) from None
    except RecursionError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise UsageError(f'{where} must hold librdkafka settings as a JSON object of strings: {{"KEY": "VALUE"}}')
    check_client_settings(found, where, is_complete=is_complete)
    return found


def merge_client_settings(recipe: Mapping[str, str]) -> dict[str, str]:
    """Return a recipe's client settings, overridden by those of the environment.

    Raises UsageError if librdkafka does not take the combination, such as SASL without a password.
    """
    client = {**recipe, **read_client_settings()}
    check_client_settings(client, f"kafka.client and {KAFKA_CLIENT_VARIABLE}")
    return client


def check_client_settings(client: Mapping[str, str], where: str, *, is_complete: bool = True) -> None:
    """Raise UsageError, which names a setting that librdkafka does not take; values may be secret and are not quoted.

    Args:
        client: librdkafka's settings.
        where: Source of the settings, for the message.
        is_complete: Whether these are all settings: then missing companions of a setting are an error too.
    """
    for key, allowed in PROMISED_SETTINGS.items():
        if key in client and client[key] not in allowed:
            needs = f"must be {allowed[0]}" if allowed else "is set by each component"
            raise UsageError(f"{where}: {key} {needs}, because the guarantees of a run depend on it: leave it out")
    if OAUTH_CALLBACK in client:
        find_token_function(f"{where}: {OAUTH_CALLBACK}", client[OAUTH_CALLBACK])
    fault = _find_fault(client) if client else None
    if fault is None:
        _refuse_low_limits(client, where)
        return
    for key, value in client.items():
        own = _find_fault({key: value}) or ""
        for begins, what in FAULTS_OF_ONE.items():
            if own.startswith(begins) and (begins != "`" or own == fault):
                raise UsageError(f"{where}: {key} {what.format(own)}")
    if is_complete:
        shown = (
            ""
            if any(value and value in fault for key, value in client.items() if is_secret(key, value))
            else f": {fault}"
        )
        how = "alone" if len(client) == 1 else "together"
        raise UsageError(f"{where}: librdkafka does not take {', '.join(client)} {how}{shown}")


def _refuse_low_limits(client: Mapping[str, str], where: str) -> None:
    if float(client.get("message.max.bytes", LEAST_MESSAGE_BYTES)) < LEAST_MESSAGE_BYTES:
        raise UsageError(
            f"{where}: message.max.bytes must be {LEAST_MESSAGE_BYTES} or more; better leave it out, because large "
            f"groups and dead letters need Headrace's default of {MESSAGE_BYTES}"
        )
    if float(client.get("max.poll.interval.ms", LEAST_POLL_MS)) < LEAST_POLL_MS:
        raise UsageError(
            f"{where}: max.poll.interval.ms must be {LEAST_POLL_MS} or more: Kafka takes the partitions of a "
            "component that works on one record for longer than this setting"
        )


def _find_fault(client: Mapping[str, str]) -> str | None:
    """Return librdkafka's error for these settings with Headrace's, None if it takes them. It makes no connection."""
    client = {key: value for key, value in client.items() if key != OAUTH_CALLBACK}  # which would be called
    if own := [key for key in client if key.endswith("_cb") or key in OBJECTS]:
        return f"{OF_PYTHON}{own[0]}"
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
    with suppress(json.JSONDecodeError, RecursionError):
        json.loads(text)
        return True
    return False


def refuse_secrets(client: Mapping[str, str], where: str) -> None:
    """Raise UsageError for secrets in a `kafka.client` table; the message says where they belong."""
    secret = sorted(key for key, value in client.items() if is_secret(key, value))
    if secret:
        raise UsageError(
            f"{where}: kafka.client must not hold {', '.join(secret)}, because every reader of the recipe topic sees "
            f"it. Set {KAFKA_CLIENT_VARIABLE} instead, to a JSON object as "
            f'{{"{secret[0]}": "…"}} or to the path of a file that holds it'
        )


def hide_secrets(client: Mapping[str, str]) -> dict[str, str]:
    """Return the settings without secrets, to show and compare."""
    return {key: value for key, value in client.items() if not is_secret(key, value)}


def is_secret(key: str, value: str) -> bool:
    """Return whether a setting is a secret, or an address with a password in it."""
    return key in SECRETS or bool(_WITH_PASSWORD.match(value))
