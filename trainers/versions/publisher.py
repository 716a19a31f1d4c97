"""Publishing a version, in four steps: snapshot, encode, upload, announce.

The first copies the published values out of the learner's way. The next two touch no state of it. The last only makes
the record that the trainer's transaction carries: the event is the commit, and an object without one is garbage.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath

import structlog

from headrace.infra.failpoints import reach
from headrace.infra.kafka.clients import Outgoing
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import Content
from headrace.infra.weights.delta import NeedsAnchor, encode_delta, read_delta
from headrace.infra.weights.delta_header import Label
from headrace.infra.weights.folder import SHARD_BYTES, files_of
from headrace.infra.weights.paths import ANCHOR, DELTA, size_of
from headrace.infra.weights.tensors import Tensor, weights_hash
from headrace.schemas import codec
from headrace.schemas.ids import now_ms
from headrace.schemas.records import CheckpointPointer, ClaimCheck, NamedObject, Position, WeightsPublished
from headrace.schemas.topics import checkpoint_key, policy_of, variant_of
from headrace.trainers.learner.checkpoint import Stored, Storing
from headrace.trainers.learner.device_changes import find_changes_for
from headrace.trainers.learner.learner import Learner
from headrace.trainers.versions.history import AnchorMark

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
    """Publishes the versions of a policy or shadow: each as a delta on the one before, now and then whole.

    Args:
        run: Whose store and topic.
        policy_variant: Which.
        files: Config and tokenizer, and an adapter's base, which go beside every anchor.
        base: The newest published version; None publishes the next one whole.
        anchor_offset: Where the newest anchor's record stands on its topic.
        shard_bytes: Larger anchors are cut into several files, as Hugging Face's tools do it.

    `publish` may run in a thread of its own, and has `base` to itself; `message` and `announced` belong to the thread
    that writes the records.
    """

    def __init__(
        self,
        run: Run,
        policy_variant: str,
        files: tuple[NamedObject, ...],
        base: Base | None = None,
        anchor_offset: int = -1,
        *,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        self.files = files
        self.base = base
        """What the next delta is taken on; no longer needed when `publish` has returned."""
        self._anchor_offset = anchor_offset
        self._shard_bytes = shard_bytes
        self._run, self._policy_variant = run, policy_variant
        self._settings = run.recipe.trainer_of(policy_variant)
        self._find = find_changes_for(self._settings.device)

    def publish(
        self, named: Mapping[str, Tensor], version: int, *, epoch: int = 0, given_up: threading.Event | None = None
    ) -> WeightsPublished:
        """Encode and upload a version; return its event, which is to be written in the version's transaction.

        The next delta will be one on these tensors: leave them alone. Raises StoreUnavailable when the upload is given
        up while the store is away.
        """
        begin = time.monotonic()
        found = weights_hash(named)
        delta = self._delta(named, found, version, epoch)
        encoded = time.monotonic()
        reach("train.before_upload")
        if delta is None:
            claim, shards = self._upload_anchor(named, found, given_up)
        else:
            claim, shards = self._run.put(delta, "weights", ".delta", given_up), ()
        reach("train.after_upload")
        event = WeightsPublished(
            run_id=self._run.run_id,
            policy=policy_of(self._policy_variant),
            variant=variant_of(self._policy_variant),
            version=version,
            epoch=epoch,
            weights_hash=found,
            weights=claim,
            shards=shards,
            final=version >= self._settings.steps,
            created_ms=now_ms(),
            metrics={
                "full_bytes": float(sum(tensor.data.nbytes for tensor in named.values())),
                "density": 1.0 if delta is None else read_delta(delta).header.density,
                "encode_s": encoded - begin,
                "upload_s": time.monotonic() - encoded,
            },
        )
        event, mark = self._as_delta(event) if delta is not None else self._as_anchor(event)
        self.base = Base(version, epoch, named, found, mark)
        return event

    def message(self, event: WeightsPublished) -> Outgoing:
        """Return an event as it goes to its topic; a delta's names the place of the newest anchor there."""
        if event.kind == DELTA:
            event = replace(event, anchor_offset=self._anchor_offset)
        key = f"{event.version}".encode()
        return Outgoing(self._run.topics.weights(self._policy_variant), codec.encode(event), key, partition=0)

    def announced(self, event: WeightsPublished, offset: int) -> None:
        """Take in where an event stands on its topic."""
        if event.kind == ANCHOR:
            self._anchor_offset = offset

    def _delta(self, named: Mapping[str, Tensor], found: str, version: int, epoch: int) -> bytes | None:
        """Return the delta to publish; None when it is time for an anchor, or no delta leads there."""
        base, settings = self.base, self._settings
        if base is None or base.epoch != epoch or base.anchor.versions + 1 >= settings.anchor_every:
            return None
        label = Label(policy_of(self._policy_variant), epoch, base.version, version)
        try:
            delta = encode_delta(base.tensors, named, label, hashes=(base.weights_hash, found), find=self._find)
        except NeedsAnchor as error:
            log.warning("anchor.needed", policy=self._policy_variant, version=version, why=str(error))
            return None
        spent = base.anchor.delta_bytes + len(delta)
        return delta if spent <= settings.anchor_share * base.anchor.size_bytes else None

    def _upload_anchor(
        self, named: Mapping[str, Tensor], found: str, given_up: threading.Event | None
    ) -> tuple[ClaimCheck, tuple[NamedObject, ...]]:
        """Store the files of an anchor; return the last of them, which is the only one or the index, and the others."""
        stored = [
            NamedObject(name, self._run.put(pieces, "weights", PurePath(name).suffix, given_up))
            for name, pieces in files_of(named, found, shard_bytes=self._shard_bytes)
        ]
        claim = stored[-1].claim
        assert claim is not None  # noqa: S101 - it was just stored
        return claim, tuple(stored[:-1])

    def _as_anchor(self, event: WeightsPublished) -> tuple[WeightsPublished, AnchorMark]:
        return replace(event, kind=ANCHOR, files=self.files), AnchorMark(size_bytes=size_of(event))

    def _as_delta(self, event: WeightsPublished) -> tuple[WeightsPublished, AnchorMark]:
        base = self.base
        assert base is not None  # noqa: S101 - it is what the delta was taken on
        mark = base.anchor.after(size_of(event))
        return replace(event, kind=DELTA, base_version=base.version, base_hash=base.weights_hash), mark


