"""Turns batches into versions that can be committed. The learner steps in one thread; another thread uploads.

The learner never waits for the network. After a step, a snapshot of the weights is taken, and the learner is free. The
hash, the delta, the upload and the checkpoint are made from the snapshot. A version that is ready while an older
version is uploading waits. If the next version is ready first, the waiting version is only hashed, not uploaded, and
the next delta spans the gap. Versions come out in order. The trainer publishes a version: it writes the event in a
transaction.
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
from headrace.infra.weights.tensors import Tensor, hash_weights
from headrace.schemas.records import WeightsPublished
from headrace.trainers.batches.batch import TrainingSequence
from headrace.trainers.batches.groups import PreparedGroup
from headrace.trainers.batches.window import Waiting
from headrace.trainers.learner.checkpoint import Stored, Storing
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.model import pin_threads
from headrace.trainers.learner.serial_executor import SerialExecutor
from headrace.trainers.learner.step_metrics import StepMetrics
from headrace.trainers.versions.publisher import VersionUploader, upload_checkpoint
from headrace.trainers.versions.step_note import StepNote

log = structlog.get_logger()

MOST_AHEAD = 4
"""Most versions that may be begun but not committed; at this number the learner waits."""


@dataclass(frozen=True, slots=True)
class StepRequest:
    """A step for the learner to take."""

    version: int
    epoch: int
    sequences: Sequence[TrainingSequence]
    must_publish: bool
    """Whether this version must be published: an evaluation or the end of the run waits for it."""
    checkpoint: bool
    batch: Sequence[Waiting[PreparedGroup]] = ()
    """The groups that the sequences come from."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics that are known before the step."""


@dataclass(frozen=True, slots=True)
class UploadedVersion:
    """Data of an uploaded version for its transaction."""

    weights_hash: str
    event: WeightsPublished | None
    """The weights event; None if the version was only hashed."""
    checkpoint: Stored | None


@dataclass(frozen=True, slots=True)
class MadeVersion:
    """A version that the learner has made, with its metrics."""

    request: StepRequest
    metrics: StepMetrics
    uploaded: UploadedVersion


@dataclass(frozen=True, slots=True)
class _Copied:
    """A version whose snapshot is taken, and the future of its upload."""

    request: StepRequest
    snapshot: dict[str, Tensor]
    storing: Storing | None
    future: Future[UploadedVersion]


@dataclass(frozen=True, slots=True)
class _Stepped:
    metrics: StepMetrics
    uploading: Future[UploadedVersion]


