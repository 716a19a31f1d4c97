"""Checks that the objects that records name are in the store, and have the recorded content."""

from __future__ import annotations

import json
import mmap
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from blake3 import blake3

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.topic_reader import name_offset
from headrace.infra.run.retired import CHECKPOINTS, WEIGHTS, Retired
from headrace.infra.store.object_store import ObjectStore, StoreDenied, StoreError, StoreUnavailable
from headrace.infra.weights.delta import Delta
from headrace.infra.weights.files import TOKENIZER_FILE, list_anchor_files
from headrace.infra.weights.folder import open_weights
from headrace.infra.weights.held import HeldWeights
from headrace.infra.weights.offline import open_delta
from headrace.infra.weights.paths import MERGED, WHOLE, describe_mislabelling, is_whole, list_claims
from headrace.infra.weights.tensor_file import read_metadata
from headrace.infra.weights.tensors import WeightsError
from headrace.schemas import codec
from headrace.schemas.avro import SchemaError
from headrace.schemas.records import CheckpointPointer, ClaimCheck, WeightsPublished
from headrace.schemas.topics import policy_variant_of

VersionObjects = tuple[str, str, int]
"""(policy, weights | checkpoints, version)."""
CHECKPOINT_KEY = "headrace.checkpoint"
"""Key of the metadata in a checkpoint, as `trainers.learner.checkpoint` writes it."""
CHECKPOINT_HEADER_BYTES = 16 << 20
"""Bytes at the beginning of a checkpoint that hold its metadata."""
NEEDED = frozenset({"config.json", TOKENIZER_FILE})
"""Files that an anchor with files must have; a hand-made anchor may have none."""
LAST_SEEN = 64
"""Number of objects whose check is remembered: the files of an anchor, for example, are named by many records."""


class StoreAway(Exception):
    """The store is unreachable; no more objects can be checked."""


