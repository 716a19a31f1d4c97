"""Access to an object store: its keys, and trusted certificates.

The first of these with keys is used:

1. for an embedded store, which is on loopback, `store.json` in its data folder; in runs of 0.1 the run's own records
2. HEADRACE_S3_ACCESS_KEY and HEADRACE_S3_SECRET_KEY
3. AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, with AWS_SESSION_TOKEN where there is one
4. the file that AWS_SHARED_CREDENTIALS_FILE names (~/.aws/credentials), its profile AWS_PROFILE (default)

No message, and no `repr` here, contains a secret key.
"""

from __future__ import annotations

import configparser
import ssl
from functools import cache

import urllib3
from minio.credentials.credentials import Credentials
from minio.credentials.providers import AWSConfigProvider, EnvAWSProvider, Provider, StaticProvider
from urllib3.exceptions import SSLError

from headrace.infra.environment import (
    ACCESS_KEY_VARIABLE,
    AWS_ACCESS_KEY_VARIABLE,
    AWS_CREDENTIALS_VARIABLE,
    AWS_PROFILE_VARIABLE,
    AWS_SECRET_KEY_VARIABLE,
    CA_VARIABLES,
    SECRET_KEY_VARIABLE,
    read_environment,
)
from headrace.infra.errors import UsageError

KEY_SOURCES = (
    f"{ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE}, {AWS_ACCESS_KEY_VARIABLE} and {AWS_SECRET_KEY_VARIABLE}, or a "
    f"profile in the file that {AWS_CREDENTIALS_VARIABLE} names"
)


class StoreKeys(Provider):
    """Keys that are read again for every request, because a file's keys may change."""

    def __init__(self, source: Provider, where: str) -> None:
        self._source, self._where = source, where
        self._last: Credentials | None = None

    def retrieve(self) -> Credentials:
        """Return the keys, or the last ones while a file is being written. Raises UsageError if there are none."""
        try:
            self._last = self._source.retrieve()
        except (ValueError, configparser.Error, OSError) as error:
            if self._last is None:
                # A parser error quotes the line, which may be the secret.
                raise UsageError(
                    f"no keys for the object store found in {self._where} ({type(error).__name__}): set {KEY_SOURCES} "
                    "(in a file, write % as %%)"
                ) from None
        return self._last

    @property
    def access_key(self) -> str:
        """The access key's id, which is not a secret."""
        return self.retrieve().access_key


def find_keys(access_key: str = "", secret_key: str = "", keys_file: str = "") -> StoreKeys:
    """Return the given keys, else those of the environment or of files. Raises UsageError if there are none.

    Args:
        access_key: Access key of a store with its own keys; empty for none.
        secret_key: As above.
        keys_file: Unreadable file with an embedded store's keys, to name in the error.
    """
    if access_key:
        keys = StoreKeys(StaticProvider(access_key, secret_key), "the run's records")
    elif read_environment(ACCESS_KEY_VARIABLE) or read_environment(SECRET_KEY_VARIABLE):
        for name in (ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE):
            if not read_environment(name):
                raise UsageError(
                    f"no keys for the object store: {name} is not set: set both {ACCESS_KEY_VARIABLE} and "
                    f"{SECRET_KEY_VARIABLE}"
                )
        own = StaticProvider(read_environment(ACCESS_KEY_VARIABLE), read_environment(SECRET_KEY_VARIABLE))
        keys = StoreKeys(own, ACCESS_KEY_VARIABLE)
    elif read_environment(AWS_ACCESS_KEY_VARIABLE) or read_environment(AWS_SECRET_KEY_VARIABLE):
        keys = StoreKeys(EnvAWSProvider(), f"{AWS_ACCESS_KEY_VARIABLE} and {AWS_SECRET_KEY_VARIABLE}")
    else:
        file = read_environment(AWS_CREDENTIALS_VARIABLE, "~/.aws/credentials")
        profile = read_environment(AWS_PROFILE_VARIABLE, "default")
        where = f"the environment, nor in profile {profile!r} of {file}"
        if keys_file:
            where = (
                f"{keys_file} (keys of the run's embedded store: a file on the store's machine that only the user who "
                f"started the run can read), nor in {where}"
            )
        keys = StoreKeys(AWSConfigProvider(), where)
    keys.retrieve()
    return keys


def open_connections(connect_s: float, read_s: float, *, secure: bool) -> urllib3.PoolManager:
    """Return a pool of connections. Raises UsageError for an unreadable certificate bundle."""
    # No urllib3 retries: with them a silent store would be reported only after many timeouts.
    timeout = urllib3.Timeout(connect=connect_s, read=read_s)
    context = _build_trust(*_find_ca_bundle()) if secure else None
    return urllib3.PoolManager(timeout=timeout, retries=False, maxsize=16, ssl_context=context)


def _find_ca_bundle() -> tuple[str, str]:
    """Return path and variable of the trusted authorities; empty for the system's."""
    return next(((path, name) for name in CA_VARIABLES if (path := read_environment(name))), ("", ""))


@cache
def _build_trust(path: str, variable: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=path or None)
    except OSError as error:
        raise UsageError(
            f"{variable} names {path}, from which no certificate can be read ({error.strerror or error}): name a PEM "
            "file with the certificate of the authority that signed the store's certificate"
        ) from error


def explain_tls_refusal(error: SSLError) -> str:
    """Return why TLS with a server fails, and the remedy; empty if the connection only ended."""
    cause = error.args[0] if error.args else None
    if isinstance(cause, ssl.SSLCertVerificationError):
        found = cause.verify_message
        if "mismatch" in found:
            return (
                f"the store's certificate is for another host ({found}): address the store by a name that the "
                "certificate holds"
            )
        return (
            f"the store's certificate is not trusted ({found}): if your own authority signed it, set the environment "
            f"variable {' or '.join(CA_VARIABLES)} to the PEM file of that authority's certificate"
        )
    reason = str(getattr(cause, "reason", "") or "")
    if reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"}:
        return "the store speaks no TLS: write http:// before the endpoint, or leave store.secure out"
    if "ALERT" in reason or "UNSUPPORTED" in reason or "NO_" in reason:
        return f"the store and this client do not agree on TLS, such as its version or cipher ({reason})"
    return ""
