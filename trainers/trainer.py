"""The trainer as a component of the run loop: it turns curated groups into versions, in transactions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import structlog

from headrace.infra.kafka.clients import Message, Outgoing
from headrace.infra.kafka.decoding import MessageRefused, Refusal, decode_own
from headrace.infra.kafka.topic_reader import TopicReader
from headrace.infra.kafka.transactions import Ticket
from headrace.infra.process.signals import MustRestart
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import Run, read_revision
from headrace.infra.stopwatch import Stopwatch
from headrace.schemas.ids import UseId
from headrace.schemas.records import CuratedGroup, RecipeRevision, WeightsPublished
from headrace.trainers.batches.groups import PreparedGroup, build_batch_sequences
from headrace.trainers.batches.window import WindowEviction
from headrace.trainers.intake import Intake
from headrace.trainers.learner.step_metrics import group_metrics, sampling_version
from headrace.trainers.messages import UNKNOWN_USE, TrainerMessages
from headrace.trainers.scheduler import (
    BeginStep,
    CheckStore,
    CommitVersion,
    EndStoreCheck,
    Leave,
    ReportEvictions,
    Scheduler,
    TrainingProgress,
)
from headrace.trainers.version_metrics import VersionMetrics
from headrace.trainers.versions.pipeline import MadeVersion, Pipeline, StepRequest
from headrace.trainers.versions.resume import ResumedTrainer
from headrace.trainers.versions.step_note import StepNote

log = structlog.get_logger()

FINISH_S = 3.0
"""Seconds for a stopped trainer to commit its begun work; after 4 s `headrace up` sends another signal."""
IDLE_S, BUSY_S = 0.05, 0.005
"""Seconds that a poll waits: while idle, and while a version may be ready at any moment."""
Handler: TypeAlias = Callable[[Message], Iterable[Outgoing]]


class Trainer:
    """The trainer of a policy, or of a shadow; implements the run loop's `Component`.

    `build_handlers`, at the end of this file, lists its input by topic. Its `Scheduler` decides on the other actions of
    a turn. It writes, each row in one transaction:

    - for a group that cannot be trained on: DeadLetter (a shadow: Outcome), and an eviction in a BatchTrained;
    - for waiting evictions: a BatchTrained without a version, and an Outcome for each;
    - for a version whose objects the store has lost, when no group comes: WeightsPublished of the whole weights;
    - for a version: BatchTrained, an Outcome for each eviction, sometimes CheckpointPointer, WeightsPublished.

    Evictions are in a BatchTrained besides their outcomes, so that a successor rebuilds the same window.

    A shadow's tokens name versions of the main variant, so the staleness of its groups is counted from the newest
    `head_version` that it has read. Nothing waits for a shadow: if groups come faster than it trains, its window keeps
    the freshest. After the end of the run it trains until no batch can be cut.
    """

    def __init__(
        self, run: Run, policy_variant: str, resumed: ResumedTrainer, watch: Stopwatch, note: StepNote
    ) -> None:
        self.run = run
        self.policy_variant = policy_variant
        self.settings = run.recipe.trainer_of(policy_variant)
        learner, uploader = resumed.learner, resumed.uploader
        self._announcer = resumed.announcer
        positions = {**resumed.positions, (run.topics.recipe, 0): run.recipe_end}
        self._reader = TopicReader(run.connection, positions, f"train.{policy_variant}")
        self._waiting = resumed.waiting
        """Records in the last trainer's window; they come before all others."""
        every = run.recipe.evaluate.every
        self.scheduler = Scheduler[PreparedGroup](self.settings, every, run.recipe.seed, run.ended)
        self._messages = TrainerMessages(
            run,
            policy_variant,
            resumed.epoch,
            learner.fingerprint(),
            resumed.weights_hash,
            self._reader.positions,
            resumed.offsets,
            resumed.log_hash,
        )
        self._metrics = VersionMetrics(policy_variant, resumed.recent, watch)
        self._watch = watch
        self._end_logged = False
        self._announced: WeightsPublished | None = None
        """The weights event that is being committed."""
        self._made_version = False
        """Whether the tick's first record commits a version."""
        self._finished: threading.Event | None = None
        """Set when all begun work is committed; None unless the trainer is stopping."""
        limits = learner.limits
        self._pipeline = Pipeline(run, learner, uploader, note)  # from here on only the pipeline uses the learner
        self._intake = Intake(run, policy_variant, limits, uploader.files, watch, lambda: self._pipeline.version)
        self._handlers = build_handlers(self)

    # -------------------------------------------------------------------------------------------------- records come in

    def poll(self, watch: Stopwatch) -> list[Message]:
        """Return the next curated groups; do not wait if a batch can be cut."""
        if self._finished is not None:
            self._finished.wait(BUSY_S)
            return []
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            return waiting
        with watch.measure("consume"):
            found = self._reader.poll(256, 0)
        if not found and not self.scheduler.has_batch(self._read_progress()):
            with watch.measure("wait"):
                found = self._reader.poll(256, IDLE_S if self._pipeline.is_empty else BUSY_S)
        return found

    def handle(self, message: Message) -> Iterable[Outgoing]:
        """Take in one record."""
        return self._handlers[message.topic](message)

    def take_group(self, message: Message) -> Iterable[Outgoing]:
        """Add a curated group to the window."""
        key = UNKNOWN_USE
        try:
            with self._watch.measure("decode"):
                curated = decode_own(message.value, CuratedGroup, self.run.run_id)
            key = UseId.of(curated)
            found = self._intake.build_entry_or_eviction(message, curated)
        except MessageRefused as refused:
            return self._messages.build_dead_letter(message, refused.refusal, key)
        if self._has_group(key):  # without headers the dead letter concludes nothing; the other record does
            unnamed = replace(message, headers=[])
            return self._messages.build_dead_letter(
                unnamed,
                Refusal("unusable", f"this is a second record of {key}: the trainer uses only the first record"),
            )
        self.scheduler.add_group(found)
        return ()

    def _has_group(self, key: UseId) -> bool:
        """Return whether a use is in the window or in a running batch."""
        under_way = (entry.use_id for request in self._pipeline.list_under_way() for entry in request.batch)
        return key in self.scheduler.window or key in under_way

    def follow_recipe(self, message: Message) -> Iterable[Outgoing]:
        """Take in a recipe revision, which may end the run. Raises MustRestart for other settings of this trainer."""
        if (revision := read_revision(message)) is not None and revision.run_id == self.run.run_id:
            self.scheduler.ended = revision.ended
            refuse_other_settings(self.run, revision, self.policy_variant)
        return ()

    # ------------------------------------------------------------------------------------------------ versions come out

    def tick(self) -> Iterable[Outgoing]:
        """Return the records of the scheduler's next action, such as a finished version or waiting evictions."""
        at = self._read_progress()
        if self._finished is None and self.scheduler.is_over(at):
            self._log_the_end(at.version)
        match self.scheduler.take_next_action(at):
            case EndStoreCheck():
                return self._take_store_check()
            case CommitVersion(evictions):
                return self._build_version_records(self._pipeline.take_version(), evictions)
            case ReportEvictions(evictions):
                return self._messages.build_eviction_report(evictions)
            case BeginStep() as step:
                self._pipeline.begin(self._plan_step(step))
            case CheckStore(read, apply):
                self._pipeline.check_store(read=read, apply=apply)
            case Leave() if self._finished is not None:
                self._finished.set()
        return ()

    def _read_progress(self) -> TrainingProgress:
        pipeline, is_free = self._pipeline, self._pipeline.is_free
        return TrainingProgress(
            version=pipeline.version,
            is_free=is_free,
            is_empty=pipeline.is_empty,
            free_since=pipeline.free_since,
            has_version=pipeline.has_version,
            has_store_check=pipeline.has_store_check,
            version_now=self._intake.version_now,
            arrived_at=self._intake.arrived_at,
        )

    def _take_store_check(self) -> list[Outgoing]:
        """Return the event of whole weights, if a store check has uploaded them."""
        self._announced = self._pipeline.take_store_check()
        return [] if self._announced is None else [self._announcer.build_message(self._announced)]

    def _plan_step(self, step: BeginStep[PreparedGroup]) -> StepRequest:
        """Return the step request for a batch."""
        groups = [entry.payload.decoded for entry in step.batch]
        return StepRequest(
            version=step.version,
            epoch=self._messages.epoch,
            sequences=build_batch_sequences((entry.payload for entry in step.batch), self.settings),
            must_publish=step.must_publish,
            checkpoint=step.checkpoint,
            batch=step.batch,
            metrics={
                **group_metrics(groups, sampling_version(self.settings, groups, step.version)),
                "wait_s": time.monotonic() - self._pipeline.free_since,
                "held_up_s": self._pipeline.held_up_s,
            },
        )

    def _build_version_records(
        self, made: MadeVersion, evictions: list[WindowEviction[PreparedGroup]]
    ) -> list[Outgoing]:
        """Return the records of a version's transaction, BatchTrained first and its event last."""
        self._made_version = True
        metrics = self._metrics.of(made)
        under_way = (request.batch for request in self._pipeline.list_under_way())
        first_needed = self.scheduler.find_first_needed(self._messages.curated_positions(), under_way)
        outgoing = self._messages.build_version(made, metrics, evictions, first_needed)
        self._announced = made.uploaded.event
        if self._announced is not None:
            outgoing.append(self._announcer.build_message(self._announced))
        self._metrics.add(metrics)
        log.info(
            "version.trained",
            policy=self.policy_variant,
            version=made.request.version,
            reward=round(metrics["reward_mean"], 3),
            staleness=round(metrics["staleness_mean"], 2),
            step_s=round(metrics["step_s"], 3),
            wait_s=round(metrics["wait_s"], 3),
        )
        return outgoing

    def before_commit(self, ticked: Sequence[Ticket]) -> Iterable[Outgoing]:
        """Take in the offsets of a version's records: deltas name an anchor's offset, checkpoints one on `batches`."""
        if self._made_version:
            self._made_version = False
            self._messages.note_version_offset(ticked[0].offset)
        if self._announced is not None:
            event, self._announced = self._announced, None
            self._announcer.note_announced(event, ticked[-1].offset)
        return ()

    def offsets(self, before: Sequence[Ticket]) -> None:
        """Return None: BatchTrained records the positions."""

    @property
    def is_commit_due(self) -> bool:
        """Return False: positions are committed with the next BatchTrained."""
        return False

    def rewind(self) -> None:
        """Raise MustRestart: the learner is ahead of the log, and must restart from its checkpoint."""
        raise MustRestart(f"a transaction of trainer {self.policy_variant} was aborted: it resumes from its checkpoint")

    # ------------------------------------------------------------------------------------------------------- the end

    def _log_the_end(self, version: int) -> None:
        if not self._end_logged:
            self._end_logged = True
            log.info(
                "run.over",
                policy=self.policy_variant,
                version=version,
                why=self.scheduler.ended or "the last version is made",
                now="new groups are discarded; stop this process when `headrace status` shows no group in flight",
            )

    def stop_new_steps(self) -> threading.Event:
        """Begin no step and take in no group; return an event that is set when all begun work is committed.

        It is set after FINISH_S in any case: then uncommitted work is dropped, and a successor repeats it.
        """
        self._finished = threading.Event()
        self.scheduler.stop_new_steps()
        timer = threading.Timer(FINISH_S, self._finished.set)
        timer.daemon = True
        timer.start()
        return self._finished

    def close(self) -> None:
        """Close everything, after the running step."""
        self._pipeline.close()
        self._reader.close()


def refuse_other_settings(run: Run, revision: RecipeRevision, policy_variant: str) -> None:
    """Raise MustRestart if a later recipe has other settings for a trainer; not if it dropped what that one trains.

    With the old settings the trainer could wait for ever: the feeder issues no more groups than the new ones ask for.
    """
    if revision.revision <= run.revision:
        return
    later = Recipe.from_json(revision.recipe)
    if policy_variant not in later.policy_variants:
        return
    before, now = ((one.trainer_of(policy_variant), one.seed, one.evaluate.every) for one in (run.recipe, later))
    if before != now:
        raise MustRestart(
            f"recipe revision {revision.revision} changes seed, evaluate.every or the settings of {policy_variant}: "
            "its trainer starts again"
        )


def build_handlers(trainer: Trainer) -> Mapping[str, Handler]:
    """Return the handler of each topic's records."""
    topics = trainer.run.topics
    return {
        topics.curated(trainer.policy_variant): trainer.take_group,
        topics.recipe: trainer.follow_recipe,
    }
