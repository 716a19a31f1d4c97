"""Whether a run's object store can be used from here: its keys are set, it answers, and its bucket exists."""

from __future__ import annotations

from headrace.infra.errors import HeadraceError
from headrace.infra.store.object_store import ObjectStore
from headrace.infra.store.store_address import StoreAddress
from headrace.ops.preflight.contract import Finding

LOOK_S = 3.0


def examine_store(address: StoreAddress) -> Finding:
    """Ask for a bucket once, within some seconds; write nothing."""
    where = f"bucket {address.bucket} at {address.endpoint}"
    try:
        with ObjectStore(address, timeout_s=LOOK_S) as store:
            is_there, key = store.has_bucket(), store.access_key
    except HeadraceError as error:
        return Finding("store", ok=False, detail=str(error))
    if is_there:
        return Finding("store", ok=True, detail=f"{where} answers to access key {key}")
    detail = f"{where}: the bucket does not exist yet, so access key {key} needs the right to create it"
    return Finding("store", ok=True, detail=detail, is_note=True)
