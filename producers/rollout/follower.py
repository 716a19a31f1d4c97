"""Follows the run while a worker plays: newest weights into the engine, recipe revisions, the word that it is over.

A wrong or missing object is never served: the last good version stays, `detail` has the reason, and every further turn
tries again, the newest version first, then older ones that are still newer than what is served.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping

import structlog

from headrace.infra.backoff import Backoff
from headrace.infra.errors import Unavailable, UsageError
from headrace.infra.failpoints import reach
from headrace.infra.kafka.clients import Message, fetch_end_offsets
from headrace.infra.kafka.decoding import read_own
from headrace.infra.kafka.topic_reader import PartitionId, TopicReader, read_all, read_range
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import Run, read_revision
from headrace.infra.store.object_store import StoreError
from headrace.infra.weights.paths import RECENT, is_version
from headrace.infra.weights.policy_weights import BadWeights, PolicyWeights
from headrace.infra.weights.tensors import WeightsError
from headrace.producers.engines.contract import Engine, EngineError, VersionGone
from headrace.producers.rollout.pauses import Pauses
from headrace.producers.rollout.published_weights import PublishedWeights
from headrace.schemas.records import ClaimCheck, TakenWeights, WeightsPublished

log = structlog.get_logger()

OFFSETS_A_VERSION = 3
"""Its record, the mark of its transaction, and maybe a merged delta that ends in it."""
POLL_S = 0.1
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
PATIENCE_S = 20.0
"""How long an evaluation's version may be unheard of; the task can be quicker than the event."""


