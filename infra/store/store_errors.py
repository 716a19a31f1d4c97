"""What can go wrong with an object store, and what each answer of S3 means.

StoreError
├── ObjectMissing        no such object (or bucket)
├── ObjectCorrupt        the object's bytes are not the ones that its name and record promise
├── StoreDenied          the keys are wrong or lack a right
│   └── KeysExpired      (also an Unavailable) the keys were right, and may be replaced while a run waits
└── StoreUnavailable     (also an Unavailable) the store does not answer now
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from headrace.infra.environment import (
    ACCESS_KEY_VARIABLE,
    AWS_ACCESS_KEY_VARIABLE,
    AWS_CREDENTIALS_VARIABLE,
    read_environment,
)
from headrace.infra.errors import HeadraceError, Unavailable

if TYPE_CHECKING:
    from headrace.infra.store.store_address import StoreAddress

_MISSING = frozenset({"NoSuchKey", "NoSuchObject", "NoSuchBucket", "NoSuchVersion"})
_DENIED = frozenset({
    "AccessDenied", "AllAccessDisabled", "AccountProblem", "InvalidAccessKeyId", "SignatureDoesNotMatch",
})  # fmt: skip
_EXPIRED = frozenset({"ExpiredToken", "InvalidToken"})
SKEW_S = 300
"""Stores refuse requests whose signed time is 15 minutes off; a smaller difference shows that a clock is wrong."""
_BUSY, _LOST = (
    "look into the store's log, and check whether its disk is full",
    "the parts already sent are lost, and are sent again",
)
_FULL = "make room in the store, or raise the bucket's quota"
_TIMED_OUT, _CONFLICT, _TOO_MANY, _NOT_IMPLEMENTED, _BAD_GATEWAY, _NO_ROOM = 408, 409, 429, 501, 502, 507
_BUSY_STATUS = frozenset({_TIMED_OUT, _CONFLICT, _TOO_MANY})
"""HTTP statuses that ask for another attempt later: another operation is in progress, or there are too many."""
_AWAY = {
    "RequestTimeout": _BUSY,
    **dict.fromkeys(
        ("SlowDown", "RequestThrottled", "Throttling", "RequestLimitExceeded"), "it asks for fewer requests"
    ),
    **dict.fromkeys(("NoSuchUpload", "InvalidPart", "IncompleteBody", "BadDigest"), _LOST),
}
"""Codes that a later attempt can overcome. A restart loses parts of an upload, and so does a late answer to a join."""
_UNAUTHORISED = frozenset({401, 407})
"""Statuses by which a gateway or a proxy before the store asks for credentials."""
_ELSEWHERE = (
    "the bucket is in another region or at another endpoint: correct both (in a recipe: store.region and "
    "store.endpoint)"
)
_REMEDIES = {
    "RequestTimeTooSkewed": "the clocks of this machine and of the store differ: set them, for example by NTP",
    **dict.fromkeys(("PermanentRedirect", "TemporaryRedirect", "Redirect", "MovedPermanently"), _ELSEWHERE),
    **dict.fromkeys(
        ("AuthorizationHeaderMalformed", "InvalidRegion", "IllegalLocationConstraintException"), _ELSEWHERE
    ),
    **dict.fromkeys(("HTTP 301", "HTTP 307", "HTTP 308"), _ELSEWHERE),
    **dict.fromkeys(
        ("HTTP 302", "HTTP 303"),
        "a web page answers, not an S3 API: correct the store's endpoint (in a recipe: store.endpoint)",
    ),
    "InvalidObjectState": (
        "the object is in an archive class: restore the object, and remove the bucket's life-cycle rule that moved it"
    ),
    "MissingContentMD5": "the bucket locks its objects: use a bucket without object lock",
}
"""What to do about a refusal, by its code."""


class StoreError(HeadraceError):
    """The object store refused a request, or holds something wrong."""


class ObjectMissing(StoreError):
    """There is no such object."""


class ObjectCorrupt(StoreError):
    """The bytes in the store are not those of the record; the caller did not get them."""


class StoreDenied(StoreError):
    """The keys are wrong, or lack a right on the bucket.

    Args:
        text: The message, with the advice.
        code: What the store answered.
        advice: What to do.
    """

    def __init__(self, text: str, code: str = "", advice: str = "") -> None:
        super().__init__(text)
        self.code, self.advice = code, advice


class KeysExpired(StoreDenied, Unavailable):
    """The session token of the keys has expired. A run waits, because keys in a file are read again."""


class StoreUnavailable(StoreError, Unavailable):
    """The store does not answer now."""


def translate_error(error: Exception, where: str, address: StoreAddress, access_key: str) -> StoreError:
    """Return an error of the S3 client as one of this module; `where` names the object that was asked for."""
    from urllib3.exceptions import SSLError

    from headrace.infra.store.access import explain_tls_refusal

    code, status = _read_s3_code(error), _http_status(error)
    if code in _EXPIRED | _DENIED or status in _UNAUTHORISED:
        return _build_denial(error, code or str(status), where, access_key)
    if why := _find_retry_reason(code or "", status):
        return StoreUnavailable(f"{where}: the store cannot answer now ({code or status}: {why})")
    if code in _MISSING:
        return ObjectMissing(f"{where} does not exist ({code})")
    if isinstance(error, SSLError) and (why := explain_tls_refusal(error)):
        return StoreError(f"{where}: {why}")
    if code is None and not 300 <= status < 500:
        return StoreUnavailable(f"{where}: the store does not answer ({error})")
    named = code or f"HTTP {status}"  # the answer to a HEAD has no code
    return StoreError(f"{where}: the store refuses this request ({named}): {_explain_refusal(named, error, address)}")


def _build_denial(error: Exception, answer: str, where: str, access_key: str) -> StoreDenied:
    from headrace.infra.store.access import KEY_SOURCES

    is_expired = answer in _EXPIRED
    remedy = (
        "the session token may have expired: write new keys into the file that "
        f"{AWS_CREDENTIALS_VARIABLE} names, which is read again at every request; keys in environment variables need a "
        "new start"
        if is_expired
        else f"check the keys ({KEY_SOURCES}) and their rights (`headrace store-policy` prints the rights that each "
        "component needs)"
    )
    advice = f"{_describe_skew(error)}{remedy}"
    text = f"{where}: {answer} for the access key {access_key!r}; {advice}"
    from_file = not (read_environment(ACCESS_KEY_VARIABLE) or read_environment(AWS_ACCESS_KEY_VARIABLE))
    return (KeysExpired if is_expired and from_file else StoreDenied)(text, answer, advice)


def _explain_refusal(code: str, error: Exception, address: StoreAddress) -> str:
    plain = code in {"BadRequest", "400", "HTTP 400"} and not address.secure
    hint = "; the store may expect TLS: then write https:// before the endpoint" if plain else ""
    return _REMEDIES.get(code, f"{error}{hint}")


def _describe_skew(error: Exception) -> str:
    """Return by how much the store's clock differs from ours; empty for a difference that stores accept.

    A refusal of a HEAD request has no body, so a refusal because of the clocks looks like one because of the rights.
    """
    from minio.error import S3Error

    date = error.response.headers.get("Date") if isinstance(error, S3Error) else None
    try:
        ahead_s = (parsedate_to_datetime(date or "") - datetime.now(UTC)).total_seconds()
    except (TypeError, ValueError):  # no date, or one that cannot be read
        return ""
    if abs(ahead_s) < SKEW_S:
        return ""
    side = "ahead of" if ahead_s > 0 else "behind"
    ahead = f"{abs(ahead_s) / 60:.0f} min {side}"
    return f"the store's clock is {ahead} this machine's, so set both clocks first, for example by NTP; "


def _find_retry_reason(code: str, status: int) -> str:
    """Return why the same request may be answered later; empty where it will not be."""
    if status == _NO_ROOM or code.endswith(("StorageFull", "QuotaExceeded")):
        return _FULL
    if status in _BUSY_STATUS or (status >= 500 and status != _NOT_IMPLEMENTED):
        return _BUSY
    return _AWAY.get(code, "")


def _http_status(error: Exception) -> int:
    """Return the HTTP status of the store's answer; 0 where there was none."""
    from minio.error import InvalidResponseError, S3Error, ServerError

    match error:
        case S3Error():
            return int(error.response.status)
        case ServerError():
            return error.status_code
        case InvalidResponseError():
            return int(error._code)  # noqa: SLF001 - it has no public name
        case ET.ParseError():  # a proxy's page that calls itself XML
            return _BAD_GATEWAY
        case ValueError() if is_unread_conflict(error):
            return _CONFLICT
    return 0


def is_unread_conflict(error: ValueError) -> bool:
    """Return whether minio 7.2 failed over a HEAD of status 409: it unpacks a pair that it wraps in a tuple."""
    return "values to unpack" in str(error)


def _read_s3_code(error: Exception) -> str | None:
    """Read S3's code of an error, also from rclone's, whose content type the client does not take for XML."""
    from minio.error import InvalidResponseError, S3Error

    if isinstance(error, S3Error):
        return error.code
    if isinstance(error, InvalidResponseError):
        found = re.search(r"<Code>(\w+)</Code>", str(error)) or re.search(r"Response code: (4\d\d)", str(error))
        return found[1] if found else None
    return None
