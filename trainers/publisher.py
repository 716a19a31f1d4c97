"""Publishing a version, in four steps: snapshot, encode, upload, announce.

The first copies the published values out of the learner's way. The next two touch no state of it. The last only makes
the record that the trainer's transaction carries: the event is the commit, and an object without one is garbage.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import structlog

from infra.failpoints import reach
from infra.kafka import Outgoing
from infra.run import Run
from infra.weights.delta import NeedsAnchor, encode_delta, read_delta
from infra.weights.delta_header import Label
from infra.weights.folder import HASH_KEY
from infra.weights.paths import ANCHOR, DELTA
from infra.weights.tensor_file import HF_METADATA, write_safetensors
from infra.weights.tensors import Tensor, weights_hash
from schemas import codec
from schemas.records import CheckpointPointer, NamedObject, Position, WeightsPublished
from schemas.topics import checkpoint_key
from trainers.checkpoint import encode_checkpoint
from trainers.history import AnchorMark
from trainers.learner import Learner

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Base:
    """What the next delta is taken on: the weights of the newest event."""

    version: int
    epoch: int
    tensors: Mapping[str, Tensor]
    weights_hash: str
    anchor: AnchorMark


class Publisher:
    """Publishes one policy's versions: each as a delta on the one before, now and then whole.

    Args:
        run: Whose store and topic.
        policy: Which.
        files: Config and tokenizer, which go beside every anchor.
        base: The newest published version; None publishes the next one whole.
    """

    def __init__(self, run: Run, policy: str, files: tuple[NamedObject, ...], base: Base | None = None) -> None:
        self.files = files
        self._base = base
        self._run, self._policy = run, policy
        self._settings = run.recipe.trainer_of(policy)

    def publish(self, named: Mapping[str, Tensor], version: int, *, epoch: int = 0) -> WeightsPublished:
        """Encode and upload a version; return its event, which is to be written in the version's transaction.

        The next delta will be one on these tensors: leave them alone. Of an anchor `announced` wants the offset.
        """
        begin = time.monotonic()
        found = weights_hash(named)
        delta = self._delta(named, found, version, epoch)
        data = write_safetensors(named, {**HF_METADATA, HASH_KEY: found}) if delta is None else delta
        encoded = time.monotonic()
        reach("train.before_upload")
        claim = self._run.put(data, "weights", ".safetensors" if delta is None else ".delta")
        reach("train.after_upload")
        event = WeightsPublished(
            run_id=self._run.run_id,
            policy=self._policy,
            version=version,
            epoch=epoch,
            weights_hash=found,
            weights=claim,
            final=version >= self._settings.steps,
            created_ms=time.time_ns() // 1_000_000,
            metrics={
                "full_bytes": float(sum(tensor.data.nbytes for tensor in named.values())),
                "density": 1.0 if delta is None else read_delta(delta).header.density,
                "encode_s": encoded - begin,
                "upload_s": time.monotonic() - encoded,
            },
        )
        event, mark = self._as_delta(event) if delta is not None else self._as_anchor(event)
        self._base = Base(version, epoch, named, found, mark)
        return event

    def announced(self, event: WeightsPublished, offset: int) -> None:
        """Take in where an event stands on its topic: the deltas after an anchor name its place."""
        if event.kind == ANCHOR and self._base is not None:
            self._base = replace(self._base, anchor=replace(self._base.anchor, offset=offset))

    def message(self, event: WeightsPublished) -> Outgoing:
        """Return an event as it goes to its topic."""
        key = f"{event.version}".encode()
        return Outgoing(self._run.topics.weights(self._policy), codec.encode(event), key, partition=0)

    def _delta(self, named: Mapping[str, Tensor], found: str, version: int, epoch: int) -> bytes | None:
        """Return the delta to publish; None when it is time for an anchor, or no delta leads there."""
        base, settings = self._base, self._settings
        if base is None or base.epoch != epoch or base.anchor.versions + 1 >= settings.anchor_every:
            return None
        label = Label(self._policy, epoch, base.version, version)
        try:
            delta = encode_delta(base.tensors, named, label, hashes=(base.weights_hash, found))
        except NeedsAnchor as error:
            log.warning("anchor.needed", policy=self._policy, version=version, why=str(error))
            return None
        spent = base.anchor.delta_bytes + len(delta)
        return delta if spent <= settings.anchor_share * base.anchor.size_bytes else None

    def _as_anchor(self, event: WeightsPublished) -> tuple[WeightsPublished, AnchorMark]:
        assert event.weights is not None  # noqa: S101 - `publish` gave it one
        return replace(event, kind=ANCHOR, files=self.files), AnchorMark(size_bytes=event.weights.size_bytes)

    def _as_delta(self, event: WeightsPublished) -> tuple[WeightsPublished, AnchorMark]:
        base = self._base
        assert base is not None  # noqa: S101 - it is what the delta was taken on
        assert event.weights is not None  # noqa: S101 - `publish` gave it one
        mark = base.anchor.after(event.weights.size_bytes)
        event = replace(event, kind=DELTA, base_version=base.version, base_hash=base.weights_hash)
        return replace(event, anchor_offset=mark.offset), mark


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
