"""Groups whose trajectories are in the object store."""

from __future__ import annotations

from collections.abc import Callable

from headrace.infra.kafka.decoding import MessageRefused, decode_record
from headrace.infra.store.object_store import ObjectCorrupt, ObjectMissing
from headrace.schemas.records import ClaimCheck, TrajectoryGroup


def fetch_trajectories(group: TrajectoryGroup, fetch: Callable[[ClaimCheck], bytes]) -> TrajectoryGroup:
    """Return the complete group, fetched from the store if it has a claim check.

    Args:
        group: The group in its message.
        fetch: `Run.get_group`.

    Raises MessageRefused as `undecodable` or `missing_object`, and Unavailable from `fetch`.
    """
    if group.claim is None:
        return group
    try:
        return decode_record(fetch(group.claim), TrajectoryGroup)
    except (ObjectMissing, ObjectCorrupt) as error:
        raise MessageRefused("missing_object", str(error)) from error
