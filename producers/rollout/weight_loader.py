"""Loads published weights into the engine: the newest versions, and exact versions for evaluations.

A wrong or missing object is never served: the last good version stays, `pauses` holds the reason, and every further
turn tries again, first the newest version, then older versions that are still newer than the served one.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping

import structlog

from headrace.infra.backoff import Backoff
from headrace.infra.errors import Unavailable
from headrace.infra.failpoints import reach
from headrace.infra.store.object_sources import WeightObjects
from headrace.infra.store.object_store import StoreError
from headrace.infra.weights.paths import RECENT_VERSIONS
from headrace.infra.weights.policy_weights import BadWeights, PolicyWeights
from headrace.infra.weights.tensors import WeightsError
from headrace.producers.engines.contract import Engine, EngineAway, EngineError, VersionGone
from headrace.producers.rollout.pauses import ENGINE, STORE, Pauses
from headrace.producers.rollout.published_weights import PublishedWeights
from headrace.schemas.records import ClaimCheck, TakenWeights, WeightsPublished

log = structlog.get_logger()

EVENT_POLL_S = 0.1
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
EVENT_PATIENCE_S = 20.0
"""Seconds to wait for the record of an evaluation's version, because the task may come before it."""


class WeightLoader:
    """The loader. Only the follower's thread calls `load_newest`; any thread may call the other methods.

    Args:
        engine: The engine to load into.
        published: Published versions by policy.
        objects: The store from which weights are fetched.
        pauses: Where waits are reported.
    """

    def __init__(
        self, engine: Engine, published: Mapping[str, PublishedWeights], objects: WeightObjects, pauses: Pauses
    ) -> None:
        self.engine = engine
        self.taken: dict[str, TakenWeights] = {}
        """Cost of the newest loaded version, by policy."""
        self._published, self._objects, self._pauses = published, objects, pauses
        self._epochs: dict[str, int] = {}
        """Epoch of the served version, by policy: no delta leads from one epoch to another."""
        self._weights = {policy: PolicyWeights(objects) for policy in published}
        self._retry_at: defaultdict[str, float] = defaultdict(float)
        self._backoffs: defaultdict[str, Backoff] = defaultdict(lambda: Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S))
        self._over, self._fetching = threading.Event(), threading.Lock()

    # ------------------------------------------------------------------------------------------------ newest versions

    def load_newest(self) -> None:
        """Load for every policy the newest available version, if it is newer than the served one."""
        for policy, published in self._published.items():
            served = self.engine.versions().get(policy, -1)
            waiting = published.find_newer(served, self._epochs.get(policy, 0))
            if waiting and time.monotonic() >= self._retry_at[policy]:
                self._load_first_good(policy, waiting)

    def _load_first_good(self, policy: str, records: list[WeightsPublished]) -> None:
        """Load the newest available version; if it is not the newest of all, report why and try again later."""
        what, newest = f"weights of {policy}", records[0]
        refused: set[ClaimCheck] = set()
        for record in records:
            try:
                weights = self._weights[policy].load_version(self._published[policy].list_ways(), record, refused)
                reach("rollout.before_swap")
                paused_s = self.engine.stats().swap_s
                self.engine.load(policy, record.version, weights)
                self._epochs[policy] = record.epoch
                self._log_taken(policy, record.version, self.engine.stats().swap_s - paused_s)
                reach("rollout.after_swap")
            except (StoreError, WeightsError, BadWeights, EngineError) as error:
                if record is newest:
                    self._pauses.begin(what, f"version {record.version} is not loaded: {error}")
                    self._retry_at[policy] = time.monotonic() + self._backoffs[policy].next_s()
                if isinstance(error, Unavailable):
                    return
            else:
                if record.version >= newest.version:
                    self._pauses.end(what)
                    self._retry_at[policy] = 0.0
                    self._backoffs[policy].reset()
                return

    def _log_taken(self, policy: str, version: int, pause_s: float) -> None:
        held = self._weights[policy]
        seconds = {f"{activity}_s": spent for activity, spent in {**held.last_load_seconds, "pause": pause_s}.items()}
        self.taken[policy] = TakenWeights(policy, version, held.fetched_bytes, **seconds)
        rounded = {name: round(spent, 4) for name, spent in seconds.items()}
        # `head` is the newest published version; the other keys are seconds of fetching, verifying, applying and
        # pausing.
        log.info("weights.loaded", policy=policy, version=version, head=self._published[policy].head, **rounded)

    # ------------------------------------------------------------------------------------------------- exact versions

    def hold(self, policy: str, version: int) -> None:
        """Make the engine hold exactly this version, fetched if not served; wait for the store and for servers.

        Raises VersionGone if the version can no longer be fetched.
        """
        while True:
            try:
                self._hold_or_fetch(policy, version)
            except EngineAway as error:
                self._pauses.begin(ENGINE, error)
                if self._over.wait(FIRST_PAUSE_S):
                    raise VersionGone(
                        f"{policy} version {version} was not loaded, because the worker is stopping"
                    ) from error
            except EngineError:
                self._pauses.end(ENGINE)
                raise
            else:
                self._pauses.end(ENGINE)
                return

    def _hold_or_fetch(self, policy: str, version: int) -> None:
        try:
            self.engine.hold(policy, version)
        except VersionGone:
            record = self._wait_for_record(policy, version)
            with self._fetching:  # all tasks of an evaluation come at once, and one fetch serves all
                try:
                    self.engine.hold(policy, version)
                except VersionGone:
                    self._hold_apart(policy, record)

    def release(self, policy: str, version: int) -> None:
        """Undo one hold."""
        if not self._over.is_set():
            self.engine.release(policy, version)

    def stop(self) -> None:
        """End all waits, so that the engine can be closed."""
        self._over.set()

    def _wait_for_record(self, policy: str, version: int) -> WeightsPublished:
        published, end = self._published[policy], time.monotonic() + EVENT_PATIENCE_S
        while version > published.head and time.monotonic() < end:
            if self._over.wait(EVENT_POLL_S):
                raise VersionGone(f"{policy} version {version} was not loaded, because the worker is stopping")
        found = published.find_version(version)
        if found is None:
            why = (
                f"the record of this version did not come in {EVENT_PATIENCE_S:g} s. The newest version that this "
                f"worker knows is {published.head}: look into the worker's log; it may wait for Kafka or for weights"
                if version > published.head
                else "this worker has no record of this version. A worker keeps the records of the newest "
                f"{RECENT_VERSIONS} versions, and the newest is {published.head}. If evaluations come too late, raise "
                "evaluate.every, or run more workers"
            )
            raise VersionGone(f"{policy} version {version} cannot be evaluated: {why}")
        return found

    def _hold_apart(self, policy: str, record: WeightsPublished) -> None:
        version = record.version
        while True:
            try:
                apart = PolicyWeights(self._objects)
                self.engine.hold(policy, version, apart.load_version(self._published[policy].list_ways(), record))
            except EngineError:  # the store has answered
                self._pauses.end(STORE)
                raise
            except Unavailable as error:
                self._pauses.begin(STORE, error)
                if self._over.wait(FIRST_PAUSE_S):
                    raise VersionGone(
                        f"{policy} version {version} was not loaded, because the worker is stopping"
                    ) from error
            except (StoreError, WeightsError, BadWeights) as error:
                self._pauses.end(STORE)
                raise VersionGone(f"{policy} version {version} can no longer be fetched: {error}") from error
            else:
                self._pauses.end(STORE)
                return