def upload_files(
    run: Run, files: Mapping[str, Content], given_up: threading.Event | None = None
) -> tuple[NamedObject, ...]:
    """Store config and tokenizer, and an adapter's base, which go beside every anchor; equal files are one object.

    Raises StoreUnavailable when the store is away and this is given up.
    """
    return tuple(NamedObject(name, run.put(data, "files", given_up=given_up)) for name, data in files.items())


def upload_checkpoint(storing: Storing, given_up: threading.Event | None = None) -> Stored:
    """Store masters, moments and version. Raises StoreUnavailable when the store is away and this is given up."""
    reach("train.before_checkpoint")
    stored = storing(given_up)
    reach("train.after_checkpoint")
    return stored


def checkpoint(
    run: Run, policy_variant: str, learner: Learner, window: WindowMark, given_up: threading.Event | None = None
) -> Outgoing:
    """Store a learner's state; return the pointer, for a transaction. Raises as `upload_checkpoint`."""
    stored = upload_checkpoint(learner.checkpoint(run), given_up)
    return pointer(run, policy_variant, learner.fingerprint(), replace(window, version=learner.version), stored)


def pointer(run: Run, policy_variant: str, fingerprint: dict[str, str], window: WindowMark, stored: Stored) -> Outgoing:
    """Return the record of a checkpoint that is stored, for a transaction."""
    record = CheckpointPointer(
        run_id=run.run_id,
        policy=policy_of(policy_variant),
        variant=variant_of(policy_variant),
        version=window.version,
        epoch=window.epoch,
        checkpoint=stored.claim,
        parts=stored.parts,
        weights_hash=window.weights_hash,
        positions=window.positions,
        fingerprint=fingerprint,
    )
    return Outgoing(run.topics.state, codec.encode(record), checkpoint_key(policy_variant, window.version), partition=0)


@dataclass(frozen=True, slots=True)
class WindowMark:
    """What a checkpoint's pointer says beside where it is."""

    version: int
    epoch: int
    weights_hash: str
    positions: tuple[Position, ...] = ()
    """Where to read the curated topic again so that nothing of the window is missed."""
