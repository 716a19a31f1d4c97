"""What each component may do in the object store, as the policy that MinIO and other S3 stores take: `store-policy`.

Only the collector may remove objects. In S3 only a reader may ask whether an object exists, so each role that writes a
kind of object may also read it. All roles may list the bucket, which shows hashes, since a store answers "it is not
there" only to those. A role that writes a kind could replace its objects; readers notice, because the name is the hash.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, get_args

from headrace.infra.store.object_store import PROBE_FOLDER, Kind

OBJECT_KINDS: tuple[Kind, ...] = get_args(Kind)
ANY_RUN = "*/"
"""A run's objects are under its run id, which is not known before it begins."""


@dataclass(frozen=True, slots=True)
class Rights:
    """Kinds of objects that a role reads, reads and writes, and removes."""

    reads: tuple[Kind, ...] = ()
    writes: tuple[Kind, ...] = ()
    removes: tuple[Kind, ...] = ()
    founds: bool = False
    """Makes the bucket when it is missing, and checks that it can be used."""


STORE_ROLES = {
    "up": Rights(writes=OBJECT_KINDS, founds=True),
    "feeder": Rights(writes=("examples",)),
    "worker": Rights(reads=("weights", "files"), writes=("groups",)),
    "curator": Rights(reads=("groups",)),
    "trainer": Rights(reads=("groups", "examples"), writes=("weights", "files", "checkpoints")),
    "evaluator": Rights(reads=("groups",)),
    "auditor": Rights(reads=OBJECT_KINDS),
    "collector": Rights(removes=OBJECT_KINDS),
}
"""`up` starts every other component with its own keys; an `auditor` looks: audit, inspect, retrain, export."""


def build_policy(role: str, bucket: str, prefix: str = ANY_RUN) -> str:
    """Return a role's policy as JSON, for the objects of every run, or those under a `prefix` as in StoreAddress."""
    rights = STORE_ROLES[role]
    bucket_arn = f"arn:aws:s3:::{bucket}"
    probe = [f"{bucket_arn}/{PROBE_FOLDER}/*"] if rights.founds else []
    written = _list_arns_below(bucket_arn, prefix, rights.writes) + probe
    statements = [
        _build_statement("List", ("s3:ListBucket",), [bucket_arn]),
        _build_statement(
            "Read", ("s3:GetObject",), _list_arns_below(bucket_arn, prefix, (*rights.reads, *rights.removes)) + written
        ),
        _build_statement("Write", ("s3:PutObject", "s3:AbortMultipartUpload"), written),
        _build_statement("Remove", ("s3:DeleteObject",), _list_arns_below(bucket_arn, prefix, rights.removes)),
        _build_statement("Found", ("s3:CreateBucket",), [bucket_arn] if rights.founds else []),
    ]
    return json.dumps({"Version": "2012-10-17", "Statement": [s for s in statements if s["Resource"]]}, indent=2)


def _build_statement(name: str, actions: tuple[str, ...], resources: list[str]) -> dict[str, Any]:
    return {"Sid": name, "Effect": "Allow", "Action": list(actions), "Resource": resources}


def _list_arns_below(bucket_arn: str, prefix: str, kinds: tuple[str, ...]) -> list[str]:
    return [f"{bucket_arn}/{prefix}{kind}/*" for kind in kinds]
