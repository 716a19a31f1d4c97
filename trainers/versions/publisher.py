"""Publishes a version in four steps: snapshot, encode, upload, announce.

The first step copies the learner's values. The next two do not touch the learner. The last step only makes the record
for the trainer's transaction: a version is published when its event is committed; an object without an event is
garbage.
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
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import Content
from headrace.infra.weights.delta import NeedsAnchor, encode_delta, read_delta
from headrace.infra.weights.delta_header import Label
from headrace.infra.weights.folder import SHARD_BYTES, files_of
from headrace.infra.weights.paths import ANCHOR, DELTA, WHOLE, is_whole
from headrace.infra.weights.tensors import Tensor, hash_weights
from headrace.schemas import codec
from headrace.schemas.ids import now_ms
from headrace.schemas.records import CheckpointPointer, ClaimCheck, NamedObject, Position, WeightsPublished
from headrace.schemas.topics import checkpoint_key, policy_of, trainer_component, variant_of
from headrace.trainers.learner.checkpoint import Stored, Storing
from headrace.trainers.learner.device_changes import choose_change_finder
from headrace.trainers.learner.learner import Learner
from headrace.trainers.versions.history import WeightStretch
from headrace.trainers.versions.lost_objects import describe_first_damage

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Base:
    """The base of the next delta: the weights of the newest event."""

    version: int
    epoch: int
    tensors: Mapping[str, Tensor]
    weights_hash: str
    stretch: WeightStretch
    """Whole weights and deltas of the published version."""
    is_published: bool = True
    """False at the begin of an epoch: these weights differ from the published ones, so the next version is whole."""


class VersionUploader:
    """Uploads the versions of a policy or shadow, each as a delta on the last version, sometimes whole.

    One thread at a time may use it; in a trainer that is the upload thread.

    Args:
        run: The run whose store takes the objects.
        policy_variant: The policy or shadow.
        files: Files beside every anchor: config, tokenizer, and an adapter's base.
        base: The newest uploaded version; None uploads the next one whole.
        shard_bytes: Larger anchors are cut into several files, as by Hugging Face's tools.
    """

    def __init__(
        self,
        run: Run,
        policy_variant: str,
        files: tuple[NamedObject, ...],
        base: Base | None = None,
        *,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        self.files = files
        self.base = base
        """The base of the next delta; no longer needed when `upload_version` has returned."""
        self._shard_bytes = shard_bytes
        self._run, self._policy_variant = run, policy_variant
        self._settings = run.recipe.trainer_of(policy_variant)
        self._find = choose_change_finder(self._settings.device)

    def upload_version(
        self, named: Mapping[str, Tensor], version: int, *, epoch: int = 0, given_up: threading.Event | None = None
    ) -> WeightsPublished:
        """Encode and upload a version; return its event for the version's transaction.

        The next delta is based on these tensors, so do not change them. Raises StoreUnavailable if the upload is given
        up while the store is unreachable.
        """
        begin = time.monotonic()
        found = hash_weights(named)
        delta = self._encode_delta(named, found, version, epoch)
        encoded = time.monotonic()
        reach("train.before_upload")
        if delta is None:
            claim, shards = self._upload_anchor(named, found, given_up)
        else:
            claim, shards = self._run.put(delta, "weights", ".delta", given_up), ()
        reach("train.after_upload")
        event = replace(
            self._build_event(version, epoch, found, claim, shards),
            final=version >= self._settings.steps,
            metrics={
                "full_bytes": float(sum(tensor.data.nbytes for tensor in named.values())),
                "density": 1.0 if delta is None else read_delta(delta).header.density,
                "encode_s": encoded - begin,
                "upload_s": time.monotonic() - encoded,
            },
        )
        if delta is None:
            event = replace(event, kind=ANCHOR, files=self.files)
        elif (base := self.base) is not None:
            event = replace(event, kind=DELTA, base_version=base.version, base_hash=base.weights_hash)
        stretch = self.base.stretch if self.base else WeightStretch()
        self.base = Base(version, epoch, named, found, stretch.with_event(event))
        return event

    def reupload_lost_version(
        self, *, read: bool = False, apply: bool = False, given_up: threading.Event | None = None
    ) -> WeightsPublished | None:
        """Check whether a new worker could fetch the newest version; if not, upload it whole again.

        Returns the event of the upload, for a transaction, or None if nothing was uploaded. At the begin of an epoch
        the published weights cannot be remade, so the event is an anchor of the version in the new epoch. Only the
        store is checked; reports of workers are not used. Raises StoreUnavailable.

        Args:
            read: As in `describe_first_damage`.
            apply: As there.
            given_up: As in `upload_version`.
        """
        base = self.base
        if base is None:
            return None
        lost = describe_first_damage(self._run.store, base.stretch.events, read=read, apply=apply)
        if not lost:
            return None
        # An object that workers need is missing or altered.
        log.error(
            "weights.lost",
            policy=self._policy_variant,
            version=base.version,
            why=lost,
            now="the newest version is published again as whole weights, to replace lost or damaged objects",
        )
        claim, shards = self._upload_anchor(base.tensors, base.weights_hash, given_up, anew=True)
        event = self._build_event(base.version, base.epoch, base.weights_hash, claim, shards)
        kind, is_final = (WHOLE, False) if base.is_published else (ANCHOR, base.version >= self._settings.steps)
        event = replace(event, kind=kind, files=self.files, final=is_final)
        self.base = replace(base, stretch=base.stretch.with_event(event), is_published=True)
        return event

    def _build_event(
        self, version: int, epoch: int, found: str, claim: ClaimCheck, shards: tuple[NamedObject, ...]
    ) -> WeightsPublished:
        return WeightsPublished(
            run_id=self._run.run_id,
            policy=policy_of(self._policy_variant),
            variant=variant_of(self._policy_variant),
            version=version,
            epoch=epoch,
            weights_hash=found,
            weights=claim,
            shards=shards,
            created_ms=now_ms(),
        )

    def _encode_delta(self, named: Mapping[str, Tensor], found: str, version: int, epoch: int) -> bytes | None:
        """Return the delta to publish; None if an anchor is due or no delta is possible."""
        base, settings = self.base, self._settings
        if (
            base is None
            or not base.is_published
            or base.epoch != epoch
            or len(base.stretch.deltas) + 1 >= settings.anchor_every
        ):
            return None
        label = Label(policy_of(self._policy_variant), epoch, base.version, version)
        try:
            delta = encode_delta(base.tensors, named, label, hashes=(base.weights_hash, found), find=self._find)
        except NeedsAnchor as error:
            # A delta is not possible, so whole weights are published.
            log.warning("anchor.needed", policy=self._policy_variant, version=version, why=str(error))
            return None
        spent = base.stretch.delta_bytes + len(delta)
        return delta if spent <= settings.anchor_share * base.stretch.whole_bytes else None

    def _upload_anchor(
        self, named: Mapping[str, Tensor], found: str, given_up: threading.Event | None, *, anew: bool = False
    ) -> tuple[ClaimCheck, tuple[NamedObject, ...]]:
        """Store the files of an anchor; return the last one (the only file, or the index) and the others."""
        stored = [
            NamedObject(name, self._run.put(pieces, "weights", PurePath(name).suffix, given_up, anew=anew))
            for name, pieces in files_of(named, found, shard_bytes=self._shard_bytes)
        ]
        claim = stored[-1].claim
        assert claim is not None  # noqa: S101 - it was just stored
        return claim, tuple(stored[:-1])


class VersionAnnouncer:
    """Makes the records of weights events. Only the thread that writes them may use it.

    Args:
        run: The run whose topic takes them.
        policy_variant: The policy or shadow.
        anchor_offset: Offset of the newest anchor's record on that topic; -1 before the first.
    """

    def __init__(self, run: Run, policy_variant: str, anchor_offset: int = -1) -> None:
        self._topic = run.topics.weights(policy_variant)
        self._anchor_offset = anchor_offset

    def build_message(self, event: WeightsPublished) -> Outgoing:
        """Return the message of an event; a delta's event names the offset of the newest anchor on the topic."""
        if event.kind == DELTA:
            event = replace(event, anchor_offset=self._anchor_offset)
        key = f"{event.version}".encode()
        return Outgoing(self._topic, codec.encode(event), key, partition=0)

    def note_announced(self, event: WeightsPublished, offset: int) -> None:
        """Take in the offset of an event on its topic."""
        if is_whole(event):
            self._anchor_offset = offset

    def announce(self, writer: TransactionalWriter, event: WeightsPublished, *records: Outgoing) -> None:
        """Write an event and its records in a separate transaction."""
        writer.begin()
        ticket, *_ = writer.produce([self.build_message(event), *records])
        writer.commit()
        self.note_announced(event, ticket.offset)


