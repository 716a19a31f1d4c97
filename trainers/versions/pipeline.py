"""From a batch to a version that can be committed: the learner's step in its thread, publishing beside the next step.

The learner waits for no network: after a step the published values are copied, and it is free. Hash, delta, upload and
checkpoint are made of the copies. A version that is made while the one before is still on its way waits for that, and
is left out when the next one is made sooner: it is only hashed then, and the next delta spans the gap. Versions come
out in order.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import structlog
import torch

from headrace.infra.errors import Unavailable
from headrace.infra.failpoints import reach
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreDenied
from headrace.infra.weights.tensors import Tensor, weights_hash
from headrace.schemas.records import WeightsPublished
from headrace.trainers.batches.batch import TrainingSequence
from headrace.trainers.batches.window import Waiting
from headrace.trainers.learner.checkpoint import Stored, Storing
from headrace.trainers.learner.lane import SerialExecutor
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.model import pin_threads
from headrace.trainers.learner.step_metrics import StepMetrics
from headrace.trainers.versions.publisher import Publisher, upload_checkpoint
from headrace.trainers.windowed_groups import WindowedGroup

log = structlog.get_logger()

MOST_AHEAD = 4
"""Versions that were begun and not committed; beyond these the learner waits."""


@dataclass(frozen=True, slots=True)
class StepRequest:
    """A step that the learner is to take."""

    version: int
    epoch: int
    sequences: Sequence[TrainingSequence]
    must_publish: bool
    """Whether somebody waits for just this version."""
    checkpoint: bool
    batch: Sequence[Waiting[WindowedGroup]] = ()
    """The groups that the sequences are of."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What is known before the step."""


@dataclass(frozen=True, slots=True)
class Published:
    """What a version's transaction needs."""

    weights_hash: str
    event: WeightsPublished | None
    """None when it was left out."""
    checkpoint: Stored | None


@dataclass(frozen=True, slots=True)
class MadeVersion:
    """A version."""

    planned: StepRequest
    metrics: StepMetrics
    published: Published


@dataclass(frozen=True, slots=True)
class _Copied:
    """A version that was copied, and the promise of its publication."""

    planned: StepRequest
    snapshot: dict[str, Tensor]
    storing: Storing | None
    future: Future[Published]


@dataclass(frozen=True, slots=True)
class _Stepped:
    metrics: StepMetrics
    publishing: Future[Published]


