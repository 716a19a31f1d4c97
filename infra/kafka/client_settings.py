"""Settings of the Kafka client that a recipe may not hold: secrets, as many can read the topic of a recipe."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from headrace.infra.environment import KAFKA_CLIENT_VARIABLE, expand_user, read_environment
from headrace.infra.errors import UsageError

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


def read_client_settings() -> dict[str, str]:
    """Return the client settings that the environment gives: a JSON object, or the path of a file that holds one.

    Raises UsageError, which quotes nothing of them.
    """
    text = read_environment(KAFKA_CLIENT_VARIABLE).strip()
    if not text:
        return {}
    where = KAFKA_CLIENT_VARIABLE
    if not text.startswith("{"):
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
    return found


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
