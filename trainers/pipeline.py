"""From a batch to a version that can be committed: the step in one thread, its publication beside the next step.

The learner waits for no network: after a step the published values are copied, and it is free. Hash, delta, upload and
checkpoint are made of the copies. A version that is made while the one before is still on its way is not published,
where it need not be: it is only hashed, and the next delta spans the gap. Versions come out in order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from infra.failpoints import reach
from infra.run import Run
from infra.weights.tensors import Tensor, weights_hash
from schemas.records import ClaimCheck, WeightsPublished
from trainers.batch import TrainingSequence
from trainers.checkpoint import Checkpoint
from trainers.lane import Lane
from trainers.learner import Learner, StepMetrics
from trainers.model import pin_threads
from trainers.publisher import Publisher, upload_checkpoint

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


@dataclass(frozen=True, slots=True)
class Published:
    """What a version's transaction needs."""

    weights_hash: str
    event: WeightsPublished | None
    """None when it was left out."""
    checkpoint: ClaimCheck | None


@dataclass(frozen=True, slots=True)
class Made:
    """A version."""

    metrics: StepMetrics
    published: Published


@dataclass(frozen=True, slots=True)
class _Stepped:
    metrics: StepMetrics
    publishing: Future[Published]


class Pipeline:
    """One learner and what becomes of its versions.

    Args:
        run: Whose store takes checkpoints.
        learner: Nobody else may touch it until `close`.
        publisher: Likewise.
    """

    def __init__(self, run: Run, learner: Learner, publisher: Publisher) -> None:
        self._run, self._learner, self._publisher = run, learner, publisher
        threads = torch.get_num_threads()
        self._steps = Lane("step", lambda: pin_threads(threads))
        self._publications = Lane("publish")
        self._publishing: Future[Published] | None = None
        self._flights: deque[Future[_Stepped]] = deque()
        self.free_since = time.monotonic()
        """Since when the learner rests; while it does."""

    @property
    def is_free(self) -> bool:
        """Whether the learner rests and may be given a step."""
        return len(self._flights) < MOST_AHEAD and all(flight.done() for flight in self._flights)

    @property
    def is_empty(self) -> bool:
        """Whether all versions that were begun have come out."""
        return not self._flights

    def begin(self, order: Order) -> None:
        """Let the learner take a step."""
        self._flights.append(self._steps.submit(lambda: self._step(order)))

    def take(self) -> Made | None:
        """Return the oldest version if it is ready. Raises what its step or its publication raised."""
        if not self._flights or not self._flights[0].done():
            return None
        stepped = self._flights[0].result()
        if not stepped.publishing.done():
            return None
        self._flights.popleft()
        return Made(stepped.metrics, stepped.publishing.result())

    def close(self) -> None:
        """Wait for the step under way: torch's settings are the process's. What is on its way to the store is left."""
        self._publications.close(wait=False)
        self._steps.close(wait=True)

    def _step(self, order: Order) -> _Stepped:
        """In the thread of the learner."""
        try:
            return self._stepped(order)
        finally:
            self.free_since = time.monotonic()

    def _stepped(self, order: Order) -> _Stepped:
        begin = time.monotonic()
        metrics = self._learner.step(order.sequences, order.version)
        reach("train.stepped")
        stepped = time.monotonic()
        snapshot = self._learner.published()
        state = self._learner.state() if order.checkpoint else None
        reach("train.copied")
        metrics |= {"step_s": stepped - begin, "blocked_s": time.monotonic() - stepped}
        is_busy = self._publishing is not None and not self._publishing.done()
        if is_busy and not order.must_publish and state is None:
            left_out: Future[Published] = Future()
            left_out.set_result(Published(weights_hash(snapshot), None, None))
            return _Stepped(metrics, left_out)
        self._publishing = self._publications.submit(lambda: self._publish(order, snapshot, state))
        return _Stepped(metrics, self._publishing)

    def _publish(self, order: Order, snapshot: dict[str, Tensor], state: Checkpoint | None) -> Published:
        """In the thread of the publications."""
        event = self._publisher.publish(snapshot, order.version, epoch=order.epoch)
        return Published(event.weights_hash, event, upload_checkpoint(self._run, state) if state else None)