class Pipeline:
    """One learner and what becomes of its versions.

    Args:
        run: Whose store takes checkpoints.
        learner: Nobody else may touch it until `close`.
        publisher: Nobody else may call its `upload_version`.
    """

    def __init__(self, run: Run, learner: Learner, publisher: Publisher) -> None:
        self._run, self._learner, self._publisher = run, learner, publisher
        self.version = learner.version
        """The newest that the learner has made; set in its thread."""
        threads = torch.get_num_threads()
        self._steps = SerialExecutor("step", lambda: pin_threads(threads))
        self._publications = SerialExecutor("publish")
        self._lock = threading.Lock()
        self._publishing = 0
        """Publications that were begun; both threads count them."""
        self._waiting: _Copied | None = None
        """The version that is published next, unless a newer one comes first."""
        self._closed = threading.Event()
        self._in_flight: deque[tuple[StepRequest, Future[_Stepped]]] = deque()
        """Versions that were begun and were not taken, oldest first."""
        self._look: Future[WeightsPublished | None] | None = None
        """A look at the store that was begun."""
        self._free_buffers: deque[Mapping[str, Tensor]] = deque(maxlen=2)
        """Copies that nobody needs any more: the next ones are written over them. What a burst took is given back."""
        self.free_since = time.monotonic()
        """Since when the learner rests; while it does."""
        self.held_up_s = 0.0
        """How long the learner has rested because MOST_AHEAD versions were on their way."""

    @property
    def is_free(self) -> bool:
        """Whether the learner rests and may be given a step."""
        rests = all(stepped.done() and stepped.exception() is None for _, stepped in self._in_flight)
        return rests and len(self._in_flight) < MOST_AHEAD

    @property
    def is_empty(self) -> bool:
        """Whether all versions that were begun have come out."""
        return not self._in_flight

    def begin(self, planned: StepRequest) -> None:
        """Let the learner make a version, in its thread: `_step`."""
        self.held_up_s = 0.0
        self._in_flight.append((planned, self._steps.submit(partial(self._step, planned))))

    def under_way(self) -> Iterator[StepRequest]:
        """Yield the planned steps of all versions that were begun and have not come out, oldest first."""
        return (planned for planned, _ in self._in_flight)

    @property
    def has_version(self) -> bool:
        """Whether `take_version` returns the oldest version that was begun, or raises why there is none."""
        if not self._in_flight or not self._in_flight[0][1].done():
            return False
        _, stepping = self._in_flight[0]
        return stepping.exception() is not None or stepping.result().publishing.done()

    @property
    def has_look(self) -> bool:
        """Whether a look at the store has ended, and `take_whole` returns what it found."""
        return self._look is not None and self._look.done()

    def take_version(self) -> MadeVersion:
        """Return the oldest version, which is ready. Raises what its step or its publication raised."""
        planned, stepping = self._in_flight[0]
        stepped = stepping.result()
        if len(self._in_flight) == MOST_AHEAD and self._in_flight[-1][1].done():
            self.held_up_s = time.monotonic() - self.free_since
        self._in_flight.popleft()
        return MadeVersion(planned, stepped.metrics, stepped.publishing.result())

    def look(self, *, read: bool, apply: bool) -> None:
        """See in the thread of the publications whether what was published is there, unless that is under way."""
        if self._look is None:
            look = partial(self._publisher.reupload_lost_version, read=read, apply=apply, given_up=self._closed)
            self._look = self._publications.submit(look)

    def take_whole(self) -> WeightsPublished | None:
        """Return the event of whole weights that a look has published; before any version that comes after it."""
        looking, self._look = self._look, None
        try:
            return looking.result() if looking is not None else None
        except (Unavailable, StoreDenied) as error:  # a later look may see more
            log.info("weights.not_looked_at", why=str(error))
            return None

    def close(self) -> None:
        """Wait for the step under way: torch's settings are the process's. What is on its way to the store is given up.

        The thread of the publications ends when the request that it makes now does, if the store is away or not.
        """
        self._closed.set()
        self._publications.close(wait=False)
        self._steps.close(wait=True)

    def _step(self, planned: StepRequest) -> _Stepped:
        """Make a version and copy it, in the learner's thread; then the learner is free."""
        try:
            begin = time.monotonic()
            metrics = self._learner.step(planned.sequences, planned.version)
            self.version = planned.version
            reach("train.stepped")
            stepped = time.monotonic()
            snapshot = self._learner.snapshot_weights(self._take_buffer())
            storing = self._learner.checkpoint(self._run) if planned.checkpoint else None
            reach("train.copied")
            metrics |= {"step_s": stepped - begin, "blocked_s": time.monotonic() - stepped}
            return self._enqueue_publish(_Copied(planned, snapshot, storing, Future()), metrics)
        finally:
            self.free_since = time.monotonic()

    def _enqueue_publish(self, version: _Copied, metrics: StepMetrics) -> _Stepped:
        """Let a version be published next, or wait for the one on its way; leave out the one that waited."""
        with self._lock:
            left_out, self._waiting = self._waiting, None
            if left_out is not None:
                self._publications.submit(lambda: self._hash_only(left_out))
            if self._publishing and not version.planned.must_publish and version.storing is None:
                self._waiting = version
            else:
                self._start_publish(version)
        return _Stepped(metrics, version.future)

    def _take_buffer(self) -> Mapping[str, Tensor] | None:
        try:
            return self._free_buffers.popleft()
        except IndexError:
            return None

    def _start_publish(self, version: _Copied) -> None:
        """Begin a publication; the lock is held."""
        self._publishing += 1
        self._publications.submit(lambda: self._run_publish(version))

    def _hash_only(self, version: _Copied) -> None:
        """Only hash a version, in the thread of the publications."""
        if self._closed.is_set():
            version.future.cancel()
            return
        version.future.set_result(Published(weights_hash(version.snapshot), None, None))
        self._free_buffers.append(version.snapshot)

    def _run_publish(self, version: _Copied) -> None:
        """Publish, in the thread of the publications; then what waits."""
        if self._closed.is_set():
            version.future.cancel()
            return
        try:
            version.future.set_result(self._publish(version.planned, version.snapshot, version.storing))
        except BaseException as error:  # noqa: BLE001 - whoever takes the version raises it
            version.future.set_exception(error)
        with self._lock:
            self._publishing -= 1
            if self._waiting is not None and not self._publishing:
                waiting, self._waiting = self._waiting, None
                self._start_publish(waiting)

    def _publish(self, planned: StepRequest, snapshot: dict[str, Tensor], storing: Storing | None) -> Published:
        base = self._publisher.base
        event = self._publisher.upload_version(snapshot, planned.version, epoch=planned.epoch, given_up=self._closed)
        if base is not None:
            self._free_buffers.append(base.tensors)
        stored = upload_checkpoint(storing, self._closed) if storing else None
        return Published(event.weights_hash, event, stored)
