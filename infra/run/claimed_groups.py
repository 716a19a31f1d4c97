"""Groups whose trajectories are in the object store."""

from __future__ import annotations

from collections.abc import Callable

from headrace.infra.kafka.decoding import MessageRefused, decode_record
from headrace.infra.store.object_store import ObjectCorrupt, ObjectMissing
from headrace.schemas.records import ClaimCheck, TrajectoryGroup


def fetch_trajectories(group: TrajectoryGroup, fetch: Callable[[ClaimCheck], bytes]) -> TrajectoryGroup:
    """Return a group as its worker encoded it, from its object when it has a claim check.

    Args:
        group: As its message holds it.
        fetch: `Run.get_group`.

    Raises MessageRefused as `undecodable` or `missing_object`, and Unavailable as `fetch` does.
    """
    if group.claim is None:
        return group
    try:
        return decode_record(fetch(group.claim), TrajectoryGroup)
    except (ObjectMissing, ObjectCorrupt) as error:
        raise MessageRefused("missing_object", str(error)) from error
