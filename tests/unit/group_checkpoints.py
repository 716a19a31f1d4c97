"""Checkpoints in parts as two processes store and read them, objects being files; `group_steps` calls it in the leader.

What it finds goes to `test_backends` as JSON.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from patience import PATIENCE_S

from headrace.infra.run.run import Run
from headrace.infra.store.object_store import Content, ObjectCorrupt, ObjectMissing, StoreUnavailable
from headrace.infra.weights.tensors import hash_weights
from headrace.schemas.records import ClaimCheck, NamedObject
from headrace.trainers.batches.batch import TrainingSequence
from headrace.trainers.learner.checkpoint import Stored
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.shard_index import decode_index

Batch = Callable[[int], list[TrainingSequence]]


@dataclass(frozen=True)
class Folder:
    """As much of a run as a learner needs. A file `away-N` keeps the store from process N."""

    path: str

    def put(self, data: Content, kind: str, suffix: str = "", given_up: threading.Event | None = None) -> ClaimCheck:
        while Path(self.path, f"away-{rank()}").exists():
            Path(self.path, f"waits-{rank()}").touch()
            if given_up is not None and given_up.wait(0.01):
                raise StoreUnavailable("it is away")
        content = data if isinstance(data, bytes) else b"".join(cast("Iterable[bytes]", data))
        digest = hashlib.sha256(content).hexdigest()
        Path(self.path, f"{digest}{suffix}").write_bytes(content)
        return ClaimCheck("main", f"{kind}/{digest}{suffix}", digest, len(content))

    def get(self, claim: ClaimCheck) -> bytes:
        with Path(self.path, f"read-{rank()}").open("a") as file:
            file.write(f"{claim.size_bytes}\n")
        try:
            data = self.file(claim).read_bytes()
        except FileNotFoundError as error:
            raise ObjectMissing(claim.key) from error
        if hashlib.sha256(data).hexdigest() != claim.sha256:
            raise ObjectCorrupt(claim.key)
        return data

    def file(self, claim: ClaimCheck) -> Path:
        return Path(self.path) / Path(claim.key).name

    def bytes_read(self, process: int) -> int:
        file = Path(self.path, f"read-{process}")
        found = sum(map(int, file.read_text().split())) if file.exists() else 0
        file.unlink(missing_ok=True)
        return found

    @property
    def run(self) -> Run:
        return cast("Run", self)


def rank() -> str:
    return os.environ.get("RANK", "alone")


def stored(told: dict[str, Any]) -> Stored:
    """What came back from JSON."""
    parts = tuple(NamedObject(part["name"], ClaimCheck(**part["claim"])) for part in told["parts"])
    return Stored(ClaimCheck(**told["claim"]), parts)


def load(learner: Learner, folder: Folder, found: Stored) -> None:
    learner.load_stored(folder.run, decode_index(folder.get(found.claim)), found.parts)


def tried(call: Callable[[], object]) -> str:
    """The kind of error that a call raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - it is told
        return type(error).__name__
    return "none"


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def troubles(folder: Folder, make: Callable[[], Learner], batch: Batch) -> dict[str, Any]:
    return {**damage(folder, make(), batch), **absence(folder, make, batch)}


def damage(folder: Folder, learner: Learner, batch: Batch) -> dict[str, Any]:
    """Parts that are gone or altered, of either process; each is put back before the next."""
    learner.step(batch(1), 1)
    first = learner.checkpoint(folder.run)(None)
    learner.step(batch(2), 2)
    before = hash_weights(learner.snapshot_weights())
    errors = []
    for part in first.parts:
        assert part.claim is not None
        file = folder.file(part.claim)
        data = file.read_bytes()
        file.unlink()
        errors.append([part.name, tried(lambda: load(learner, folder, first))])
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        errors.append([part.name, tried(lambda: load(learner, folder, first))])
        file.write_bytes(data)
    unchanged = (learner.version, hash_weights(learner.snapshot_weights())) == (2, before)
    load(learner, folder, first)
    learner.step(batch(2), 2)
    healed = hash_weights(learner.snapshot_weights()) == before
    return {"errors": errors, "unchanged": unchanged, "healed": healed}


def absence(folder: Folder, make: Callable[[], Learner], batch: Batch) -> dict[str, Any]:
    """The store is away for the second process alone."""
    learner, away, waits = make(), Path(folder.path, "away-1"), Path(folder.path, "waits-1")
    learner.step(batch(1), 1)
    expected = asdict(learner.checkpoint(folder.run)(None))
    away.touch()
    storing = learner.checkpoint(folder.run)
    learner.step(batch(2), 2)  # it does not wait for the store
    until(waits.exists)
    told_to_stop = threading.Event()
    told_to_stop.set()
    stopped = tried(lambda: storing(told_to_stop))
    away.unlink()
    after = asdict(storing(None))

    away.touch()
    waits.unlink()
    abandoned = learner.checkpoint(folder.run)
    until(waits.exists)
    learner = make()  # as a trainer does that begins anew
    given_up = tried(lambda: abandoned(None))
    away.unlink()
    learner.step(batch(1), 1)
    anew = asdict(learner.checkpoint(folder.run)(None))
    return {"stopped": stopped, "copy_kept": after == expected, "given_up": given_up, "anew": anew == expected}


def leave_while_away(folder: Folder, learner: Learner) -> None:
    """Begin a checkpoint that the second process cannot store; whoever leaves next must not wait for it."""
    Path(folder.path, "away-1").touch()
    Path(folder.path, "waits-1").unlink(missing_ok=True)
    learner.checkpoint(folder.run)
    until(Path(folder.path, "waits-1").exists)