class ObjectChecks:
    """Checks objects one by one, in files on disk, because an anchor may be larger than memory."""

    def __init__(self, store: ObjectStore, folder: Path, *, deep: bool) -> None:
        self._store = store
        self._folder = folder
        self._held: dict[str, HeldWeights] = {}
        """Policy or shadow to the weights of its previous event, mapped from a file."""
        self._files: dict[str, set[str]] = {}
        """Policy or shadow to the names of the files beside its newest whole weights."""
        self._lost: set[str] = set()
        """Policies whose weights are not known until the next anchor, because a delta could not be applied."""
        self._deep = deep
        self._of_versions: list[tuple[VersionObjects, str]] = []
        """Problems of objects that may have been retired."""
        self._seen: dict[ClaimCheck, None] = {}
        self.count = 0
        self.seconds = 0.0

    def check(self, message: Message, kind: type[WeightsPublished | CheckpointPointer]) -> Iterator[str]:
        """Yield what is wrong with the objects of an event or a pointer. Raises StoreAway."""
        begin = time.perf_counter()
        try:
            record = codec.decode(message.value, kind)
        except SchemaError:  # the fold reports it
            return
        if isinstance(record, WeightsPublished) and record.kind != MERGED:  # nobody reads a merged delta
            yield from self._check_weights(record, name_offset(message))
        elif isinstance(record, CheckpointPointer):
            yield from self._check_checkpoint(record, name_offset(message))
        self.seconds += time.perf_counter() - begin

    def _check_weights(self, event: WeightsPublished, where: str) -> Iterator[str]:
        policy_variant = _policy_variant(event)
        what = "the whole weights of version" if event.kind == WHOLE else "version"
        name = f"{what} {event.version} of {policy_variant}, announced by {where}:"
        for file in event.files:
            yield from (f"{name} file {file.name}: {why}" for why in self.claim(file.claim))
        if is_whole(event):
            yield from (f"{name} {why}" for why in self._compare_files(event))
        if event.weights is None:
            yield f"{name} the record names no object"
            return
        if is_whole(event):
            self._lost.discard(policy_variant)
        was_lost = policy_variant in self._lost
        try:
            found = self._compute_hash(event, event.weights)
        except (StoreUnavailable, StoreDenied) as error:
            raise StoreAway(str(error)) from error
        except (StoreError, WeightsError) as error:
            self._of_versions.append(((policy_variant, WEIGHTS, event.version), f"{name} {error}"))
            return
        if found != event.weights_hash:
            yield (
                f"{name} its object {event.weights.key} has weights_hash {found}, but the record says "
                f"{event.weights_hash}"
            )
        if policy_variant in self._lost and not was_lost:
            why = (
                "its delta and all later deltas before the next anchor (whole weights) cannot be applied: the weights "
                f"that its delta changes, of version {event.base_version}, are missing"
            )
            self._of_versions.append(((policy_variant, WEIGHTS, event.base_version), f"{name} {why}"))

    def _compare_files(self, event: WeightsPublished) -> Iterator[str]:
        """Yield the differences between the files of these whole weights and those of the whole weights before."""
        names = {file.name for file in event.files}
        if names and (missing := sorted(NEEDED - names)):
            yield f"files that workers need to serve these weights are missing: {', '.join(missing)}"
        before = self._files.setdefault(_policy_variant(event), names)
        if names != before:
            here, there = (", ".join(sorted(some)) or "none" for some in (names, before))
            yield f"its files are {here}, but those of the whole weights before it are {there}"
        self._files[_policy_variant(event)] = names

    def _compute_hash(self, event: WeightsPublished, claim: ClaimCheck) -> str:
        """Return the `weights_hash` of the weights that an object gives, and check its sha256.

        A delta is applied to the weights before it. If an object or those weights are missing, the policy is in `_lost`
        until the next anchor.
        """
        self.count += len(list_claims(event))
        name = blake3(_policy_variant(event).encode()).hexdigest()
        path = self._folder / f"{name}.new"
        if is_whole(event):
            held = self._held[_policy_variant(event)] = self._fetch_anchor(event, self._folder / f"{name}.anchor")
            return held.weights_hash
        self._store.get_to_file(claim.key, claim.sha256, claim.size_bytes, path)
        return self._compute_hash_of_delta(event, path)

    def _fetch_anchor(self, event: WeightsPublished, folder: Path) -> HeldWeights:
        """Fetch an anchor's objects into a folder of their own; return its weights as mapped files."""
        shutil.rmtree(folder, ignore_errors=True)  # files that are still mapped stay readable
        folder.mkdir()
        for name, claim in list_anchor_files(event):
            self._store.get_to_file(claim.key, claim.sha256, claim.size_bytes, folder / name)
        return HeldWeights(open_weights(folder, writable=True).tensors, copy=False)

    def _compute_hash_of_delta(self, event: WeightsPublished, path: Path) -> str:
        delta = _open_labelled(event, path)
        header, held = delta.header, self._held.get(_policy_variant(event))
        if held is not None and held.weights_hash == header.base_hash:
            held.apply(delta)
            return held.weights_hash
        self._lost.add(_policy_variant(event))
        return header.weights_hash

    def _check_checkpoint(self, pointer: CheckpointPointer, where: str) -> Iterator[str]:
        name = f"the checkpoint of version {pointer.version} of {_policy_variant(pointer)}, named by {where}:"
        version = (_policy_variant(pointer), CHECKPOINTS, pointer.version)
        for claim in (pointer.checkpoint, *(part.claim for part in pointer.parts)):
            if self._deep or claim is None:
                wrong = [*self.claim(claim)]
                if claim is not None and claim is pointer.checkpoint and not pointer.parts and not wrong:
                    wrong = [*self._find_other_version(claim, pointer.version)]
                self._of_versions += [(version, f"{name} {why}") for why in wrong]
                continue
            self.count += 1
            try:
                if not self._store.has_object(claim.key):
                    self._of_versions.append((version, f"{name} {claim.key} does not exist in the store"))
            except (StoreUnavailable, StoreDenied) as error:
                raise StoreAway(str(error)) from error
            except StoreError as error:
                yield f"{name} {error}"

    def _find_other_version(self, claim: ClaimCheck, version: int) -> Iterator[str]:
        """Yield the version in a checkpoint if it is not the expected one; a foreign file gives no version."""
        path = self._folder / "checkpoint"
        try:
            self._store.get_to_file(claim.key, claim.sha256, claim.size_bytes, path)
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                found = json.loads(read_metadata(data[:CHECKPOINT_HEADER_BYTES]).get(CHECKPOINT_KEY, "{}")).get(
                    "version", version
                )
        except (StoreUnavailable, StoreDenied) as error:
            raise StoreAway(str(error)) from error
        except (StoreError, WeightsError, ValueError, AttributeError):
            return
        if found != version:
            yield f"it holds version {found} instead"

    def find_unretired(self, read_retired: Callable[[], Retired]) -> Iterator[str]:
        """Yield the problems of versions' objects, after all were checked, without retired versions.

        Args:
            read_retired: Called only if there are problems, and only now, because `gc` announces before it deletes.
        """
        retired = read_retired() if self._of_versions else None
        for version, what in self._of_versions:
            if retired is None or not retired.has_version(*version):
                yield what

    def claim(self, claim: ClaimCheck | None) -> Iterator[str]:
        """Yield what is wrong with the object that a claim check names. Raises StoreAway."""
        if claim is None:
            yield "the record names no object"
            return
        if claim in self._seen:
            return
        self.count += 1
        try:
            self._store.get_to_file(claim.key, claim.sha256, claim.size_bytes, self._folder / "object")
        except (StoreUnavailable, StoreDenied) as error:
            raise StoreAway(str(error)) from error
        except StoreError as error:
            yield str(error)
            return
        self._seen[claim] = None
        if len(self._seen) > LAST_SEEN:
            del self._seen[next(iter(self._seen))]


def _policy_variant(record: WeightsPublished | CheckpointPointer) -> str:
    return policy_variant_of(record.policy, record.variant)


def _open_labelled(event: WeightsPublished, path: Path) -> Delta:
    delta = open_delta(path)
    if wrong := describe_mislabelling(delta.header, event):
        raise WeightsError(f"it is not the delta that its record says: {wrong}")
    return delta