def upload_files(
    run: Run, files: Mapping[str, Content], given_up: threading.Event | None = None
) -> tuple[NamedObject, ...]:
    """Store the files beside every anchor: config, tokenizer, an adapter's base. Equal files are one object.

    Raises StoreUnavailable if the upload is given up while the store is unreachable.
    """
    return tuple(NamedObject(name, run.put(data, "files", given_up=given_up)) for name, data in files.items())


def upload_checkpoint(storing: Storing, given_up: threading.Event | None = None) -> Stored:
    """Store masters, moments and version. Raises as `upload_files`."""
    reach("train.before_checkpoint")
    stored = storing(given_up)
    reach("train.after_checkpoint")
    return stored


def store_checkpoint(
    run: Run, policy_variant: str, learner: Learner, window: WindowMark, given_up: threading.Event | None = None
) -> Outgoing:
    """Store a learner's state; return the pointer, for a transaction. Raises as `upload_checkpoint`."""
    stored = upload_checkpoint(learner.checkpoint(run), given_up)
    return build_pointer(run, policy_variant, learner.fingerprint(), replace(window, version=learner.version), stored)


def build_pointer(
    run: Run, policy_variant: str, fingerprint: dict[str, str], window: WindowMark, stored: Stored
) -> Outgoing:
    """Return the record of a stored checkpoint, for a transaction."""
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
        batches_offset=window.batches_offset,
        fingerprint=fingerprint,
    )
    topic, partition = run.state_partition_id(trainer_component(policy_variant))
    key = checkpoint_key(policy_variant, window.version)
    return Outgoing(topic, codec.encode(record), key, partition=partition)


@dataclass(frozen=True, slots=True)
class WindowMark:
    """Data in a checkpoint's pointer besides the object."""

    version: int
    epoch: int
    weights_hash: str
    positions: tuple[Position, ...] = ()
    """Offsets from which the curated topic must be read again to rebuild the window."""
    batches_offset: int = -1
    """Offset from which `batches` says which of these records are concluded; -1 for the beginning."""
