"""The trainer as a component of the run loop: curated groups in, versions out; all that follows in one transaction."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TypeAlias

import structlog

from headrace.infra.kafka.clients import Message, Outgoing
from headrace.infra.kafka.decoding import Rejected, decode_own
from headrace.infra.kafka.topic_reader import TopicReader
from headrace.infra.kafka.transactions import Ticket
from headrace.infra.process.signals import MustRestart
from headrace.infra.run.run import Run, read_revision
from headrace.infra.stopwatch import Stopwatch
from headrace.schemas.records import CuratedGroup, WeightsPublished
from headrace.trainers.batches.groups import batch_sequences
from headrace.trainers.batches.window import Eviction, Waiting, Window, next_batch
from headrace.trainers.candidates import Candidate
from headrace.trainers.intake import Intake
from headrace.trainers.learner.step_metrics import group_metrics, sampled_by
from headrace.trainers.messages import UNKNOWN, Messages
from headrace.trainers.version_metrics import VersionMetrics
from headrace.trainers.versions.pipeline import Made, Order, Pipeline
from headrace.trainers.versions.resume import Incarnation

log = structlog.get_logger()

EVICTIONS_WAIT_S = 1.0
RUN_DRY_S = 3.0
"""When the run is over a shadow waits for so long for what its curator still writes; what comes later is trained too,
where it makes a batch."""
FINISH_S = 3.0
"""A trainer that is told to stop commits what it has begun for so long; after 4 s `headrace up` tells it once more."""
IDLE_S, BUSY_S = 0.05, 0.005
"""How long a poll waits: with nothing under way, and with a version that may be ready any moment."""
Handler: TypeAlias = Callable[[Message], Iterable[Outgoing]]


class Trainer:
    """The trainer of a policy, or of a shadow; implements the run loop's `Component`.

    What it takes, by topic, stands in `handlers` at the end of this file. A turn either takes curated groups into the
    window, or reports evictions, or makes one version. What it writes, each row in one transaction:

    - for a group that cannot be trained on: DeadLetter, or Outcome of a shadow; and its place in a BatchTrained;
    - for evictions that waited: a BatchTrained that makes no version, and an Outcome each;
    - for a version: BatchTrained, an Outcome for each eviction, now and then CheckpointPointer, WeightsPublished.

    Evictions stand in a BatchTrained beside their outcomes, so that a successor rebuilds the same window.

    A shadow's tokens name versions of the main variant, so its groups grow old by the newest `head_version` that it has
    read. Nothing waits for it, and it waits for nobody: of what comes sooner than it trains, its window keeps the
    freshest. When the run is over it trains on until no batch can be cut any more.
    """

    def __init__(self, run: Run, policy_variant: str, incarnation: Incarnation, watch: Stopwatch) -> None:
        self.run = run
        self.policy_variant = policy_variant
        self.settings = run.recipe.trainer_of(policy_variant)
        learner, self._publisher = incarnation.learner, incarnation.publisher
        positions = {**incarnation.positions, (run.topics.recipe, 0): run.recipe_end}
        self._reader = TopicReader(run.connection, positions, f"train.{policy_variant}")
        self._waiting = incarnation.waiting
        """Records that the last incarnation's window held: they come before all others."""
        capacity = (self.settings.max_staleness + 1) * self.settings.groups_per_batch
        self.window = Window[Candidate](capacity, self.settings.order, run.recipe.seed)
        self._evicted: list[Eviction[Candidate]] = []
        self._evicted_since = 0.0
        self._messages = Messages(
            run,
            policy_variant,
            incarnation.epoch,
            learner.fingerprint(),
            incarnation.weights_hash,
            self._reader.positions,
        )
        self._metrics = VersionMetrics(policy_variant, incarnation.recent, watch)
        self._watch = watch
        self._ended = run.ended
        self._said_over = False
        self._announced: WeightsPublished | None = None
        """The event of the version that is being committed."""
        self._finished: threading.Event | None = None
        """Of a trainer that is told to stop: set when all is committed that was begun."""
        limits = learner.limits
        self._pipeline = Pipeline(run, learner, self._publisher)  # nobody else touches the learner from here on
        files = self._publisher.files
        self._intake = Intake(run, policy_variant, limits, files, watch, lambda: self._pipeline.version)
        self._handlers = handlers(self)

    # -------------------------------------------------------------------------------------------------- records come in

    def poll(self, watch: Stopwatch) -> list[Message]:
        """Return the next curated groups; does not wait when a batch can be cut."""
        if self._finished is not None:
            self._finished.wait(BUSY_S)
            return []
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            return waiting
        with watch.measure("consume"):
            found = self._reader.poll(256, 0)
        if not found and not self._batch_waits():
            with watch.measure("wait"):
                found = self._reader.poll(256, IDLE_S if self._pipeline.is_empty else BUSY_S)
        return found

    def handle(self, message: Message) -> Iterable[Outgoing]:
        """Take in one record."""
        return self._handlers[message.topic](message)

    def take_group(self, message: Message) -> Iterable[Outgoing]:
        """Take a curated group into the window."""
        key = UNKNOWN
        try:
            with self._watch.measure("decode"):
                curated = decode_own(
                    message.value, CuratedGroup, self.run.run_id, lambda one: f"a group of run {one.run_id}"
                )
            key = (curated.stream, curated.number, curated.use)
            found = self._intake.entry(message, curated)
        except Rejected as rejected:
            return self._messages.dead(message, rejected.why, key)
        self._evict(self.window.add(found) if isinstance(found, Waiting) else [found])
        return ()

    def follow_recipe(self, message: Message) -> Iterable[Outgoing]:
        """Learn whether the run is over."""
        revision = read_revision(message)
        if revision is not None and revision.run_id == self.run.run_id:
            self._ended = revision.ended
        return ()

    # ------------------------------------------------------------------------------------------------ versions come out

    def tick(self) -> Iterable[Outgoing]:
        """Return the records of a version that is made, or of evictions that wait; let the next version be made."""
        made = self._pipeline.take()
        if made is not None:
            return self._version(made)
        if self._finished is not None:
            return self._leave(self._finished)
        is_free = self._pipeline.is_free  # asked before its version is: a step may end in between
        if self._over():
            self._say_that_it_is_over()
            self._clear()
        else:
            self._evict(self.window.expire(self._intake.version_now))
        if self._evicted and (self._batch_waits() or time.monotonic() - self._evicted_since > EVICTIONS_WAIT_S):
            return self._report_evictions()
        if is_free and self._batch_waits():
            self._pipeline.begin(self._order(self.window.take(self._next_batch()) or []))
        return ()

    def _order(self, batch: list[Waiting[Candidate]]) -> Order:
        """Return what the learner is to make of a batch."""
        version = self._pipeline.version + 1
        is_last = version == self.settings.steps
        every = 0 if self.settings.is_shadow else self.run.recipe.evaluate.every
        wholes = [entry.payload.whole for entry in batch]
        return Order(
            version=version,
            epoch=self._messages.epoch,
            sequences=batch_sequences((entry.payload.prepared for entry in batch), self.settings),
            must_publish=is_last or (every > 0 and version % every == 0),
            checkpoint=is_last or version % self.settings.checkpoint_every == 0,
            batch=batch,
            metrics={
                **group_metrics(wholes, sampled_by(self.settings, wholes, version)),
                "wait_s": time.monotonic() - self._pipeline.free_since,
                "held_up_s": self._pipeline.held_up_s,
            },
        )

    def _version(self, made: Made) -> list[Outgoing]:
        """Return the records of a version's transaction, its event last."""
        metrics = self._metrics.of(made)
        evicted, self._evicted = self._evicted, []
        outgoing = self._messages.version(made, metrics, evicted, self._window_positions())
        self._announced = made.published.event
        if self._announced is not None:
            outgoing.append(self._publisher.message(self._announced))
        self._metrics.add(metrics)
        log.info(
            "version.trained",
            policy=self.policy_variant,
            version=made.order.version,
            reward=round(metrics["reward_mean"], 3),
            staleness=round(metrics["staleness_mean"], 2),
            step_s=round(metrics["step_s"], 3),
            wait_s=round(metrics["wait_s"], 3),
        )
        return outgoing

    def before_commit(self, ticked: Sequence[Ticket]) -> Iterable[Outgoing]:
        """Learn where a version's event stands, the tick's last record: later deltas name the place of an anchor."""
        if self._announced is not None:
            event, self._announced = self._announced, None
            self._publisher.announced(event, ticked[-1].offset)
        return ()

    def offsets(self, before: Sequence[Ticket]) -> None:
        """None: how far the trainer is, BatchTrained says."""

    @property
    def moved(self) -> bool:
        """Positions are committed with the next BatchTrained."""
        return False

    def rewind(self) -> None:
        """Raise MustRestart: the learner ran ahead of the log, and comes back from its checkpoint."""
        raise MustRestart(f"trainer of {self.policy_variant} starts again from its newest checkpoint")

    def _batch_waits(self) -> bool:
        """Tell whether there is a batch, and a learner that is free to train it."""
        return self._next_batch() > 0 and self._pipeline.is_free and not self._over()

    def _next_batch(self) -> int:
        """Return how many groups the next batch takes; 0 while it is to wait."""
        full, unit, limit_s = self.settings.groups_per_batch, self.settings.minibatches, self.settings.batch_limit_s
        return next_batch(len(self.window), full, unit, time.monotonic() - self._pipeline.free_since, limit_s)

    def _window_positions(self) -> dict[int, int]:
        """Return, by partition, the first offset that a successor must read to have this window again."""
        first = self._messages.curated_positions()
        on_their_way = (entry for order in self._pipeline.under_way() for entry in order.batch)
        for entry in chain(self.window.leftovers(), on_their_way):
            first[entry.partition] = min(first[entry.partition], entry.offset)
        return first

    # -------------------------------------------------------------------------------------------- evictions and the end

    def _evict(self, evictions: list[Eviction[Candidate]]) -> None:
        if evictions and not self._evicted:
            self._evicted_since = time.monotonic()
        self._evicted += evictions

    def _clear(self) -> None:
        self._evict([Eviction(entry, "run_end") for entry in self.window.take(len(self.window)) or ()])

    def _report_evictions(self) -> list[Outgoing]:
        evicted, self._evicted = self._evicted, []
        return self._messages.evicted(evicted)

    def _over(self) -> bool:
        if self._pipeline.version >= self.settings.steps:
            return True
        return bool(self._ended) and (not self.settings.is_shadow or self._has_run_dry())

    def _has_run_dry(self) -> bool:
        """Tell whether no batch can be cut of a shadow's window, and nothing has come for a while."""
        return not self._next_batch() and time.monotonic() - self._intake.arrived_at > RUN_DRY_S

    def _say_that_it_is_over(self) -> None:
        if not self._said_over:
            self._said_over = True
            log.info(
                "run.over",
                policy=self.policy_variant,
                version=self._pipeline.version,
                why=self._ended or "the last version is made",
                now="groups that still come are discarded; stop this process when none is in flight",
            )

    def finish(self) -> threading.Event:
        """Begin nothing more, and take nothing in; return what is set when all that was begun is committed.

        It is set after FINISH_S in any case: what is left then is dropped, and a successor makes it again.
        """
        self._finished = threading.Event()
        timer = threading.Timer(FINISH_S, self._finished.set)
        timer.daemon = True
        timer.start()
        return self._finished

    def _leave(self, finished: threading.Event) -> list[Outgoing]:
        """Return what is to be said before a trainer that was told to stop does; nothing when all was said."""
        if not self._pipeline.is_empty:
            return []
        if self._over():
            self._clear()  # nobody waits for replays at the end of a run, and no successor may come
        if self._evicted:
            return self._report_evictions()
        finished.set()
        return []

    def close(self) -> None:
        """Leave, after the step under way."""
        self._pipeline.close()
        self._reader.close()


def handlers(trainer: Trainer) -> Mapping[str, Handler]:
    """Return, by topic, what takes its records."""
    topics = trainer.run.topics
    return {
        topics.curated(trainer.policy_variant): trainer.take_group,
        topics.recipe: trainer.follow_recipe,
    }
