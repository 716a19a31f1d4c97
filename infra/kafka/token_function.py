"""The user's own function that gets tokens for OAUTHBEARER, named in a recipe or in the environment by `oauth_cb`."""

from __future__ import annotations

from collections.abc import Callable

from headrace.infra.errors import UsageError
from headrace.infra.kafka.cluster_entry import ENTRIES
from headrace.infra.own_frames import describe_with_location
from headrace.infra.plug_ins import load_plug_in

OAUTH_CALLBACK = "oauth_cb"
INSTEAD = (
    "name your own function as `package.module:function`, which takes sasl.oauthbearer.config and returns a token and "
    "its time of expiry in seconds; or let librdkafka get the tokens: sasl.oauthbearer.method=oidc with "
    "sasl.oauthbearer.token.endpoint.url, sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret"
)

Token = tuple[str, float]


class TokenFunction:
    """A user's function for `oauth_cb`. Its errors are noted for the cluster: librdkafka would hide them.

    Args:
        name: The function, as `package.module:function`.
        cluster: Key of the cluster.
    """

    def __init__(self, name: str, cluster: str) -> None:
        self._function: Callable[[str], Token] = find_token_function("oauth_cb", name)
        self._name, self._cluster = name, cluster

    def __call__(self, config: str | None) -> Token | None:
        """Return a token; None, which the client takes for a failure, if the function raises."""
        try:
            return self._function(config or "")
        except Exception as error:  # noqa: BLE001 - it is the user's code; the client hides what it raises
            ENTRIES.note_missing_token(self._cluster, describe_with_location(error))
            return None


def find_token_function(where: str, name: str) -> Callable[[str], Token]:
    """Return the user's function. Raises UsageError, which says what can be used instead of other text."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise UsageError(f"{where} cannot be the text that is given: {INSTEAD}")
    return load_plug_in(where, name)
