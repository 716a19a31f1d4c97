"""What an audit says of the objects of deltas, with a store of one folder's worth."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from headrace.infra.kafka.clients import Message
from headrace.infra.run.retired import Retired
from headrace.infra.store.object_store import ObjectCorrupt, ObjectMissing, ObjectStore
from headrace.infra.weights.delta import encode_delta
from headrace.infra.weights.delta_header import Label
from headrace.infra.weights.tensor_file import encode_safetensors
from headrace.infra.weights.tensors import Tensor, hash_weights
from headrace.ops.audit.objects import ObjectChecks
from headrace.schemas import codec
from headrace.schemas.records import CheckpointPointer, ClaimCheck, NamedObject, WeightsPublished

STRETCH = "its delta and all later deltas before the next anchor (whole weights) cannot be applied"


def weights(version: int) -> dict[str, Tensor]:
    return {"w": Tensor("BF16", (1000,), memoryview((np.arange(1000, dtype="<u2") + version).tobytes()))}


class Scene:
    """Anchor 0, deltas 1 to 3, anchor 4, delta 5."""

    def __init__(self, folder: Path, *, deep: bool = False) -> None:
        self.objects: dict[str, bytes] = {}
        self.events = {0: self.anchor(0), **{v: self.delta(v - 1, v) for v in (1, 2, 3)}}
        self.events |= {4: self.anchor(4), 5: self.delta(4, 5)}
        self.audit = ObjectChecks(cast("ObjectStore", self), folder, deep=deep)

    def get_to_file(self, key: str, sha256: str, size_bytes: int, path: Path) -> None:
        """As the real one does it."""
        if key not in self.objects:
            raise ObjectMissing(f"{key} does not exist")
        data = self.objects[key]
        if (len(data), hashlib.sha256(data).hexdigest()) != (size_bytes, sha256):
            raise ObjectCorrupt(f"{key} has sha256 of other bytes")
        path.write_bytes(data)

    def has_object(self, key: str) -> bool:
        return key in self.objects

    def put(self, key: str, data: bytes) -> ClaimCheck:
        self.objects[key] = data
        return ClaimCheck("main", key, hashlib.sha256(data).hexdigest(), len(data))

    def anchor(self, version: int) -> WeightsPublished:
        claim = self.put(f"{version}", encode_safetensors(weights(version)))
        return WeightsPublished(policy="p", version=version, weights_hash=hash_weights(weights(version)), weights=claim)

    def delta(self, base: int, version: int, data: bytes | None = None, **changes: object) -> WeightsPublished:
        data = data or encode_delta(weights(base), weights(version), Label("p", 0, base, version))
        event = WeightsPublished(
            policy="p",
            version=version,
            kind="delta",
            base_version=base,
            base_hash=hash_weights(weights(base)),
            weights_hash=hash_weights(weights(version)),
            weights=self.put(f"{version}", data),
        )
        return replace(event, **changes)  # type: ignore[arg-type]

    def checkpoint(self) -> CheckpointPointer:
        """Version 3, in two parts."""
        parts = tuple(NamedObject(f"{number}", self.put(f"part {number}", bytes([number]))) for number in (0, 1))
        return CheckpointPointer(policy="p", version=3, checkpoint=self.put("index", b"{}"), parts=parts)

    def said_of(self, pointer: CheckpointPointer) -> list[str]:
        message = Message("state", 0, 9, b"", codec.encode(pointer))
        at_once = list(self.audit.check(message, CheckpointPointer))
        return [*at_once, *self.audit.find_unretired(lambda: Retired("run", ["p"]))]

    def said(self) -> list[str]:
        messages = [Message("t", 0, v, b"", codec.encode(event)) for v, event in sorted(self.events.items())]
        at_once = [what for message in messages for what in self.audit.check(message, WeightsPublished)]
        return [*at_once, *self.audit.find_unretired(lambda: Retired("run", ["p"]))]


def flipped(scene: Scene) -> None:
    data = bytearray(scene.objects["2"])
    data[len(data) // 2] ^= 1
    scene.objects["2"] = bytes(data)


def redone(data: Callable[[Scene], bytes]) -> Callable[[Scene], object]:
    """Put another delta instead of that of version 2, recorded as it is."""
    return lambda scene: scene.events.update({2: scene.delta(1, 2, data(scene))})


HASHES = (hash_weights(weights(1)), hash_weights(weights(2)))
DAMAGE: list[tuple[Callable[[Scene], object], str]] = [
    (lambda scene: scene.objects.pop("2"), "2 does not exist"),
    (flipped, "2 has sha256 of other bytes"),
    (lambda scene: scene.objects.update({"2": scene.objects["3"]}), "2 has sha256 of other bytes"),
    (redone(lambda scene: scene.objects["2"][:-9]), "the delta object was cut short or changed"),
    (
        redone(lambda _: encode_delta(weights(0), weights(2), Label("p", 0, 1, 2))),
        "it is not the delta that its record says: base_hash is ",
    ),
    (
        redone(lambda _: encode_delta(weights(1), weights(2), Label("p", 0, 1, 3))),
        "version is 3 instead of 2",
    ),
    (
        lambda scene: scene.events.update({2: replace(scene.events[2], epoch=1)}),
        "epoch is 0 instead of 1",
    ),
    (
        redone(lambda _: encode_delta(weights(1), weights(9), Label("p", 0, 1, 2), hashes=HASHES)),
        "the delta made weights with hash",
    ),
]


def test_of_objects_that_are_whole_nothing_is_said(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    assert scene.said() == []
    assert scene.audit.count == 6


def test_a_damaged_delta_is_named_and_what_is_not_checked_for_it_is_said_once(tmp_path: Path) -> None:
    for damage, why in DAMAGE:
        scene = Scene(tmp_path)
        damage(scene)
        first, then = scene.said()
        assert first.startswith("version 2 of p, announced by t[0]@2: ")
        assert why in first
        assert then.startswith(f"version 3 of p, announced by t[0]@3: {STRETCH}")


def test_every_stretch_of_deltas_that_are_not_applied_is_said(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    del scene.objects["1"], scene.objects["4"]
    said = scene.said()
    assert [what.partition(",")[0] for what in said] == [f"version {version} of p" for version in (1, 2, 4, 5)]
    assert [STRETCH in what for what in said] == [False, True, False, True]


def test_a_missing_part_of_a_checkpoint_is_told(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    pointer = scene.checkpoint()
    assert (scene.said_of(pointer), scene.audit.count) == ([], 3)
    del scene.objects["part 1"]
    [what] = scene.said_of(pointer)
    assert what.endswith("checkpoint of version 3 of p, named by state[0]@9: part 1 does not exist in the store")


def test_a_deep_audit_reads_the_parts_of_a_checkpoint(tmp_path: Path) -> None:
    scene = Scene(tmp_path, deep=True)
    pointer = scene.checkpoint()
    scene.objects["part 1"] = b"other"
    [what] = scene.said_of(pointer)
    assert what.endswith("named by state[0]@9: part 1 has sha256 of other bytes")


def test_config_and_tokenizer_are_beside_an_anchor(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    files = tuple(NamedObject(name, scene.put(name, b"{}")) for name in ("config.json", "tokenizer.json"))
    scene.events = {0: replace(scene.events[0], files=files)}
    assert scene.said() == []
    scene.events = {0: replace(scene.events[0], files=files[:1])}
    assert next(what.partition(": ")[2] for what in scene.said()) == (
        "files that workers need to serve these weights are missing: tokenizer.json"
    )