class Pipeline:
    """Runs the steps of one learner, and uploads its versions.

    Args:
        run: The run whose store takes the checkpoints.
        learner: Only the pipeline may use it until `close`.
        uploader: Only the pipeline may use it.
        note: Names the running step.
    """

    def __init__(self, run: Run, learner: Learner, uploader: VersionUploader, note: StepNote) -> None:
        self._run, self._learner, self._uploader, self._note = run, learner, uploader, note
        self.version = learner.version
        """The newest version that the learner has made; set in the step thread."""
        threads = torch.get_num_threads()
        self._steps = SerialExecutor("step", lambda: pin_threads(threads))
        self._upload_thread = SerialExecutor("upload")
        self._lock = threading.Lock()
        self._uploading = 0
        """Number of uploads that are running or queued; changed by both threads, under the lock."""
        self._waiting: _Copied | None = None
        """The version to upload next, unless a newer one is made first."""
        self._closed = threading.Event()
        self._in_flight: deque[tuple[StepRequest, Future[_Stepped]]] = deque()
        """Versions that were begun and not yet taken, oldest first."""
        self._store_check: Future[WeightsPublished | None] | None = None
        """The check of the store that is running, if any."""
        self._free_buffers: deque[Mapping[str, Tensor]] = deque(maxlen=2)
        """Snapshots that are no longer needed; the next ones are written into their memory. At most 2 are kept."""
        self.free_since = time.monotonic()
        """Monotonic time in seconds at which the learner became idle; valid while it is idle."""
        self.held_up_s = 0.0
        """Seconds that the learner was idle because MOST_AHEAD versions were not yet committed."""

    @property
    def is_free(self) -> bool:
        """Whether the learner is idle and may be given a step.

        A step in which the last process died begins only when all versions before it are taken, so that they are not
        lost with this process too.
        """
        is_idle = all(stepped.done() and stepped.exception() is None for _, stepped in self._in_flight)
        most_ahead = 1 if self.version < self._note.found.version else MOST_AHEAD
        return is_idle and len(self._in_flight) < most_ahead

    @property
    def is_empty(self) -> bool:
        """Whether all versions that were begun have been taken."""
        return not self._in_flight

    def begin(self, request: StepRequest) -> None:
        """Queue a step: in the step thread the learner makes a version, and is free when its snapshot is taken."""

        def make_version() -> _Stepped:
            try:
                begin = time.monotonic()
                with self._note.hold(request.version, (entry.use_id for entry in request.batch)):
                    metrics = self._learner.step(request.sequences, request.version)
                self.version = request.version
                reach("train.stepped")
                stepped = time.monotonic()
                snapshot = self._learner.snapshot_weights(self._take_buffer())
                storing = self._learner.checkpoint(self._run) if request.checkpoint else None
                reach("train.copied")
                metrics |= {"step_s": stepped - begin, "blocked_s": time.monotonic() - stepped}
                return self._enqueue_upload(_Copied(request, snapshot, storing, Future()), metrics)
            finally:
                self.free_since = time.monotonic()

        self.held_up_s = 0.0
        self._in_flight.append((request, self._steps.submit(make_version)))

    def list_under_way(self) -> Iterator[StepRequest]:
        """Yield the requests of all versions that were begun and not yet taken, oldest first."""
        return (request for request, _ in self._in_flight)

    @property
    def has_version(self) -> bool:
        """Whether `take_version` would return, or raise, without waiting."""
        if not self._in_flight or not self._in_flight[0][1].done():
            return False
        _, stepping = self._in_flight[0]
        return stepping.exception() is not None or stepping.result().uploading.done()

    @property
    def has_store_check(self) -> bool:
        """Whether a check of the store has ended, and `take_store_check` returns what it found."""
        return self._store_check is not None and self._store_check.done()

    def take_version(self) -> MadeVersion:
        """Return the oldest version, which must be ready. Raises what its step or its upload raised."""
        request, stepping = self._in_flight[0]
        stepped = stepping.result()
        if len(self._in_flight) == MOST_AHEAD and self._in_flight[-1][1].done():
            self.held_up_s = time.monotonic() - self.free_since
        self._in_flight.popleft()
        return MadeVersion(request, stepped.metrics, stepped.uploading.result())

    def check_store(self, *, read: bool, apply: bool) -> None:
        """Check in the upload thread whether the store still has what was published, unless a check is running."""
        if self._store_check is None:
            check = partial(self._uploader.reupload_lost_version, read=read, apply=apply, given_up=self._closed)
            self._store_check = self._upload_thread.submit(check)

    def take_store_check(self) -> WeightsPublished | None:
        """Return the event of whole weights that a store check uploaded, if any. Call it before `take_version`."""
        check, self._store_check = self._store_check, None
        try:
            return check.result() if check is not None else None
        except (Unavailable, StoreDenied) as error:  # a later check may see more
            # The store cannot be reached to look for lost objects.
            log.info("weights.not_looked_at", why=str(error))
            return None

    def close(self) -> None:
        """Wait for the running step, as torch's settings belong to the process. Uploads to the store are given up.

        The upload thread ends when its current request ends, whether the store is reachable or not. Until then it holds
        this pipeline, but no longer the learner, because the next learner needs the memory.
        """
        self._closed.set()
        self._upload_thread.close(wait=False)
        self._steps.close(wait=True)
        del self._learner
        self._in_flight.clear()  # the error of a step refers to the learner

    def _enqueue_upload(self, version: _Copied, metrics: StepMetrics) -> _Stepped:
        """Queue a version for uploading, or let it wait for the running one. The one that waited is only hashed."""
        with self._lock:
            left_out, self._waiting = self._waiting, None
            if left_out is not None:
                self._upload_thread.submit(lambda: self._hash_only(left_out))
            if self._uploading and not version.request.must_publish and version.storing is None:
                self._waiting = version
            else:
                self._start_upload(version)
        return _Stepped(metrics, version.future)

    def _take_buffer(self) -> Mapping[str, Tensor] | None:
        try:
            return self._free_buffers.popleft()
        except IndexError:
            return None

    def _start_upload(self, version: _Copied) -> None:
        """Queue an upload. The caller holds the lock."""
        self._uploading += 1
        self._upload_thread.submit(lambda: self._upload(version))

    def _hash_only(self, version: _Copied) -> None:
        """Hash a version without uploading it, in the upload thread."""
        if self._closed.is_set():
            version.future.cancel()
            return
        try:
            version.future.set_result(UploadedVersion(hash_weights(version.snapshot), None, None))
        except BaseException as error:  # noqa: BLE001 - `take_version` raises it
            version.future.set_exception(error)
        else:
            self._free_buffers.append(version.snapshot)

    def _upload(self, version: _Copied) -> None:
        """Upload a version in the upload thread, then queue the one that waits."""
        if self._closed.is_set():
            version.future.cancel()
            return
        request, base = version.request, self._uploader.base
        try:
            event = self._uploader.upload_version(
                version.snapshot, request.version, epoch=request.epoch, given_up=self._closed
            )
            if base is not None:
                self._free_buffers.append(base.tensors)
            stored = upload_checkpoint(version.storing, self._closed) if version.storing else None
            version.future.set_result(UploadedVersion(event.weights_hash, event, stored))
        except BaseException as error:  # noqa: BLE001 - `take_version` raises it
            version.future.set_exception(error)
        with self._lock:
            self._uploading -= 1
            if self._waiting is not None and not self._uploading:
                waiting, self._waiting = self._waiting, None
                self._start_upload(waiting)
