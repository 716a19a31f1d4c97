"""Where people put secrets in a recipe: no message shows these values, and each has another place."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.infra.environment import (
    ACCESS_KEY_VARIABLE,
    AWS_CREDENTIALS_VARIABLE,
    KAFKA_CLIENT_VARIABLE,
    SECRET_KEY_VARIABLE,
)

SECRET_TABLES = (["kafka"], ["kafka", "client"], ["store"])
"""Tables that are never shown whole, because they may hold secrets; no value of the second one is ever shown."""
SECRET_HINTS = {
    "access_key": f"set {ACCESS_KEY_VARIABLE}, or name a file by {AWS_CREDENTIALS_VARIABLE}",
    "secret_key": f"set {SECRET_KEY_VARIABLE}, or name a file by {AWS_CREDENTIALS_VARIABLE}",
    "password": f'set {KAFKA_CLIENT_VARIABLE} to client settings, as in {{"sasl.password": "…"}}, or to a path',
}
"""Unknown key to the way to give its value."""


def is_of_secrets(keys: Sequence[object]) -> bool:
    """Return whether a key is in a table in which people put secrets, at home or in a region."""
    own = [*keys]
    return (own[2:4] if own[:1] == ["regions"] else own[:2]) in SECRET_TABLES
