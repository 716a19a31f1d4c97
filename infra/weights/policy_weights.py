"""One policy's weights in a worker, brought from version to version by the objects with the fewest bytes.

All objects of a way are fetched and read before the first is applied. Each is checked against its record, and the
weights before and after each are checked by their hash. Meanwhile the engine serves its own copy.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.infra.errors import HeadraceError
from headrace.infra.stopwatch import Stopwatch
from headrace.infra.store.object_sources import WeightObjects
from headrace.infra.store.object_store import ObjectCorrupt, ObjectMissing
from headrace.infra.weights.delta import Delta, read_delta
from headrace.infra.weights.folder import read_shards
from headrace.infra.weights.held import HeldWeights
from headrace.infra.weights.paths import (
    NO_BASE,
    WHOLE,
    describe_mislabelling,
    find_cheapest_path,
    is_whole,
    link_of,
    list_claims,
    size_of,
)
from headrace.infra.weights.tensor_file import read_safetensors
from headrace.infra.weights.tensors import Tensor, WeightsError
from headrace.schemas.records import ClaimCheck, WeightsPublished

Fetched = Delta | dict[str, Tensor]


class BadWeights(HeadraceError):
    """An object does not contain the weights that its record names, or no good object leads to a version."""


class PolicyWeights:
    """The weights of one policy that are held; none in the beginning."""

    def __init__(self, objects: WeightObjects) -> None:
        self._objects = objects
        self._held: HeldWeights | None = None
        self._watch = Stopwatch()
        self._worthless: dict[ClaimCheck, str] = {}
        """Objects with the right hash but no valid weights, with the reason. To fetch them again is useless."""
        self.fetched_bytes = 0
        """Bytes of the objects of the last `load_version`."""

    @property
    def last_load_seconds(self) -> dict[str, float]:
        """What the last `load_version` took, in seconds, by activity: fetch, verify, apply."""
        return {activity: self._watch.seconds[activity] for activity in ("fetch", "verify", "apply")}

    def load_version(
        self, events: Iterable[WeightsPublished], target: WeightsPublished, refused: set[ClaimCheck] | None = None
    ) -> dict[str, Tensor]:
        """Return the weights of a version. They belong to this object: the next call may change them.

        An object that is missing, incomplete or wrongly labelled is left out, and another way is used if there is one.

        Args:
            events: All known events of the policy.
            target: The event of the version that is wanted.
            refused: Objects not to fetch; those that are found bad are added, for the caller's next version.

        Raises BadWeights when no way is left; the weights held then may be of a version in between. Raises Unavailable
        when the store is unreachable.
        """
        refused = set() if refused is None else refused
        self._watch.seconds.clear()
        self.fetched_bytes = 0
        links = [link for event in events if (link := link_of(event)) is not None and claim_of(event) not in refused]
        worthless = [link for link in links if claim_of(link.of) in self._worthless]
        links = [link for link in links if claim_of(link.of) not in self._worthless]
        healed = max((link.of.version for link in links if link.source == NO_BASE), default=-1)
        why = [self._worthless[claim_of(link.of)] for link in worthless if link.of.version > healed]
        again: set[ClaimCheck] = set()
        while True:
            way = find_cheapest_path(links, self._held.weights_hash if self._held else NO_BASE, target.weights_hash)
            if way is None:
                raise BadWeights(_describe_no_way(target.version, why))
            fetched: list[Fetched] = []
            at = 0
            try:
                for at, link in enumerate(way):  # noqa: B007 - names below which one it was
                    fetched.append(self._fetch(link.of))
                for at, content in enumerate(fetched):
                    self._apply(way[at].of, content, just_verified=at > 0)
            except (ObjectMissing, ObjectCorrupt, WeightsError, BadWeights) as error:
                event = way[at].of
                claim = claim_of(event)
                if isinstance(error, WeightsError) and claim not in again:
                    again.add(claim)  # this machine's copy may be damaged: it is fetched once more
                    for kept in list_claims(event):
                        self._objects.drop(kept)
                    continue
                why.append(f"{name_of(event)}: {error}")
                if isinstance(error, WeightsError | BadWeights):
                    self._worthless[claim] = why[-1]
                refused.add(claim)
                links.remove(way[at])
            else:
                assert self._held is not None  # noqa: S101 - a version is either held or led to
                return self._held.tensors

    def _apply(self, event: WeightsPublished, content: Fetched, *, just_verified: bool) -> None:
        if isinstance(content, Delta):
            assert self._held is not None  # noqa: S101 - a way never begins with a delta on nothing
            self._held.apply(content, just_verified=just_verified)
        else:
            self._held = HeldWeights(content, event.weights_hash, watch=self._watch)

    def _fetch(self, event: WeightsPublished) -> Fetched:
        with self._watch.measure("fetch"):
            fetch = fetch_whole if is_whole(event) else fetch_delta
            content: Fetched = fetch(self._objects, event)
        self.fetched_bytes += size_of(event)
        return content


def fetch_whole(objects: WeightObjects, event: WeightsPublished) -> dict[str, Tensor]:
    """Return the tensors of whole weights, from one object or several. Raises as `fetch_delta`."""
    whole = objects.get(claim_of(event))
    if not event.shards:
        return read_safetensors(whole)
    found = {shard.name: objects.get(shard.claim) for shard in event.shards if shard.claim is not None}
    return read_shards(whole, found)


def fetch_delta(objects: WeightObjects, event: WeightsPublished) -> Delta:
    """Return the delta that an event names. Raises as `ObjectStore.get`, WeightsError and BadWeights."""
    claim = claim_of(event)
    delta = read_delta(objects.get(claim))
    if wrong := describe_mislabelling(delta.header, event):
        raise BadWeights(f"{claim.key} is not the delta that its record in the topic of the weights says: {wrong}")
    return delta


def claim_of(event: WeightsPublished) -> ClaimCheck:
    """Return where an event's object is."""
    assert event.weights is not None  # noqa: S101 - `link_of` leaves out those that name none
    return event.weights


def name_of(event: WeightsPublished) -> str:
    """Return a name of an event's object for a sentence."""
    if event.kind == WHOLE:
        return f"the whole weights of version {event.version}"
    return f"the {event.kind} of version {event.version}"


def _describe_no_way(version: int, why: list[str]) -> str:
    reasons = "; ".join(why) or f"version {version} cannot be built from the published whole weights and deltas"
    return f"{reasons}. From the next anchor (whole weights) on, versions can be loaded again"
