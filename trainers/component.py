"""The trainer as a component of the run loop: window, batch, version; all that follows in one transaction."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain

import structlog
from blake3 import blake3

from headrace.infra.kafka.clients import Message, Outgoing
from headrace.infra.kafka.dead_letters import dead_letter, lost_to_shadow
from headrace.infra.kafka.topic_reader import TopicReader
from headrace.infra.kafka.transactions import Ticket
from headrace.infra.process.signals import MustRestart
from headrace.infra.run.run import Run, read_revision
from headrace.infra.stopwatch import Stopwatch, log_share
from headrace.infra.store.object_store import ObjectCorrupt, ObjectMissing
from headrace.schemas import codec, records
from headrace.schemas.avro import SchemaError
from headrace.schemas.headers import outcome_stamp
from headrace.schemas.records import (
    BatchTrained,
    CuratedGroup,
    GroupUse,
    Outcome,
    Position,
    TrajectoryGroup,
    WeightsPublished,
)
from headrace.schemas.topics import policy_of, variant_of
from headrace.trainers.advantages import RewardError
from headrace.trainers.batches.batch import BatchError
from headrace.trainers.batches.estimator import AdvantageError
from headrace.trainers.batches.groups import PreparedGroup, WholeGroup, batch_sequences
from headrace.trainers.batches.payloads import LoggedFirstUses, Payloads
from headrace.trainers.batches.token_texts import TOKENIZER_FILE
from headrace.trainers.batches.trained_groups import whole
from headrace.trainers.batches.window import Eviction, Waiting, Window, next_batch
from headrace.trainers.candidates import Candidate, candidate, candidate_of
from headrace.trainers.health import ENTROPY_FIRST, LOOK_BACK, findings
from headrace.trainers.learner.step_metrics import group_metrics, sampled_by
from headrace.trainers.versions.pipeline import Made, Order, Pipeline
from headrace.trainers.versions.publisher import WindowMark, pointer
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
GroupKey = tuple[str, int, int]
"""(stream, number, use)."""
UNKNOWN: GroupKey = ("", -1, 0)
"""Of a record that cannot be read."""


class Trainer:
    """The trainer of a policy, or of a shadow; implements the run loop's `Component`.

    A turn either takes curated groups into the window, or reports evictions, or makes one version. Evictions are
    outcomes and stand in a BatchTrained in the same transaction, so that a successor rebuilds the same window.

    A shadow's tokens name versions of the main variant, so its groups grow old by the newest `head_version` that it has
    read. Nothing waits for it, and it waits for nobody: of what comes sooner than it trains, its window keeps the
    freshest. When the run is over it trains on until no batch can be cut any more.
    """

    def __init__(self, run: Run, line: str, incarnation: Incarnation, watch: Stopwatch) -> None:
        self.run = run
        self.line = line
        self.settings = run.recipe.trainer_of(line)
        self.learner = incarnation.learner
        self._publisher = incarnation.publisher
        self._announced: WeightsPublished | None = None
        """The event of the version that is being committed."""
        self._epoch = incarnation.epoch
        self._weights_hash = incarnation.weights_hash
        self._watch = watch
        self._curated = run.topics.curated(line)
        positions = {**incarnation.positions, (run.topics.recipe, 0): run.recipe_end}
        self._reader = TopicReader(run.connection, positions, f"train.{line}")
        self._waiting = incarnation.waiting
        """Records that the last incarnation's window held: they come before all others."""
        capacity = (self.settings.max_staleness + 1) * self.settings.groups_per_batch
        self.window = Window(capacity, self.settings.order, run.recipe.seed)
        self._payloads = Payloads(LoggedFirstUses(run, line))
        self._evicted: list[Eviction] = []
        self._evicted_since = 0.0
        self._arrivals = 0
        self._arrived_at = time.monotonic()
        self._head = -1
        """Of a shadow: the newest version that a worker knew who played a group that was read."""
        self._ended = run.ended
        self._said_over = False
        self._pipeline = Pipeline(run, incarnation.learner, incarnation.publisher)
        self._recent = deque(incarnation.recent, maxlen=LOOK_BACK)
        """Metrics of the newest versions."""
        self._finished: threading.Event | None = None
        """Of a trainer that is told to stop: set when all is committed that was begun."""

    # ------------------------------------------------------------------------------------------------------------- in

    def finish(self) -> threading.Event:
        """Begin nothing more, and take nothing in; return what is set when all that was begun is committed.

        It is set after FINISH_S in any case: what is left then is dropped, and a successor makes it again.
        """
        self._finished = threading.Event()
        timer = threading.Timer(FINISH_S, self._finished.set)
        timer.daemon = True
        timer.start()
        return self._finished

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
        """Take a group into the window, or follow the recipe."""
        if message.topic == self.run.topics.recipe:
            revision = read_revision(message)
            self._ended = revision.ended if revision and revision.run_id == self.run.run_id else self._ended
            return ()
        try:
            with self._watch.measure("decode"):
                curated = codec.decode(message.value, CuratedGroup)
        except SchemaError as error:
            return self._bury(message, ("undecodable", str(error)))
        if curated.run_id != self.run.run_id:
            return self._bury(message, ("other_run", f"a group of run {curated.run_id}"))
        return self._take_in(message, curated)

    def _take_in(self, message: Message, curated: CuratedGroup) -> list[Outgoing]:
        """Put a group into the window, decoded, so that one that cannot be trained on is known before its batch.

        A replay gets the group of its first use; one whose first use has left the log is evicted as `missing`.
        """
        self._arrivals += 1
        self._arrived_at = time.monotonic()
        entry = Waiting(
            key=(curated.stream, curated.number, curated.use),
            min_version=curated.min_version,
            deadline_version=curated.deadline_version,
            arrival=self._arrivals,
            partition=message.partition,
            offset=message.offset,
        )
        try:
            with self._watch.measure("consume"):
                found = self._payloads.whole(message, curated)
            if found is None:
                nothing = Candidate(WholeGroup(curated, TrajectoryGroup()), PreparedGroup((), ()), -1)
                self._evict([Eviction(replace(entry, payload=nothing), "missing")])
                return []
            with self._watch.measure("decode"):
                candidate = self._candidate(found)
        except (SchemaError, ObjectMissing, ObjectCorrupt, BatchError, RewardError, AdvantageError) as error:
            return self._bury(message, ("unusable", str(error)), entry.key)
        self._evict(self.window.add(replace(entry, payload=candidate)))
        return []

    @cached_property
    def _tokenizer_hash(self) -> str:
        """BLAKE3 of the policy's tokenizer; empty where none was published."""
        found = (file.claim for file in self._publisher.files if file.name == TOKENIZER_FILE)
        claim = next(found, None)
        return "" if claim is None else blake3(self.run.get(claim)).hexdigest()

    def _candidate(self, curated: CuratedGroup) -> Candidate:
        """Return the decoded group. Raises what makes it unusable."""
        group = whole(self.run, curated)
        known = math.inf if self.settings.is_shadow else self.learner.version
        found = candidate(group, self.learner, self.settings, lambda: self._tokenizer_hash, known)
        if self.settings.is_shadow:
            self._head = max(self._head, found.newest, group.group.head_version)
        return found

    @property
    def _version_now(self) -> int:
        """The version by which groups are old."""
        return self._head if self.settings.is_shadow else self.learner.version

    def _bury(self, message: Message, why: tuple[str, str], key: GroupKey = UNKNOWN) -> list[Outgoing]:
        """Return a record's letter and, beside how far we are, its place as dead.

        By these no successor writes the letter again, or takes the record in once it can read it: what is sent back
        stands at another place. A shadow writes an outcome instead of a letter.
        """
        if self.settings.is_shadow:
            outcome = lost_to_shadow(self.run.run_id, self.line, message, why)
            said = [] if outcome is None else [self._outcome_message(outcome, message.partition)]
            key = UNKNOWN if outcome is None else (outcome.stream, outcome.number, outcome.use)
        else:
            said = [dead_letter(self.run.topics, self.run.run_id, f"train.{self.line}", message, why)]
        use = GroupUse(*key, message.partition, message.offset)
        dead = replace(self._record(), evictions=(records.Eviction(use, "dead"),))
        return [*said, self._batch_message(dead)]

    def tick(self) -> Iterable[Outgoing]:
        """Return the records of a version that is made, or of evictions that wait; let the next version be made."""
        made = self._pipeline.take()
        if made is not None:
            return self._version(made)
        if self._finished is not None:
            return self._leave()
        is_free = self._pipeline.is_free  # asked before its version is: a step may end in between
        if self._over():
            self._say_that_it_is_over()
            self._clear()
        else:
            self._evict(self.window.expire(self._version_now))
        if self._evicted and (self._batch_waits() or time.monotonic() - self._evicted_since > EVICTIONS_WAIT_S):
            return self._report_evictions()
        if is_free and self._batch_waits():
            self._begin_version(self.window.take(self._next_batch()) or [])
        return ()

    def _leave(self) -> list[Outgoing]:
        """Return what is to be said before a trainer that was told to stop does; nothing when all was said."""
        assert self._finished is not None  # noqa: S101 - the caller looked
        if not self._pipeline.is_empty:
            return []
        if self._over():
            self._clear()  # nobody waits for replays at the end of a run, and no successor may come
        if self._evicted:
            return self._report_evictions()
        self._finished.set()
        return []

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
        raise MustRestart(f"trainer of {self.line} starts again from its newest checkpoint")

    def close(self) -> None:
        """Leave, after the step under way."""
        self._pipeline.close()
        self._reader.close()

    def _over(self) -> bool:
        if self.learner.version >= self.settings.steps:
            return True
        return bool(self._ended) and (not self.settings.is_shadow or self._has_run_dry())

    def _has_run_dry(self) -> bool:
        """Tell whether no batch can be cut of a shadow's window, and nothing has come for a while."""
        return not self._next_batch() and time.monotonic() - self._arrived_at > RUN_DRY_S

    def _say_that_it_is_over(self) -> None:
        if not self._said_over:
            self._said_over = True
            log.info(
                "run.over",
                policy=self.line,
                version=self.learner.version,
                why=self._ended or "the last version is made",
                now="groups that still come are discarded; stop this process when none is in flight",
            )

    def _batch_waits(self) -> bool:
        """Tell whether there is a batch, and a learner that is free to train it."""
        return self._next_batch() > 0 and self._pipeline.is_free and not self._over()

    def _next_batch(self) -> int:
        """Return how many groups the next batch takes; 0 while it is to wait."""
        full, unit, limit_s = self.settings.groups_per_batch, self.settings.minibatches, self.settings.batch_limit_s
        return next_batch(len(self.window), full, unit, time.monotonic() - self._pipeline.free_since, limit_s)

    # ------------------------------------------------------------------------------------------------------- evictions

    def _evict(self, evictions: list[Eviction]) -> None:
        if evictions and not self._evicted:
            self._evicted_since = time.monotonic()
        self._evicted += evictions

    def _clear(self) -> None:
        self._evict([Eviction(entry, "run_end") for entry in self.window.take(len(self.window)) or ()])

    def _report_evictions(self) -> list[Outgoing]:
        evicted, self._evicted = self._evicted, []
        record = replace(self._record(), evictions=tuple(_eviction(e) for e in evicted))
        return [self._batch_message(record), *(self._outcome(e) for e in evicted)]

    def _outcome(self, eviction: Eviction) -> Outgoing:
        held = candidate_of(eviction.entry).whole
        curated, group = held.curated, held.group
        outcome = Outcome(
            run_id=self.run.run_id,
            stream=curated.stream,
            number=curated.number,
            use=curated.use,
            policy=policy_of(self.line),
            verdict=eviction.verdict,
            reason=eviction.verdict,
            revision=curated.revision,
            task_id=group.task_id,
            tier=group.tier,
            rewards=tuple(t.reward for t in group.trajectories),
            n_asked=group.n_asked,
            failures=len(group.failures),
            min_version=curated.min_version,
            head_version=group.head_version,
        )
        return self._outcome_message(outcome, eviction.entry.partition)

    def _outcome_message(self, outcome: Outcome, partition: int) -> Outgoing:
        outcome = replace(outcome, component="train")
        topic, stamp = self.run.topics.outcomes(self.line), outcome_stamp(outcome)
        return Outgoing(topic, codec.encode(outcome), stamp.key, stamp.to_headers(), partition)

    # --------------------------------------------------------------------------------------------------------- version

    def _begin_version(self, batch: list[Waiting]) -> None:
        """Let the learner make a version of a batch."""
        version = self.learner.version + 1
        candidates = [candidate_of(entry) for entry in batch]
        is_last = version == self.settings.steps
        every = 0 if self.settings.is_shadow else self.run.recipe.evaluate.every
        wholes = [c.whole for c in candidates]
        metrics = group_metrics(wholes, sampled_by(self.settings, wholes, version))
        order = Order(
            version=version,
            epoch=self._epoch,
            sequences=batch_sequences((c.prepared for c in candidates), self.settings),
            must_publish=is_last or (every > 0 and version % every == 0),
            checkpoint=is_last or version % self.settings.checkpoint_every == 0,
            batch=batch,
            metrics={
                **metrics,
                "wait_s": time.monotonic() - self._pipeline.free_since,
                "held_up_s": self._pipeline.held_up_s,
            },
        )
        self._pipeline.begin(order)

    def _version(self, made: Made) -> list[Outgoing]:
        """Return the records of a version's transaction, its event last."""
        order, version, published = made.order, made.order.version, made.published
        self._watch.seconds["train"] += made.metrics["step_s"] + made.metrics["blocked_s"]
        metrics = {**made.metrics, **order.metrics, "log_share": log_share(self._watch.seconds)}
        metrics |= {f"seconds_{activity}": spent for activity, spent in self._watch.seconds.items()}
        metrics |= self._first_entropy(metrics)
        record = replace(
            self._record(),
            version=version,
            revision=self.run.revision,
            groups=tuple(_use(entry) for entry in order.batch),
            evictions=tuple(_eviction(e) for e in self._evicted),
            base_hash=self._weights_hash,
            weights_hash=published.weights_hash,
            fingerprint=self.learner.fingerprint(),
            metrics={name: float(value) for name, value in metrics.items()},
        )
        outgoing = [self._batch_message(record), *(self._outcome(e) for e in self._evicted)]
        if published.checkpoint is not None:
            mark = WindowMark(version, self._epoch, published.weights_hash, self._window_positions())
            outgoing.append(pointer(self.run, self.line, self.learner, mark, published.checkpoint))
        if published.event is not None:
            self._announced = published.event
            outgoing.append(self._publisher.message(published.event))
        self._weights_hash = published.weights_hash
        self._evicted = []
        self._say_what_is_not_well(record.metrics)
        log.info(
            "version.trained",
            policy=self.line,
            version=version,
            reward=round(metrics["reward_mean"], 3),
            staleness=round(metrics["staleness_mean"], 2),
            step_s=round(metrics["step_s"], 3),
            wait_s=round(metrics["wait_s"], 3),
        )
        return outgoing

    def _first_entropy(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return that of the first version that had one: a slow collapse shows beside no newer one."""
        told = (one.get(ENTROPY_FIRST, one.get("entropy")) for one in (*self._recent, metrics))
        first = next((entropy for entropy in told if entropy is not None), None)
        return {} if first is None else {ENTROPY_FIRST: first}

    def _say_what_is_not_well(self, metrics: Mapping[str, float]) -> None:
        before = {finding.name for finding in findings(self._recent)}
        self._recent.append(metrics)
        for finding in findings(self._recent):
            if finding.name not in before:
                log.warning("health.found", policy=self.line, what=finding.name, detail=finding.sentence)

    def _record(self) -> BatchTrained:
        return BatchTrained(
            run_id=self.run.run_id,
            policy=policy_of(self.line),
            variant=variant_of(self.line),
            epoch=self._epoch,
            positions=tuple(
                Position(partition, offset)
                for (topic, partition), offset in self._reader.positions.items()
                if topic == self._curated
            ),
            created_ms=time.time_ns() // 1_000_000,
        )

    def _batch_message(self, record: BatchTrained) -> Outgoing:
        key = f"{record.version}".encode()
        return Outgoing(self.run.topics.batches(self.line), codec.encode(record), key, partition=0)

    def _window_positions(self) -> tuple[Position, ...]:
        """Return, by partition, the first offset that a successor must read to have this window again."""
        first = {p: o for (topic, p), o in self._reader.positions.items() if topic == self._curated}
        on_their_way = (entry for order in self._pipeline.under_way() for entry in order.batch)
        for entry in chain(self.window.leftovers(), on_their_way):
            first[entry.partition] = min(first[entry.partition], entry.offset)
        return tuple(Position(partition, offset) for partition, offset in first.items())


def _use(entry: Waiting) -> GroupUse:
    stream, number, use = entry.key
    return GroupUse(stream, number, use, entry.partition, entry.offset)


def _eviction(eviction: Eviction) -> records.Eviction:
    return records.Eviction(_use(eviction.entry), eviction.verdict)
