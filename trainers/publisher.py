"""Publishing a version, in four steps: snapshot, encode, upload, announce.

The first copies the published values out of the learner's way. The next two touch no state of it. The last only makes
the records that the trainer's transaction carries: the event is the commit, and an object without one is garbage.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from infra.failpoints import reach
from infra.kafka import Outgoing
from infra.run import Run
from infra.weights import Tensor, weights_hash, write_safetensors
from schemas import codec
from schemas.records import CheckpointPointer, ClaimCheck, NamedObject, Position, WeightsPublished
from schemas.topics import checkpoint_key
from trainers.checkpoint import encode_checkpoint
from trainers.learner import Learner


@dataclass(frozen=True, slots=True)
class Encoded:
    """A version's weights as an object will hold them."""

    data: bytes
    weights_hash: str


@dataclass(frozen=True, slots=True)
class Stored:
    """A version's weights in the store."""

    weights_hash: str
    claim: ClaimCheck


def snapshot(learner: Learner) -> dict[str, Tensor]:
    """Step 1: copy the published values."""
    return learner.published()


def encode(named: Mapping[str, Tensor]) -> Encoded:
    """Step 2: hash and lay out as safetensors, in Hugging Face's names."""
    return Encoded(write_safetensors(named), weights_hash(named))


def upload(run: Run, encoded: Encoded) -> Stored:
    """Step 3: put into the store under the content's hash."""
    reach("train.before_upload")
    stored = Stored(encoded.weights_hash, run.put(encoded.data, "weights", ".safetensors"))
    reach("train.after_upload")
    return stored


def announce(
    run: Run, policy: str, version: int, stored: Stored, files: tuple[NamedObject, ...], *, epoch: int = 0
) -> Outgoing:
    """Step 4: the event of an anchor, for the transaction that makes the version."""
    event = WeightsPublished(
        run_id=run.run_id,
        policy=policy,
        version=version,
        epoch=epoch,
        weights_hash=stored.weights_hash,
        weights=stored.claim,
        files=files,
        final=version >= run.recipe.trainer_of(policy).steps,
        created_ms=time.time_ns() // 1_000_000,
    )
    return Outgoing(run.topics.weights(policy), codec.encode(event), f"{version}".encode(), partition=0)


def upload_files(run: Run, files: Mapping[str, bytes]) -> tuple[NamedObject, ...]:
    """Store config and tokenizer, which go beside every anchor; equal files are one object."""
    return tuple(NamedObject(name, run.put(data, "files")) for name, data in files.items())


def checkpoint(run: Run, policy: str, learner: Learner, window: WindowMark) -> Outgoing:
    """Store masters, moments and version; return the pointer, for a transaction."""
    reach("train.before_checkpoint")
    pointer = CheckpointPointer(
        run_id=run.run_id,
        policy=policy,
        version=learner.version,
        epoch=window.epoch,
        checkpoint=run.put(encode_checkpoint(learner.state()), "checkpoints", ".safetensors"),
        weights_hash=window.weights_hash,
        positions=window.positions,
        fingerprint=learner.fingerprint(),
    )
    reach("train.after_checkpoint")
    return Outgoing(run.topics.state, codec.encode(pointer), checkpoint_key(policy, learner.version), partition=0)


@dataclass(frozen=True, slots=True)
class WindowMark:
    """What a checkpoint says beside the learner's own state."""

    epoch: int
    weights_hash: str
    positions: tuple[Position, ...] = ()
    """Where to read the curated topic again so that nothing of the window is missed."""
