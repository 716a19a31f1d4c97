"""MinIO as people run it: with TLS by an authority of their own, and a user with a policy for each component."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from made_run import make_run, publish, tiny_recipe
from minio import MinioAdmin
from minio.credentials.providers import StaticProvider
from minio.error import S3Error
from servers import START_S, minio_with_tls
from test_large_objects import Breaking
from test_rollout_worker import Spawn, issue, messages, task, until, work  # noqa: F401 - a fixture

from headrace.infra.environment import ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE
from headrace.infra.store.access import open_connections
from headrace.infra.store.object_store import (
    UPLOAD_PART_BYTES,
    ObjectStore,
    StoreAddress,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from headrace.infra.store.policy import OBJECT_KINDS, STORE_ROLES, build_policy
from headrace.schemas import codec
from headrace.schemas.records import TrajectoryGroup

CERTIFICATES = Path(__file__).parents[1] / "certificates"
AUTHORITY = str(CERTIFICATES / "authority.pem")
BUCKET = "models"
SECRET = "secret-of-a-role"
PARTS = b"part" * (UPLOAD_PART_BYTES // 3)
"""Goes up in two."""


def user(role: str) -> str:
    return f"headrace-{role}"


@pytest.fixture(scope="module")
def root() -> Iterator[StoreAddress]:
    """A MinIO with a bucket, and a user for every role."""
    with minio_with_tls(CERTIFICATES) as (endpoint, *keys), pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_CA_BUNDLE", AUTHORITY)
        address = StoreAddress(endpoint, BUCKET, *keys, secure=True, prefix="run-1/")
        with ObjectStore(replace(address, prefix="")) as store:
            store.wait_ready(START_S)
            store.ensure_bucket()
        http = open_connections(START_S, START_S, secure=True)
        admin = MinioAdmin(endpoint=endpoint, credentials=StaticProvider(*keys), http_client=http)
        for role in STORE_ROLES:
            admin.user_add(user(role), SECRET)
            admin.policy_add(role, policy=json.loads(build_policy(role, BUCKET)))
            admin.attach_policy([role], user=user(role))
        yield address


def as_role(root: StoreAddress, role: str) -> ObjectStore:
    return ObjectStore(replace(root, access_key=user(role), secret_key=SECRET))


def test_a_certificate_is_believed_when_its_authority_is_named(
    root: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ObjectStore(root) as store:
        stored = store.put(PARTS, "weights")
        assert store.get(stored.key, stored.sha256, stored.size_bytes) == PARTS
    plain = replace(root, secure=False)
    with ObjectStore(plain) as store, pytest.raises(StoreError, match=r"https://") as caught:
        store.wait_ready(0)
    assert not isinstance(caught.value, StoreUnavailable)
    monkeypatch.delenv("AWS_CA_BUNDLE")
    with (
        ObjectStore(root) as store,
        pytest.raises(StoreError, match=r"the store's certificate is not trusted.*AWS_CA_BUNDLE"),
    ):
        store.ensure_bucket()


@pytest.mark.parametrize("role", STORE_ROLES)
def test_each_role_can_do_what_it_has_to_and_no_more(role: str, root: StoreAddress) -> None:
    rights = STORE_ROLES[role]
    with ObjectStore(root) as whole, as_role(root, role) as store:
        for kind in OBJECT_KINDS:
            there = whole.put(f"{kind} for all".encode(), kind)
            if kind in (*rights.reads, *rights.writes, *rights.removes):
                assert store.get(there.key, there.sha256, there.size_bytes)
                assert not store.has_object(store.key(kind, "0" * 64)), "what is not there is not denied"
            else:
                with pytest.raises(StoreDenied, match=f"'{user(role)}'"):
                    store.get(there.key, there.sha256, there.size_bytes)

            own = b"%s by %s" % (kind.encode(), role.encode())
            if kind in rights.writes:
                stored = store.put(own, kind)
                assert whole.get(stored.key, stored.sha256, stored.size_bytes) == own
            else:
                with pytest.raises(StoreDenied, match="headrace store-policy"):
                    store.put(own, kind)
                assert not whole.has_object(whole.key(kind, sha256(own).hexdigest()))

            if kind in rights.removes:
                assert store.age(there.key) is not None, "gc looks at an object before it deletes it"
                store.delete(there.key)
            else:
                with pytest.raises(S3Error, match="AccessDenied"):
                    store._bucket.client.remove_object(bucket_name=BUCKET, object_name=there.key)
            assert whole.has_object(there.key) == (kind not in rights.removes)


def test_a_trainers_large_weights_go_up_in_parts_and_up_may_make_the_bucket(root: StoreAddress) -> None:
    with as_role(root, "trainer") as store:
        stored = store.put(PARTS[1:], "weights")
        with pytest.raises(OSError, match="the disk fails"):
            store._bucket.upload(store.key("weights", "0" * 64), stored.size_bytes, lambda: Breaking(PARTS[1:]))
    with as_role(replace(root, prefix=""), "up") as store:
        store.ensure_bucket()
    refused = pytest.raises(StoreDenied, match="'headrace-worker' may not use bucket 'another'")
    with as_role(replace(root, bucket="another"), "worker") as store, refused:
        store.ensure_bucket()


def test_a_worker_plays_over_tls_with_the_rights_of_a_worker(
    bootstrap: str,
    root: StoreAddress,
    run_name: str,
    work: Spawn,  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def act_as(key: str, secret: str) -> None:
        monkeypatch.setenv(ACCESS_KEY_VARIABLE, key)
        monkeypatch.setenv(SECRET_KEY_VARIABLE, secret)

    act_as(user("trainer"), SECRET)
    without_keys = replace(root, access_key="", secret_key="")
    with ObjectStore(without_keys) as store:
        recipe = tiny_recipe(run_name, rollout={"max_tokens": 8, "inline_limit_bytes": 1024})
        run = make_run(bootstrap, store, recipe)
        publish(run, 0)
        issue(run, task(run, 0, n_asked=32))
        act_as(user("worker"), SECRET)
        work(run, "w1")
        until(lambda: len(messages(run)) >= 1, "group")
        claim = codec.decode(messages(run)[0].value, TrajectoryGroup).claim
        assert claim is not None
        assert len(codec.decode(run.get(claim), TrajectoryGroup).trajectories) == 32
