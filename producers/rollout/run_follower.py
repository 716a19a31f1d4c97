"""Follows the run for a worker: published weights, recipe revisions, and the end of the run."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import structlog

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.decoding import read_own
from headrace.infra.kafka.topic_offsets import fetch_end_offsets
from headrace.infra.kafka.topic_reader import PartitionId, TopicReader, read_all, read_range
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import Run, read_revision
from headrace.infra.weights.paths import RECENT_VERSIONS
from headrace.producers.rollout.published_weights import PublishedWeights
from headrace.producers.rollout.run_end import AFTER_SESSION_S, OVER_AFTER_S
from headrace.producers.rollout.weight_loader import WeightLoader
from headrace.schemas.records import WeightsPublished

log = structlog.get_logger()

OFFSETS_A_VERSION = 3
"""Most offsets per version: its record, its transaction marker, and in older runs a merged delta that ends in it."""
FOLLOWER_POLL_S = 0.1


class RunFollower(threading.Thread):
    """Reads `weights.<policy>` (the last 64 versions and all newer ones) and `recipe` in a separate thread.

    Args:
        run: The run.
        policies: The workflow's policies.
        name: Client id.
    """

    def __init__(self, run: Run, policies: tuple[str, ...], name: str) -> None:
        super().__init__(name="run-follower", daemon=True)
        self.published = {policy: PublishedWeights() for policy in policies}
        """Published weights by policy."""
        self.recipes: dict[int, Recipe] = dict(enumerate(run.revisions))
        """Every revision of the recipe."""
        self.plug_ins = run.plug_ins
        """Source hashes of the run's plug-ins; replaced by a new mapping when a revision adds some."""
        self.ended = run.ended
        """Why the run is over; empty while it goes on."""
        self.error: BaseException | None = None
        """The error that ended this thread; None if `stop` ended it."""
        self.caught_up = threading.Event()
        """Set when all records that were on the topics at the start are read."""
        self._joined, self._name = run, name
        self._topics = {run.topics.weights(policy): policy for policy in policies}
        self._loader: WeightLoader | None = None
        self._over = threading.Event()

    # ------------------------------------------------------------------------------------------ the other threads

    @property
    def recipe(self) -> Recipe:
        """The revision in force."""
        return self.recipes[max(self.recipes)]

    def find_stale(self, versions: Mapping[str, int]) -> str:
        """Describe a policy served more than `max_staleness` versions behind its newest; empty if there is none."""
        for policy, published in self.published.items():
            limit = self.recipe.trainer_of(policy).max_staleness
            if published.head - versions[policy] > limit:
                return (
                    f"the worker serves {policy} at version {versions[policy]}, more than max_staleness ({limit}) "
                    f"versions behind the newest version, {published.head}"
                )
        return ""

    def find_files_record(self, policy: str) -> WeightsPublished | None:
        """Return the newest record that names the policy's files; None before the first one."""
        recent = self.published[policy].list_newest_first()
        named = next((record for record in recent if record.files), None)
        if named is None and recent:
            topic = self._joined.topics.weights(policy)
            records = (self._read(message) for message in read_all(self._joined.connection, [topic]))
            named = next((record for record in records if record is not None and record.files), None)
        return named

    def use_loader(self, loader: WeightLoader) -> None:
        """Let this thread load newly published weights from now on."""
        self._loader = loader

    def stop(self) -> None:
        """End the thread; wait for its current action."""
        self._over.set()
        self.join(timeout=1)

    # --------------------------------------------------------------------------------------------- the own thread

    def run(self) -> None:
        """Read and load until `stop`; store a fatal error in `error`."""
        try:
            with TopicReader(self._joined.connection, self._find_positions(), self._name) as reader:
                ends = reader.ends()
                while not self._over.is_set():
                    for message in reader.poll(256, FOLLOWER_POLL_S):
                        self.fold_message(message)
                    if not self.caught_up.is_set() and all(reader.positions[at] >= end for at, end in ends.items()):
                        self.caught_up.set()
                    if self._loader is not None:
                        self._loader.load_newest()
        except BaseException as error:  # noqa: BLE001 - the worker's main thread raises it
            self.error = error

    def _find_positions(self) -> dict[PartitionId, int]:
        ends = fetch_end_offsets(self._joined.connection, [(topic, 0) for topic in self._topics])
        positions = {partition_id: self._find_begin(partition_id, end) for partition_id, end in ends.items()}
        return {**positions, (self._joined.topics.recipe, 0): self._joined.recipe_end}

    def _find_begin(self, partition_id: PartitionId, end: int) -> int:
        """Return the offset to begin at: every record except an anchor's names the offset of its anchor."""
        begin = max(0, end - OFFSETS_A_VERSION * RECENT_VERSIONS)
        for message in read_range(self._joined.connection, partition_id, begin, end):
            record = self._read(message)
            if record is not None:
                return min(begin, record.anchor_offset) if record.anchor_offset >= 0 else begin
        return begin

    def fold_message(self, message: Message) -> None:
        """Take in a record of the weights or recipe topics; log an unreadable one.

        Raises UsageError for a revision of the recipe with keys that this build does not know.
        """
        if message.topic in self._topics:
            record = self._read(message)
            if record is not None:
                self.published[self._topics[message.topic]].add_event(record)
        else:
            self._fold_revision(message)

    def _fold_revision(self, message: Message) -> None:
        revision = read_revision(message)
        if revision is None or revision.run_id != self._joined.run_id:
            return
        # Raises if a newer build wrote the revision: its tasks must go to a worker that can read it.
        recipe = Recipe.from_json(revision.recipe)
        self.recipes = {**self.recipes, revision.revision: recipe}  # other threads may be using the old mapping
        if revision.plug_ins.items() - self.plug_ins.items():
            self.plug_ins = {**self.plug_ins, **revision.plug_ins}
        if revision.ended and not self.ended:
            now = (
                f"this worker still plays tasks that arrive. It ends when no task came for {OVER_AFTER_S:.0f} s, or "
                f"for the cluster's session timeout plus {AFTER_SESSION_S:.0f} s, if that is longer"
            )
            log.info("run.ended", why=revision.ended)
            log.info("run.over", why=revision.ended, now=now)
        self.ended = revision.ended

    def _read(self, message: Message) -> WeightsPublished | None:
        return read_own(message, WeightsPublished, self._joined.run_id)
