"""Policies of the object store: what a role may, and no more."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase

import pytest

from headrace.infra.store.policy import ANY_RUN, OBJECT_KINDS, STORE_ROLES, build_policy


def may(role: str, action: str, resource: str, prefix: str = "runs/a/") -> bool:
    """What a store makes of the policy."""
    return any(
        action in statement["Action"] and any(fnmatchcase(resource, pattern) for pattern in statement["Resource"])
        for statement in json.loads(build_policy(role, "models", prefix))["Statement"]
    )


def rights(role: str, action: str) -> set[str]:
    return {kind for kind in OBJECT_KINDS if may(role, action, f"arn:aws:s3:::models/runs/a/{kind}/0123")}


def test_without_a_prefix_a_policy_is_for_every_run_of_the_bucket() -> None:
    assert may("worker", "s3:GetObject", "arn:aws:s3:::models/sums-1f/weights/0123", ANY_RUN)
    assert not may("worker", "s3:PutObject", "arn:aws:s3:::models/sums-1f/weights/0123", ANY_RUN)
    assert not may("worker", "s3:GetObject", "arn:aws:s3:::other/sums-1f/weights/0123", ANY_RUN)


def test_whoever_founds_the_bucket_tries_it_before_there_is_a_run() -> None:
    for action in ("s3:GetObject", "s3:PutObject"):
        assert [role for role in STORE_ROLES if may(role, action, "arn:aws:s3:::models/probe/0123")] == ["up"]


def test_a_worker_reads_weights_and_files_and_writes_groups() -> None:
    assert rights("worker", "s3:GetObject") == {"weights", "files", "groups"}
    assert rights("worker", "s3:PutObject") == rights("worker", "s3:AbortMultipartUpload") == {"groups"}


@pytest.mark.parametrize("role", sorted(STORE_ROLES))
def test_only_the_collector_removes_and_nobody_reaches_beyond_bucket_and_prefix(role: str) -> None:
    assert rights(role, "s3:DeleteObject") == (set(OBJECT_KINDS) if role == "collector" else set())
    for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"):
        for key in ("models/weights/0", "models/runs/b/weights/0", "other/runs/a/weights/0"):
            assert not may(role, action, f"arn:aws:s3:::{key}")
    assert may(role, "s3:ListBucket", "arn:aws:s3:::models")
    assert may(role, "s3:CreateBucket", "arn:aws:s3:::models") == (role == "up")


def test_every_kind_is_written_by_someone_and_whoever_writes_can_see_whether_it_is_there() -> None:
    assert set().union(*(STORE_ROLES[role].writes for role in STORE_ROLES if role != "up")) == set(OBJECT_KINDS)
    for role in STORE_ROLES:
        assert rights(role, "s3:PutObject") <= rights(role, "s3:GetObject")
