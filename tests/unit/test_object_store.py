"""The object store's client without a store: names, addresses, and what each kind of answer becomes."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from answering_server import answering_server
from urllib3.util import connection

from headrace.infra.errors import Unavailable, UsageError
from headrace.infra.store.object_store import (
    ObjectCorrupt,
    ObjectMissing,
    ObjectStore,
    StoreAddress,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)

SECRET = "very-secret"
DATA = b"0123456789"
SHA256 = hashlib.sha256(DATA).hexdigest()


def address(endpoint: str = "127.0.0.1:9", prefix: str = "") -> StoreAddress:
    return StoreAddress(endpoint, "bucket", "key", SECRET, prefix=prefix)


@contextmanager
def answering(
    status: int, body: bytes, content_type: str = "application/xml", *, ahead_s: float = 0.0
) -> Iterator[ObjectStore]:
    """A store that gives one answer to everything and knows no ranges."""
    with (
        answering_server(status, body, content_type, ahead_s=ahead_s) as port,
        ObjectStore(address(f"127.0.0.1:{port}"), timeout_s=2) as store,
    ):
        yield store


def s3_error(code: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>m</Message></Error>'.encode()


def test_an_address_comes_back_from_its_url_and_keys() -> None:
    where = StoreAddress("s3.example:9000", "bucket", "key", SECRET, secure=True, region="eu-1", prefix="a/b/")
    assert StoreAddress.from_url(where.to_url(), access_key="key", secret_key=SECRET) == where


@pytest.mark.parametrize(
    "url",
    ["s3.example:9000/bucket", "http://s3.example:9000", "http://key:very-secret@host/bucket", "http://[/bucket/a"],
)
def test_a_url_that_is_no_address_is_refused_without_showing_keys(url: str) -> None:
    with pytest.raises(UsageError, match="is not an object store's address") as caught:
        StoreAddress.from_url(url, access_key="key", secret_key=SECRET)
    assert SECRET not in str(caught.value)


def test_an_endpoint_and_a_bucket_that_cannot_be_are_refused_before_anything_is_asked() -> None:
    for endpoint in ("host:9000/bucket", "host:99999", f"me:{SECRET}@host:9000", "host:9000?x=1"):
        with pytest.raises(
            UsageError, match=r"is not the endpoint of an object store: .*write only host:port"
        ) as caught:
            ObjectStore(StoreAddress(endpoint, "bucket", "key", SECRET))
        assert SECRET not in str(caught.value)
    for bucket in ("B", "a", "", "s3://bucket", "bucket/runs", "a..b", "x" * 64, "192.168.1.1"):
        with pytest.raises(UsageError, match=f"'{bucket}' is not the name of a bucket: .*3 to 63 lower-case letters"):
            ObjectStore(StoreAddress("host:9000", bucket, "key", SECRET))


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The host of each connection that is asked for from now on."""
    hosts, connect = list[str](), connection.create_connection

    def noted(address: tuple[str, int], *given: Any, **named: Any) -> socket.socket:
        hosts.append(address[0])
        return connect(address, *given, **named)

    monkeypatch.setattr(connection, "create_connection", noted)
    return hosts


def test_a_store_that_is_not_there_is_told_after_one_attempt(attempts: list[str]) -> None:
    with ObjectStore(address()) as store, pytest.raises(StoreUnavailable) as caught:
        store.put(DATA, "groups")
    assert isinstance(caught.value, Unavailable)
    assert attempts == ["127.0.0.1"]


