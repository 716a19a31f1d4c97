"""A learner without torch, and a pipeline without threads.

Weights are the hash of all that they were trained on: the same batches in the same order give the same bits, and
nothing else does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreUnavailable
from headrace.infra.weights.tensors import Tensor, hash_weights
from headrace.schemas.records import BatchTrained, CheckpointPointer, WeightsPublished
from headrace.trainers.learner.checkpoint import Stored
from headrace.trainers.versions.pipeline import MOST_AHEAD, MadeVersion, StepRequest, UploadedVersion
from headrace.trainers.versions.publisher import VersionUploader
from protocol.broker import now

FINGERPRINT = {"machine": "model"}
ITEMS = 8


class Learner:
    """Its state is a version and a hash."""

    limits = None
    model = None

    def __init__(self, version: int = 0, state: bytes = b"first") -> None:
        self.version, self.state = version, state

    def fingerprint(self) -> dict[str, str]:
        return FINGERPRINT

    def apply_settings(self, settings: object, seed: int) -> None:
        """Nothing of it depends on the recipe."""

    def step(self, groups: Sequence[str], version: int) -> dict[str, float]:
        self.version = version
        self.state = blake2b(self.state + " ".join(groups).encode(), digest_size=2 * ITEMS).digest()
        return {}

    def snapshot_weights(self, _into: object = None) -> dict[str, Tensor]:
        data = blake2b(self.state, digest_size=2 * ITEMS).digest()
        return {"weight": Tensor("BF16", (ITEMS,), memoryview(data))}

    def checkpoint(self, run: Run) -> Callable[[object], Stored]:
        return lambda _given_up: self.store(run)

    def store(self, run: Run) -> Stored:
        return Stored(run.put(f"{self.version} {self.state.hex()}".encode(), "checkpoints"))


def load_learner_at(
    run: Run, pointer: CheckpointPointer, _files: object, _recipe: object, _variant: str = ""
) -> Learner:
    """Stand in for `remake.load_learner_at`."""
    assert pointer.checkpoint is not None
    version, state = run.get(pointer.checkpoint).decode().split()
    return Learner(int(version), bytes.fromhex(state))


@dataclass(frozen=True, slots=True)
class Remade:
    batch: BatchTrained


def remake(
    run: Run, policy: str, learner: Learner, batches: Sequence[BatchTrained], recipes: Sequence[Recipe]
) -> Iterator[Remade]:
    """Stand in for `remake.remake`."""
    for batch in batches:
        learner.step([f"{group.stream}:{group.number}:{group.use}" for group in batch.groups], batch.version)
        yield Remade(batch)


def hash_learner(learner: Learner) -> str:
    return hash_weights(learner.snapshot_weights())


@contextmanager
def open_heartbeat(*_: object) -> Iterator[Any]:
    """Stand in for `open_heartbeat`."""
    yield lambda _text: None


@dataclass(slots=True)
class Flight:
    """A version that was begun and has not come out."""

    request: StepRequest
    tensors: dict[str, Tensor]
    stored: Learner | None
    """What the checkpoint is to hold."""
    uploaded: UploadedVersion | None = None


class Pipeline:
    """A step takes no time; publishing is another action, `upload_version`, which a frozen store holds up."""

    def __init__(self, run: Run, learner: Learner, uploader: VersionUploader, _note: None) -> None:
        self._run, self.learner, self._uploader = run, learner, uploader
        self.flights: deque[Flight] = deque()
        self.asked_to_check: tuple[bool, bool] | None = None
        """Whether a check that was begun is to read, and to apply; None when none was."""
        self._found: list[WeightsPublished | None] = []
        self.free_since, self.held_up_s = now(), 0.0

    @property
    def version(self) -> int:
        return self.learner.version

    @property
    def is_free(self) -> bool:
        return len(self.flights) < MOST_AHEAD

    @property
    def is_empty(self) -> bool:
        return not self.flights

    @property
    def has_version(self) -> bool:
        return bool(self.flights) and self.flights[0].uploaded is not None

    @property
    def has_store_check(self) -> bool:
        return bool(self._found)

    def begin(self, request: StepRequest) -> None:
        self.learner.step([":".join(map(str, entry.use_id)) for entry in request.batch], request.version)
        learner = Learner(self.learner.version, self.learner.state)
        stored = learner if request.checkpoint else None
        waiting = [flight for flight in self.flights if flight.uploaded is None]
        if len(waiting) > 1:  # the first of them is on its way to the store, the last waits for that
            self._leave_out(waiting[-1])
        self.flights.append(Flight(request, learner.snapshot_weights(), stored))
        self.free_since = now()

    def _leave_out(self, flight: Flight) -> None:
        if not (flight.request.must_publish or flight.stored):
            flight.uploaded = UploadedVersion(hash_weights(flight.tensors), None, None)

    def list_under_way(self) -> Iterator[StepRequest]:
        return (flight.request for flight in self.flights)

    def take_version(self) -> MadeVersion:
        flight = self.flights.popleft()
        assert flight.uploaded is not None
        return MadeVersion(replace(flight.request, metrics={}), {}, flight.uploaded)

    def check_store(self, *, read: bool, apply: bool) -> None:
        if self.asked_to_check is None and not self._found:
            self.asked_to_check = read, apply

    def take_store_check(self) -> WeightsPublished | None:
        return self._found.pop()

    @property
    def may_publish(self) -> bool:
        return self.asked_to_check is not None or any(flight.uploaded is None for flight in self.flights)

    def upload_version(self) -> None:
        """What the thread of the publications does next."""
        if self.asked_to_check is not None:
            read, apply = self.asked_to_check
            try:
                self._found.append(self._uploader.reupload_lost_version(read=read, apply=apply))
            except StoreUnavailable:
                self._found.append(None)
            self.asked_to_check = None
            return
        flight = next(flight for flight in self.flights if flight.uploaded is None)
        version, epoch = flight.request.version, flight.request.epoch
        event = self._uploader.upload_version(flight.tensors, version, epoch=epoch)
        stored = flight.stored.store(self._run) if flight.stored else None
        flight.uploaded = UploadedVersion(event.weights_hash, event, stored)

    def close(self) -> None:
        """Nothing runs."""
