"""Checks that the store still has all objects for the newest version, and decides when the trainer checks.

A lost delta would stop a run: workers that are too far behind stop playing, so the trainer gets no batch, and without a
batch no new anchor comes. The trainer notices only that no groups come; then it checks the store.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from headrace.infra.backoff import Backoff
from headrace.infra.store.object_cache import Uncached
from headrace.infra.store.object_store import ObjectCorrupt, ObjectMissing, ObjectStore
from headrace.infra.weights.paths import list_claims
from headrace.infra.weights.policy_weights import BadWeights, PolicyWeights, name_of
from headrace.infra.weights.tensors import WeightsError
from headrace.schemas.records import WeightsPublished

FIRST_CHECK_S, LONGEST_PAUSE_S = 10.0, 600.0
"""Seconds without a group before the first check; the pause doubles after each check, up to the second value."""


def describe_first_damage(
    store: ObjectStore, events: Sequence[WeightsPublished], *, read: bool = False, apply: bool = False
) -> str:
    """Describe the first lost or damaged object; return an empty text if all are good. Raises StoreUnavailable.

    Args:
        store: Store of the objects.
        events: Whole weights and deltas up to a version, in order.
        read: Also read the objects, instead of only checking that they exist.
        apply: Also build the version from them, because stored bytes may have been wrong from the beginning. Needs the
        memory of a version.
    """
    for event in events:
        for claim in list_claims(event):
            try:
                if read:
                    store.verify(claim.key, claim.sha256, claim.size_bytes)
                elif not store.has_object(claim.key):
                    return f"{name_of(event)}: {claim.key} does not exist in the store"
            except (ObjectMissing, ObjectCorrupt) as error:
                return f"{name_of(event)}: {error}"
    if apply and events:
        try:
            PolicyWeights(Uncached(store)).load_version(events, events[-1])
        except (ObjectMissing, ObjectCorrupt, WeightsError, BadWeights) as error:
            return str(error)
    return ""


class StoreChecks:
    """Decides when a trainer without groups checks the store; the first check is only for existence.

    Args:
        clock: Seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pauses = Backoff(FIRST_CHECK_S, LONGEST_PAUSE_S)
        self._since = -math.inf
        self._due = 0.0
        self._checks = 0

    def is_due(self, starved_since: float) -> bool:
        """Return whether to check now, and count the check; the last group came at `starved_since` by the clock."""
        if starved_since != self._since:
            self._since, self._checks = starved_since, 0
            self._pauses.reset()
            self._due = starved_since + self._pauses.next_s()
        if self._clock() < self._due:
            return False
        self._checks += 1
        self._due = self._clock() + self._pauses.next_s()
        return True

    @property
    def is_reading(self) -> bool:
        """Whether the current check reads the objects: every check but the first, which is cheap."""
        return self._checks > 1

    @property
    def is_applying(self) -> bool:
        """Whether the current check also builds the newest version: from the third check on."""
        return self._checks > 2
