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

import torch

from headrace.infra.failpoints import reach
from headrace.infra.run.run import Run
from headrace.infra.weights.tensors import Tensor, weights_hash
from headrace.schemas.records import WeightsPublished
from headrace.trainers.batches.batch import TrainingSequence
from headrace.trainers.batches.window import Waiting
from headrace.trainers.candidates import Candidate
from headrace.trainers.learner.checkpoint import Stored, Storing
from headrace.trainers.learner.lane import Lane
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.model import pin_threads
from headrace.trainers.learner.step_metrics import StepMetrics
from headrace.trainers.versions.publisher import Publisher, upload_checkpoint

MOST_AHEAD = 4
"""Versions that were begun and not committed; beyond these the learner waits."""


@dataclass(frozen=True, slots=True)
class Order:
    """A step to take."""

    version: int
    epoch: int
    sequences: Sequence[TrainingSequence]
    must_publish: bool
    """Whether somebody waits for just this version."""
    checkpoint: bool
    batch: Sequence[Waiting[Candidate]] = ()
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
class Made:
    """A version."""

    order: Order
    metrics: StepMetrics
    published: Published


@dataclass(frozen=True, slots=True)
class _Copied:
    """A version that was copied, and the promise of its publication."""

    order: Order
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
        publisher: Nobody else may call its `publish`.
    """

    def __init__(self, run: Run, learner: Learner, publisher: Publisher) -> None:
        self._run, self._learner, self._publisher = run, learner, publisher
        self.version = learner.version
        """The newest that the learner has made; set in its thread."""
        threads = torch.get_num_threads()
        self._steps = Lane("step", lambda: pin_threads(threads))
        self._publications = Lane("publish")
        self._lock = threading.Lock()
        self._on_their_way = 0
        """Publications that were begun; both threads count them."""
        self._waiting: _Copied | None = None
        """The version that is published next, unless a newer one comes first."""
        self._closed = threading.Event()
        self._flights: deque[tuple[Order, Future[_Stepped]]] = deque()
        """Versions that were begun and were not taken, oldest first."""
        self._spares: deque[Mapping[str, Tensor]] = deque(maxlen=2)
        """Copies that nobody needs any more: the next ones are written over them. What a burst took is given back."""
        self.free_since = time.monotonic()
        """Since when the learner rests; while it does."""
        self.held_up_s = 0.0
        """How long the learner has rested because MOST_AHEAD versions were on their way."""

    @property
    def is_free(self) -> bool:
        """Whether the learner rests and may be given a step."""
        rests = all(stepped.done() and stepped.exception() is None for _, stepped in self._flights)
        return rests and len(self._flights) < MOST_AHEAD

    @property
    def is_empty(self) -> bool:
        """Whether all versions that were begun have come out."""
        return not self._flights

    def begin(self, order: Order) -> None:
        """Let the learner make a version, in its thread: `_step`."""
        self.held_up_s = 0.0
        self._flights.append((order, self._steps.submit(partial(self._step, order))))

    def under_way(self) -> Iterator[Order]:
        """Yield the orders of all versions that were begun and have not come out, oldest first."""
        return (order for order, _ in self._flights)

    def take(self) -> Made | None:
        """Return the oldest version if it is ready. Raises what its step or its publication raised."""
        if not self._flights or not self._flights[0][1].done():
            return None
        order, stepping = self._flights[0]
        stepped = stepping.result()
        if not stepped.publishing.done():
            return None
        if len(self._flights) == MOST_AHEAD and self._flights[-1][1].done():
            self.held_up_s = time.monotonic() - self.free_since
        self._flights.popleft()
        return Made(order, stepped.metrics, stepped.publishing.result())

    def close(self) -> None:
        """Wait for the step under way: torch's settings are the process's. What is on its way to the store is given up.

        The thread of the publications ends when the request that it makes now does, if the store is away or not.
        """
        self._closed.set()
        self._publications.close(wait=False)
        self._steps.close(wait=True)

    def _step(self, order: Order) -> _Stepped:
        """Make a version and copy it, in the learner's thread; then the learner is free."""
        try:
            begin = time.monotonic()
            metrics = self._learner.step(order.sequences, order.version)
            self.version = order.version
            reach("train.stepped")
            stepped = time.monotonic()
            snapshot = self._learner.published(self._spare())
            storing = self._learner.checkpoint(self._run) if order.checkpoint else None
            reach("train.copied")
            metrics |= {"step_s": stepped - begin, "blocked_s": time.monotonic() - stepped}
            return self._depart(_Copied(order, snapshot, storing, Future()), metrics)
        finally:
            self.free_since = time.monotonic()

    def _depart(self, version: _Copied, metrics: StepMetrics) -> _Stepped:
        """Let a version be published next, or wait for the one on its way; leave out the one that waited."""
        with self._lock:
            left_out, self._waiting = self._waiting, None
            if left_out is not None:
                self._publications.submit(lambda: self._leave_out(left_out))
            if self._on_their_way and not version.order.must_publish and version.storing is None:
                self._waiting = version
            else:
                self._set_out(version)
        return _Stepped(metrics, version.future)

    def _spare(self) -> Mapping[str, Tensor] | None:
        try:
            return self._spares.popleft()
        except IndexError:
            return None

    def _set_out(self, version: _Copied) -> None:
        """Begin a publication; the lock is held."""
        self._on_their_way += 1
        self._publications.submit(lambda: self._arrive(version))

    def _leave_out(self, version: _Copied) -> None:
        """Only hash a version, in the thread of the publications."""
        if self._closed.is_set():
            version.future.cancel()
            return
        version.future.set_result(Published(weights_hash(version.snapshot), None, None))
        self._spares.append(version.snapshot)

    def _arrive(self, version: _Copied) -> None:
        """Publish, in the thread of the publications; then what waits."""
        if self._closed.is_set():
            version.future.cancel()
            return
        try:
            version.future.set_result(self._publish(version.order, version.snapshot, version.storing))
        except BaseException as error:  # noqa: BLE001 - whoever takes the version raises it
            version.future.set_exception(error)
        with self._lock:
            self._on_their_way -= 1
            if self._waiting is not None and not self._on_their_way:
                waiting, self._waiting = self._waiting, None
                self._set_out(waiting)

    def _publish(self, order: Order, snapshot: dict[str, Tensor], storing: Storing | None) -> Published:
        base = self._publisher.base
        event = self._publisher.publish(snapshot, order.version, epoch=order.epoch, given_up=self._closed)
        if base is not None:
            self._spares.append(base.tensors)
        stored = upload_checkpoint(storing, self._closed) if storing else None
        return Published(event.weights_hash, event, stored)
