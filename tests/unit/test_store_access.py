"""Keys of the environment and of files, and TLS: what is found, what is believed, what is said, and what never is."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from answering_server import CERTIFICATES, answering_server

from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.recipe.server_settings import Store
from headrace.infra.run.run import describe_store, parse_store
from headrace.infra.store.access import find_keys
from headrace.infra.store.object_store import ObjectStore, StoreAddress, StoreDenied, StoreError, StoreUnavailable
from headrace.schemas.records import RecipeRevision

AUTHORITY = str(CERTIFICATES / "authority.pem")
SECRET = "very-secret"
FILE = """[default]
aws_access_key_id = of-file
aws_secret_access_key = {secret}
[worker]
aws_access_key_id = of-worker
aws_secret_access_key = {secret}
"""


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment without keys and certificates, and a home without files."""
    for name in (
        "HEADRACE_S3_ACCESS_KEY", "HEADRACE_S3_SECRET_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN", "AWS_SHARED_CREDENTIALS_FILE", "AWS_PROFILE", "AWS_CA_BUNDLE", "SSL_CERT_FILE",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def found(access_key: str = "", secret_key: str = "") -> tuple[str, str, str | None]:
    keys = find_keys(access_key, secret_key).retrieve()
    return keys.access_key, keys.secret_key, keys.session_token


# ---------------------------------------------------------------------------------------------------------------- keys


def test_keys_come_from_the_first_place_that_has_some(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(FILE.format(secret=SECRET))
    assert found() == ("of-file", SECRET, None)
    (tmp_path / "mounted").write_text(FILE.format(secret="another"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "mounted"))
    monkeypatch.setenv("AWS_PROFILE", "worker")
    assert found() == ("of-worker", "another", None)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-aws")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "for an hour")
    assert found() == ("of-aws", SECRET, "for an hour")
    monkeypatch.setenv("HEADRACE_S3_ACCESS_KEY", "ours")
    monkeypatch.setenv("HEADRACE_S3_SECRET_KEY", SECRET)
    assert found() == ("ours", SECRET, None)
    assert found("of an embedded store", SECRET) == ("of an embedded store", SECRET, None)


def test_without_keys_a_component_ends_as_it_joins_and_says_where_they_may_stand() -> None:
    address = StoreAddress("minio:9000", "bucket")
    revision = RecipeRevision(recipe="{}", store=describe_store(address))
    with pytest.raises(UsageError, match=r"HEADRACE_S3_ACCESS_KEY.*AWS_ACCESS_KEY_ID.*AWS_SHARED_CREDENTIALS_FILE"):
        parse_store(revision)
    with pytest.raises(UsageError, match=r"~/.aws/credentials"):
        ObjectStore(address)


def revision_in(folder: Path) -> RecipeRevision:
    """A revision of a run whose store is embedded in a folder."""
    folder.mkdir(exist_ok=True)
    (folder / "store.json").write_text(json.dumps({"server": "rclone", "access_key": "own", "secret_key": SECRET}))
    address = StoreAddress("127.0.0.1:9", "bucket", "own", SECRET, keys_file=str(folder / "store.json"))
    return RecipeRevision(recipe="{}", store=describe_store(address))


def test_the_keys_of_an_embedded_store_are_in_no_record_and_are_read_where_it_keeps_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADRACE_S3_ACCESS_KEY", "of an archive")
    monkeypatch.setenv("HEADRACE_S3_SECRET_KEY", "other")
    revision = revision_in(tmp_path / "store")
    assert SECRET not in revision.store
    assert (parse_store(revision).access_key, parse_store(revision).secret_key) == ("own", SECRET)


def test_the_records_of_the_first_release_still_name_the_keys_themselves() -> None:
    text = json.dumps({"url": "http://127.0.0.1:9/b/", "access_key": "own", "secret_key": SECRET})
    found = parse_store(RecipeRevision(recipe="{}", store=text))
    assert (found.access_key, found.secret_key) == ("own", SECRET)


def test_who_cannot_read_the_keys_of_an_embedded_store_joins_and_learns_at_the_store_where_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    revision = revision_in(tmp_path / "store")
    for torn in ("", "[]", '{"access_key": "own"}'):
        (tmp_path / "store" / "store.json").write_text(torn)
        found = parse_store(revision)
        assert found.access_key == ""
    (tmp_path / "store" / "store.json").unlink()
    with pytest.raises(UsageError, match=r"store\.json .keys of the run's embedded store.*set HEADRACE_S3_ACCESS_KEY"):
        ObjectStore(parse_store(revision))
    monkeypatch.setenv("HEADRACE_S3_ACCESS_KEY", "given")
    monkeypatch.setenv("HEADRACE_S3_SECRET_KEY", SECRET)
    ObjectStore(parse_store(revision)).close()


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"HEADRACE_S3_ACCESS_KEY": "a"}, "HEADRACE_S3_SECRET_KEY is not set"),
        ({"HEADRACE_S3_SECRET_KEY": SECRET}, "HEADRACE_S3_ACCESS_KEY is not set"),
        ({"AWS_SECRET_ACCESS_KEY": SECRET}, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_half_a_pair_of_keys_is_none(given: dict[str, str], missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=missing) as caught:
        find_keys()
    assert SECRET not in str(caught.value)


def test_keys_that_are_exchanged_in_a_file_are_those_of_the_next_request(tmp_path: Path) -> None:
    file = tmp_path / ".aws" / "credentials"
    file.parent.mkdir()
    file.write_text(FILE.format(secret=SECRET))
    keys = find_keys()
    file.write_text("[defau")
    assert keys.retrieve().secret_key == SECRET, "a file that is being written is none"
    file.write_text(FILE.format(secret="newer"))
    assert keys.retrieve().secret_key == "newer"


# ----------------------------------------------------------------------------------------------------------------- TLS


def store(port: int, host: str = "127.0.0.1", *, secure: bool = True) -> ObjectStore:
    return ObjectStore(StoreAddress(f"{host}:{port}", "bucket", "key", SECRET, secure=secure), timeout_s=10)


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_an_authority_of_ones_own_is_believed_where_it_is_named(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering_server(tls=True) as port:
        with store(port) as doubting, pytest.raises(StoreError, match=r"not trusted.*AWS_CA_BUNDLE") as caught:
            doubting.has_object("weights/a")
        assert not isinstance(caught.value, StoreUnavailable), "no waiting heals it"
        monkeypatch.setenv(variable, AUTHORITY)
        with store(port) as trusting:
            assert trusting.has_object("weights/a")


def test_a_certificate_for_another_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", AUTHORITY)
    refused = pytest.raises(StoreError, match=r"for another host.*localhost")
    with answering_server(tls=True) as port, store(port, "localhost") as other, refused:
        other.has_object("weights/a")


@pytest.mark.parametrize(
    ("given", "endpoint", "secure"),
    [
        ({"endpoint": "minio:9000"}, "minio:9000", False),
        ({"endpoint": "minio:9000", "secure": True}, "minio:9000", True),
        ({"endpoint": "https://minio:9000/"}, "minio:9000", True),
        ({"endpoint": "http://minio:9000"}, "minio:9000", False),
    ],
)
def test_a_recipe_says_tls_by_the_scheme_or_by_a_key(given: dict[str, object], endpoint: str, secure: bool) -> None:
    said = Store.model_validate(given)
    assert (said.endpoint, said.secure) == (endpoint, secure)
    assert Store.model_validate(said.model_dump()) == said


@pytest.mark.parametrize("given", [{"endpoint": "s3://bucket"}, {"endpoint": "http://minio:9000", "secure": True}])
def test_a_scheme_that_contradicts_or_is_none_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="https://host:port for TLS"):
        Store.model_validate(given)


# ------------------------------------------------------------------------------------------------------------- secrets


def refusals(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeadraceError]:
    """What goes wrong with keys and stores, as raised."""
    denied = b"<Error><Code>SignatureDoesNotMatch</Code><Message>m</Message></Error>"
    with answering_server(403, denied) as denying, store(denying, secure=False) as there:
        for ask in (there.ensure_bucket, lambda: there.get("weights/a", "0" * 64, 1)):
            with pytest.raises(StoreDenied) as caught:
                ask()
            yield caught.value
    for secure in (True, False):
        with store(port, secure=secure) as away, pytest.raises(StoreError) as refused:
            away.put(b"data", "groups")
        yield refused.value
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    for torn in (f"[default]\n{SECRET}\n", FILE.format(secret=f"%{SECRET}"), f"aws_secret_access_key = {SECRET}\n"):
        (tmp_path / "keys").write_text(torn)
        with pytest.raises(UsageError) as unread:
            find_keys()
        yield unread.value


def test_no_message_log_or_repr_shows_a_secret_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)  # of urllib3 and the client too
    with answering_server(tls=True) as port:
        told = list(refusals(port, tmp_path, monkeypatch))
    assert len(told) == 7
    for error in told:
        chain: list[BaseException | None] = [
            error,
            error.__cause__,
            None if error.__suppress_context__ else error.__context__,
        ]
        assert SECRET not in "".join(f"{link} {link!r}" for link in chain)
    assert SECRET not in caplog.text
    address = StoreAddress("minio:9000", "bucket", "key", SECRET)
    with ObjectStore(address) as store_of_it:
        assert SECRET not in f"{address!r} {store_of_it!r} {vars(store_of_it)} {find_keys('key', SECRET)!r}"