class WeightFollower(threading.Thread):
    """Reads `weights.<policy>` from the last 64 versions on, and `recipe`, in a thread of its own.

    Args:
        run: The run.
        policies: Those of the workflow.
        name: Client id.
        pauses: Where waits are reported.
    """

    def __init__(self, run: Run, policies: tuple[str, ...], name: str, pauses: Pauses) -> None:
        super().__init__(name="weight-follower", daemon=True)
        self.head: dict[str, int] = {}
        """Newest version seen of each policy."""
        self.recipes: dict[int, Recipe] = dict(enumerate(run.revisions))
        """Every revision of the recipe."""
        self.plug_ins = run.plug_ins
        """Sources of plug-ins that the run goes by; another mapping when a revision names others."""
        self.ended = run.ended
        """Why the run is over; empty while it goes on."""
        self.taken: dict[str, TakenWeights] = {}
        """Cost of the newest version that was loaded, by policy."""
        self.error: BaseException | None = None
        """What ended this thread, if it was not `stop`."""
        self.caught_up = threading.Event()
        """Set when everything that was on the topics at the start has been read."""
        self._joined, self._policies, self._name, self._pauses = run, policies, name, pauses
        self._topics = {run.topics.weights(policy): policy for policy in policies}
        self._published = {policy: PublishedWeights() for policy in policies}
        self._epochs: dict[str, int] = {}
        """Epoch of the version that is served, by policy: no delta leads from one epoch to another."""
        self._weights = {policy: PolicyWeights(run.weights_cache) for policy in policies}
        self._engine: Engine | None = None
        self._retry_at: defaultdict[str, float] = defaultdict(float)
        self._backoffs: defaultdict[str, Backoff] = defaultdict(lambda: Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S))
        self._over, self._fetching = threading.Event(), threading.Lock()

    # ------------------------------------------------------------------------------------------ the other threads

    @property
    def recipe(self) -> Recipe:
        """The revision in force."""
        return self.recipes[max(self.recipes)]

    def find_stale(self, versions: Mapping[str, int]) -> str:
        """Return which policy is served more than `max_staleness` behind its head; empty when none is."""
        for policy in self._policies:
            limit = self.recipe.trainer_of(policy).max_staleness
            if self.head[policy] - versions[policy] > limit:
                return f"{policy} is served at version {versions[policy]}, its head is {self.head[policy]}"
        return ""

    def files_of(self, policy: str) -> WeightsPublished | None:
        """Return the newest record that names the policy's files; None while there is none."""
        recent = self._published[policy].list_newest_first()
        named = next((record for record in recent if record.files), None)
        if named is None and recent:
            topic = self._joined.topics.weights(policy)
            records = (self._read(message) for message in read_all(self._joined.connection, [topic]))
            named = next((record for record in records if record is not None and record.files), None)
        return named

    def serve(self, engine: Engine) -> None:
        """Load from now on what is published into this engine."""
        self._engine = engine

    def hold(self, policy: str, version: int) -> None:
        """Make the engine hold exactly this version, fetched if it is not served; waits while the store is unreachable.

        Raises VersionGone when it cannot be had.
        """
        assert self._engine is not None  # noqa: S101 - evaluations begin after `serve`
        try:
            self._engine.hold(policy, version)
        except VersionGone:
            record = self._wait_for_record(policy, version)
            with self._fetching:  # the groups of an evaluation come all at once, and one fetch serves them
                try:
                    self._engine.hold(policy, version)
                except VersionGone:
                    self._hold_apart(self._engine, policy, record)

    def _hold_apart(self, engine: Engine, policy: str, record: WeightsPublished) -> None:
        version = record.version
        while True:
            try:
                apart = PolicyWeights(self._joined.weights_cache)
                engine.hold(policy, version, apart.bring(self._published[policy].list_ways(), record))
            except Unavailable as error:
                self._pauses.begin("object store", error)
                if self._over.wait(FIRST_PAUSE_S):
                    raise VersionGone(f"{policy} version {version}: the worker stops") from error
            except (StoreError, WeightsError, BadWeights) as error:
                self._pauses.end("object store")
                raise VersionGone(f"{policy} version {version} cannot be had any more: {error}") from error
            else:
                self._pauses.end("object store")
                return

    def release(self, policy: str, version: int) -> None:
        """Undo one hold."""
        if self._engine is not None and not self._over.is_set():
            self._engine.release(policy, version)

    def stop(self) -> None:
        """End the thread; waiting for what it does now."""
        self._over.set()
        self.join(timeout=1)

    def _wait_for_record(self, policy: str, version: int) -> WeightsPublished:
        end = time.monotonic() + PATIENCE_S
        while version > self.head.get(policy, -1) and time.monotonic() < end:
            if self._over.wait(POLL_S):
                break
        found = self._published[policy].find_version(version)
        if found is None:
            raise VersionGone(f"{policy} version {version} is not among the last {RECENT} that were published")
        return found

    # --------------------------------------------------------------------------------------------- the own thread

    def run(self) -> None:
        """Read and load until `stop`; what cannot be lived with is left in `error`."""
        try:
            with TopicReader(self._joined.connection, self._find_positions(), self._name) as reader:
                ends = reader.ends()
                while not self._over.is_set():
                    for message in reader.poll(256, POLL_S):
                        self._take(message)
                    if not self.caught_up.is_set() and all(reader.positions[at] >= end for at, end in ends.items()):
                        self.caught_up.set()
                    if self._engine is not None:
                        self._load_newest(self._engine)
        except BaseException as error:  # noqa: BLE001 - the worker's main thread raises it
            self.error = error

    def _find_positions(self) -> dict[PartitionId, int]:
        ends = fetch_end_offsets(self._joined.connection, [(topic, 0) for topic in self._topics])
        positions = {place: self._find_begin(place, end) for place, end in ends.items()}
        return {**positions, (self._joined.topics.recipe, 0): self._joined.recipe_end}

    def _find_begin(self, place: PartitionId, end: int) -> int:
        """Return where to begin: every record but an anchor's names the place of its anchor."""
        begin = max(0, end - OFFSETS_A_VERSION * RECENT)
        for message in read_range(self._joined.connection, place, begin, end):
            record = self._read(message)
            if record is not None:
                return min(begin, record.anchor_offset) if record.anchor_offset >= 0 else begin
        return begin

    def _take(self, message: Message) -> None:
        if message.topic in self._topics:
            record = self._read(message)
            if record is not None:
                self._take_event(self._topics[message.topic], record)
            return
        revision = read_revision(message)
        if revision is None or revision.run_id != self._joined.run_id:
            return
        try:
            # A new dict, since other threads may be looking at the old one.
            self.recipes = {**self.recipes, revision.revision: Recipe.from_json(revision.recipe)}
        except UsageError as error:
            log.warning("message.unreadable", topic=message.topic, offset=message.offset, detail=str(error))
            return
        if revision.plug_ins.items() - self.plug_ins.items():
            self.plug_ins = {**self.plug_ins, **revision.plug_ins}
        if revision.ended and not self.ended:
            log.info("run.ended", why=revision.ended)
        self.ended = revision.ended

    def _take_event(self, policy: str, record: WeightsPublished) -> None:
        if is_version(record):
            self.head[policy] = max(self.head.get(policy, -1), record.version)
        self._published[policy].take(record)

    def _read(self, message: Message) -> WeightsPublished | None:
        return read_own(message, WeightsPublished, self._joined.run_id)

    def _load_newest(self, engine: Engine) -> None:
        for policy in self._policies:
            served = engine.versions().get(policy, -1)
            waiting = self._published[policy].find_newer(served, self._epochs.get(policy, 0))
            if waiting and time.monotonic() >= self._retry_at[policy]:
                self._load_first_good(engine, policy, waiting)

    def _load_first_good(self, engine: Engine, policy: str, records: list[WeightsPublished]) -> None:
        """Load the newest that can be had; when that is not the newest of all, report why and try again later."""
        what, newest = f"weights of {policy}", records[0]
        refused: set[ClaimCheck] = set()
        for record in records:
            try:
                weights = self._weights[policy].bring(self._published[policy].list_ways(), record, refused)
                reach("rollout.before_swap")
                paused_s = engine.stats().swap_s
                engine.load(policy, record.version, weights)
                self._epochs[policy] = record.epoch
                self._log_taken(policy, record.version, engine.stats().swap_s - paused_s)
                reach("rollout.after_swap")
            except (StoreError, WeightsError, BadWeights, EngineError) as error:
                if record is newest:
                    self._pauses.begin(what, f"version {record.version}: {error}")
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
        seconds = {f"{activity}_s": spent for activity, spent in {**held.seconds, "pause": pause_s}.items()}
        self.taken[policy] = TakenWeights(policy, version, held.fetched_bytes, **seconds)
        rounded = {name: round(spent, 4) for name, spent in seconds.items()}
        log.info("weights.loaded", policy=policy, version=version, head=self.head[policy], **rounded)
