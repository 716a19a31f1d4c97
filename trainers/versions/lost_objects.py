"""Whether the store still has what leads a new worker to the newest version, and when the trainer checks it.

A delta that is lost stops a run: workers that are too far behind play nothing, so the trainer gets no batch, and the
next anchor is that of a batch. Nothing shows it to the trainer but that no group comes; then it checks for itself.
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
"""How long no group came when the trainer checks first; the pause doubles from check to check, up to the other."""


def find_lost_object(
    store: ObjectStore, events: Sequence[WeightsPublished], *, read: bool = False, apply: bool = False
) -> str:
    """Return what is wrong with the first object that leads nowhere; empty when all do. Raises StoreUnavailable.

    Args:
        store: Where they are.
        events: What leads from nothing to a version, that version last.
        read: Read the objects too, rather than only ask whether they are there.
        apply: Make the version of them, too: one whose bytes are those that were stored may have been wrong from the
            beginning. Takes the memory of a version.
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
            PolicyWeights(Uncached(store)).bring(events, events[-1])
        except (ObjectMissing, ObjectCorrupt, WeightsError, BadWeights) as error:
            return str(error)
    return ""


class StoreChecks:
    """When a trainer that gets no groups checks the store: the first time only whether the objects are there.

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
        """Return whether to check now, which counts as a check; the last group came at `starved_since` by the clock."""
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
        """Whether the check under way reads the objects: not the first, which costs next to nothing."""
        return self._checks > 1

    @property
    def is_applying(self) -> bool:
        """Whether it makes the newest version of them, too: from the third on."""
        return self._checks > 2
