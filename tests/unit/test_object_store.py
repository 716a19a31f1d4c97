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

import pytest

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
def answering(status: int, body: bytes, content_type: str = "application/xml") -> Iterator[ObjectStore]:
    """A store that gives one answer to everything and knows no ranges."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        with ObjectStore(address(f"127.0.0.1:{server.server_port}"), timeout_s=2) as store:
            yield store
        server.shutdown()


def s3_error(code: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>m</Message></Error>'.encode()


def test_an_object_is_named_by_its_kind_and_content() -> None:
    store = ObjectStore(address(prefix="runs/a/"))
    assert store.key("anchors", SHA256, ".safetensors") == f"runs/a/anchors/{SHA256}.safetensors"
    assert ObjectStore(address()).key("groups", SHA256) == f"groups/{SHA256}"


def test_no_text_of_an_address_shows_the_keys() -> None:
    where = address()
    assert SECRET not in repr(where)
    assert SECRET not in str(where)
    assert SECRET not in where.to_url()
    assert "127.0.0.1:9" in repr(where)


def test_an_address_comes_back_from_its_url_and_keys() -> None:
    where = StoreAddress("s3.example:9000", "bucket", "key", SECRET, secure=True, region="eu-1", prefix="a/b/")
    assert StoreAddress.from_url(where.to_url(), access_key="key", secret_key=SECRET) == where


@pytest.mark.parametrize(
    "url", ["s3.example:9000/bucket", "http://s3.example:9000", "http://key:very-secret@host/bucket"]
)
def test_a_url_that_is_no_address_is_refused_without_showing_keys(url: str) -> None:
    with pytest.raises(UsageError, match="HEADRACE_S3_SECRET_KEY") as caught:
        StoreAddress.from_url(url, access_key="key", secret_key=SECRET)
    assert SECRET not in str(caught.value)


def test_a_store_that_is_not_there_is_told_at_once() -> None:
    began = time.monotonic()
    with ObjectStore(address()) as store, pytest.raises(StoreUnavailable) as caught:
        store.put(DATA, "groups")
    assert isinstance(caught.value, Unavailable)
    assert time.monotonic() - began < 2


def test_a_store_that_is_silent_is_told_after_one_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        where = address(f"127.0.0.1:{silent.getsockname()[1]}")
        with ObjectStore(where, timeout_s=0.4) as store, pytest.raises(StoreUnavailable):
            store.get("groups/x", SHA256, len(DATA))
        assert 0.3 < time.monotonic() - began < 1.5


def test_right_bytes_are_handed_out() -> None:
    with answering(200, DATA) as store:
        assert store.get("k", SHA256, len(DATA)) == DATA


@pytest.mark.parametrize("body", [DATA[:-1], DATA + b"!", b"x" * len(DATA), b""])
def test_wrong_bytes_are_refused(body: bytes, tmp_path: Path) -> None:
    with answering(200, body) as store:
        with pytest.raises(ObjectCorrupt, match="where its record has"):
            store.get("k", SHA256, len(DATA))
        with pytest.raises(ObjectCorrupt):
            store.get_to_file("k", SHA256, len(DATA), tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_ignores_ranges_still_gives_the_right_part() -> None:
    with answering(200, DATA) as store:
        assert store.get_range("k", 3, 4) == DATA[3:7]
        with pytest.raises(ObjectCorrupt, match="ends before byte 12"):
            store.get_range("k", 8, 4)


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (404, "NoSuchKey", ObjectMissing),
        (404, "NoSuchBucket", ObjectMissing),
        (403, "AccessDenied", StoreDenied),
        (403, "SignatureDoesNotMatch", StoreDenied),
        (503, "SlowDown", StoreUnavailable),
        (500, "InternalError", StoreUnavailable),
        (404, "NoSuchUpload", StoreUnavailable),
        (507, "XMinioStorageFull", StoreError),
    ],
)
@pytest.mark.parametrize("content_type", ["application/xml", "text/xml; charset=utf-8"])
def test_a_refusal_becomes_the_error_that_says_what_to_do(
    status: int, code: str, error: type[StoreError], content_type: str
) -> None:
    with answering(status, s3_error(code), content_type) as store, pytest.raises(StoreError) as caught:
        store.get("k", SHA256, len(DATA))
    assert type(caught.value) is error
    assert "bucket/k" in str(caught.value)


def test_a_server_that_is_no_object_store_is_not_waited_for() -> None:
    with answering(404, b"<html>", "text/html") as store, pytest.raises(StoreError, match="refuses") as caught:
        store.get("k", SHA256, len(DATA))
    assert not isinstance(caught.value, Unavailable)