def test_a_store_that_is_silent_is_told_after_one_timeout(attempts: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        where = address(f"127.0.0.1:{silent.getsockname()[1]}")
        with ObjectStore(where, timeout_s=0.4) as store, pytest.raises(StoreUnavailable):
            store.get("groups/x", SHA256, len(DATA))
        assert 0.3 < time.monotonic() - began < 60
    assert attempts == ["127.0.0.1"]


@pytest.mark.parametrize("body", [DATA[:-1], DATA + b"!", b"x" * len(DATA), b""])
def test_wrong_bytes_are_refused(body: bytes, tmp_path: Path) -> None:
    with answering(200, body) as store:
        with pytest.raises(ObjectCorrupt, match="but the record that names it says"):
            store.get("k", SHA256, len(DATA))
        with pytest.raises(ObjectCorrupt):
            store.get_to_file("k", SHA256, len(DATA), tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_becomes_the_error_that_says_what_to_do() -> None:
    plain, other = "application/xml", "text/xml; charset=utf-8"
    for status, code, content_type, error in (
        (404, "NoSuchKey", plain, ObjectMissing),
        (404, "NoSuchBucket", other, ObjectMissing),
        (403, "SignatureDoesNotMatch", plain, StoreDenied),
        (403, "AccessDenied", other, StoreDenied),
        (503, "SlowDown", plain, StoreUnavailable),
        (500, "InternalError", other, StoreUnavailable),
        (404, "NoSuchUpload", plain, StoreUnavailable),
        (507, "XMinioStorageFull", other, StoreUnavailable),
        (500, "XMinioAdminBucketQuotaExceeded", plain, StoreUnavailable),
        (429, "TooManyRequests", plain, StoreUnavailable),
        (409, "OperationAborted", plain, StoreUnavailable),
        (502, "BadGateway", plain, StoreUnavailable),
        (504, "GatewayTimeout", other, StoreUnavailable),
        (501, "NotImplemented", plain, StoreError),
        (403, "QuotaExceeded", plain, StoreUnavailable),
        (400, "SlowDown", plain, StoreUnavailable),
        (403, "RequestThrottled", plain, StoreUnavailable),
        (408, "RequestTimeout", plain, StoreUnavailable),
        (401, "Unauthorized", plain, StoreDenied),
    ):
        with answering(status, s3_error(code), content_type) as store, pytest.raises(StoreError) as caught:
            store.get("k", SHA256, len(DATA))
        assert type(caught.value) is error, code
        assert "bucket/k" in str(caught.value)
        assert ("make room" in str(caught.value)) is code.endswith(("Full", "Exceeded"))


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (403, "RequestTimeTooSkewed", "the clocks of this machine and of the store differ: set them"),
        (301, "PermanentRedirect", r"at another endpoint: correct both .*store\.region and store\.endpoint"),
        (400, "AuthorizationHeaderMalformed", r"correct both .*store\.region"),
        (403, "InvalidObjectState", "archive class"),
        (400, "MissingContentMD5", "without object lock"),
    ],
)
def test_a_refusal_that_somebody_can_heal_says_how(status: int, code: str, words: str) -> None:
    with (
        answering(status, s3_error(code), "application/xml") as store,
        pytest.raises(StoreError, match=words) as caught,
    ):
        store.get("k", SHA256, len(DATA))
    assert not isinstance(caught.value, Unavailable)


def test_a_head_that_is_refused_is_no_pause() -> None:
    for status, error in (
        (401, StoreDenied),
        (407, StoreDenied),
        (402, StoreError),
        (302, StoreError),
        (412, StoreError),
        (413, StoreError),
    ):
        with answering(status, b"", "application/xml") as store, pytest.raises(StoreError) as caught:
            store.put(DATA, "groups")
        assert type(caught.value) is error, status


@pytest.mark.parametrize("content_type", ["application/xml", "text/xml; charset=utf-8"])
def test_a_head_that_is_refused_for_an_expired_token_is_asked_by_get_and_is_a_pause(content_type: str) -> None:
    for code in ("ExpiredToken", "InvalidToken"):
        with answering(400, s3_error(code), content_type) as store:
            for ask in (lambda: store.put(DATA, "groups"), store.has_bucket, store.ensure_bucket):
                with pytest.raises(StoreDenied, match=f"{code}.*the session token may have expired") as caught:
                    ask()
                assert isinstance(caught.value, Unavailable) is (ask != store.ensure_bucket), "nothing runs yet"
                assert "https://" not in str(caught.value)


def test_an_answer_that_the_client_cannot_read_is_a_pause() -> None:
    for status, body in ((502, b"<html>bad gateway"), (503, b"<html>"), (429, b"")):
        with answering(status, body, "application/xml") as store, pytest.raises(StoreUnavailable):
            store.get("k", SHA256, len(DATA))
    for status in (408, 409, 429, 500, 502, 503, 504, 507):
        with answering(status, b"", "application/xml") as store, pytest.raises(StoreUnavailable):
            store.put(DATA, "groups")  # begins with a HEAD, whose answer has no body


def test_a_server_that_is_no_object_store_is_not_waited_for() -> None:
    with answering(404, b"<html>", "text/html") as store, pytest.raises(StoreError, match="refuses") as caught:
        store.get("k", SHA256, len(DATA))
    assert not isinstance(caught.value, Unavailable)


BEGUN = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"


class Joins(BaseHTTPRequestHandler):
    """Takes the parts of an object, and says with status 200 that it could not join them."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(404, b"")

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self._answer(200, BEGUN if self.path.endswith("?uploads=") else s3_error("InternalError"))

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("ETag", '"e"')
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def test_parts_that_the_store_could_not_join_are_no_object() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Joins) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        with (
            ObjectStore(address(f"127.0.0.1:{server.server_address[1]}"), timeout_s=2) as store,
            pytest.raises(StoreUnavailable, match=r"did not complete the multipart upload of .*: all parts"),
        ):
            store.put(bytes(9 << 20), "weights")
        server.shutdown()
        thread.join()
