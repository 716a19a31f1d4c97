"""A worker's weights, brought along by deltas: the cheapest way is taken, what is damaged is refused, and it heals."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from headrace.infra.store.object_store import ObjectCorrupt, ObjectMissing, StoreUnavailable
from headrace.infra.weights.delta import encode_delta
from headrace.infra.weights.delta_header import Label
from headrace.infra.weights.folder import files_of
from headrace.infra.weights.paths import ANCHOR, DELTA, MERGED, NO_BASE, Link, find_cheapest_path, link_of
from headrace.infra.weights.policy_weights import BadWeights, PolicyWeights
from headrace.infra.weights.tensor_file import encode_safetensors
from headrace.infra.weights.tensors import Tensor, hash_weights
from headrace.schemas.records import ClaimCheck, NamedObject, WeightsPublished

VERSIONS = 8
Weights = dict[str, Tensor]


def weights(version: int) -> Weights:
    """A few values change from one version to the next."""
    items = np.zeros(4000, "<u2")
    rng = np.random.default_rng(0)
    for _ in range(version):
        items[rng.integers(0, 4000, 40)] += 1
    return {"w": Tensor("BF16", (4000,), memoryview(items.tobytes()))}


@dataclass
class Store:
    """Verifies as the real one does."""

    objects: dict[str, bytes] = field(default_factory=dict)
    away: bool = False
    asked: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    def get(self, claim: ClaimCheck) -> memoryview:
        key, sha256, size = claim.key, claim.sha256, claim.size_bytes
        self.asked.append(key)
        if self.away:
            raise StoreUnavailable("no answer")
        if key not in self.objects:
            raise ObjectMissing(f"{key} does not exist")
        data = self.objects[key]
        if (len(data), hashlib.sha256(data).hexdigest()) != (size, sha256):
            raise ObjectCorrupt(f"{key} is not what its record says")
        return memoryview(data)

    def drop(self, claim: ClaimCheck) -> None:
        self.dropped.append(claim.key)


class Scene:
    """Anchor 0, deltas 1 to 8, and anchor 6 beside delta 6."""

    def __init__(self) -> None:
        self.store = Store()
        self.events: dict[str, WeightsPublished] = {}
        self.anchor(0)
        for version in range(1, VERSIONS + 1):
            self.delta(version - 1, version)
        self.held = PolicyWeights(self.store)

    def put(self, name: str, data: bytes, event: WeightsPublished) -> None:
        self.store.objects[name] = data
        claim = ClaimCheck("main", name, hashlib.sha256(data).hexdigest(), len(data))
        self.events[name] = replace(event, weights=claim)

    def anchor(self, version: int) -> None:
        event = WeightsPublished(policy="p", version=version, kind=ANCHOR, weights_hash=hash_weights(weights(version)))
        self.put(f"anchor-{version}", encode_safetensors(weights(version)), event)

    def delta(self, base: int, version: int, data: bytes | None = None, epoch: int = 0, kind: str = DELTA) -> None:
        label = Label("p", epoch, base, version)
        event = WeightsPublished(
            policy="p",
            version=version,
            epoch=epoch,
            kind=kind,
            base_version=base,
            base_hash=hash_weights(weights(base)),
            weights_hash=hash_weights(weights(version)),
        )
        made = encode_delta(weights(base), weights(version), label) if data is None else data
        self.put(f"delta-{base}-{version}", made, event)

    def load_version(self, version: int) -> Weights:
        target = next(event for event in self.events.values() if event.version == version)
        return self.held.load_version(self.events.values(), target)

    def is_at(self, version: int) -> bool:
        self.store.asked.clear()
        got = bytes(self.load_version(version)["w"].data) == bytes(weights(version)["w"].data)
        return got and not self.store.asked


def test_a_joiner_takes_an_anchor_and_deltas_and_a_follower_only_what_it_lacks() -> None:
    scene = Scene()
    scene.load_version(3)
    assert scene.store.asked == ["anchor-0", "delta-0-1", "delta-1-2", "delta-2-3"]
    assert scene.is_at(3)
    scene.load_version(5)
    assert scene.store.asked == ["delta-3-4", "delta-4-5"]
    assert scene.is_at(5)


def test_a_merged_delta_of_an_older_run_is_skipped() -> None:
    scene = Scene()
    scene.delta(0, 2, kind=MERGED)
    scene.load_version(2)
    assert scene.store.asked == ["anchor-0", "delta-0-1", "delta-1-2"]


def test_of_all_ways_the_one_of_fewest_bytes_is_taken() -> None:
    links = [
        Link(NO_BASE, "a", 100, "anchor"),
        Link("a", "b", 10, "1"),
        Link("b", "c", 10, "2"),
        Link("a", "c", 15, "m"),
    ]

    def way(held: str, target: str) -> list[str] | None:
        found = find_cheapest_path(links, held, target)
        return None if found is None else [link.of for link in found]

    assert way(NO_BASE, "c") == ["anchor", "m"]
    assert way("b", "c") == ["2"]
    assert way("c", "c") == []
    assert way("c", "a") == ["anchor"]
    assert way("a", "x") is None
    assert way("a", NO_BASE) is None


def flipped(scene: Scene) -> None:
    data = bytearray(scene.store.objects["delta-3-4"])
    data[len(data) // 2] ^= 1
    scene.store.objects["delta-3-4"] = bytes(data)


def truncated(scene: Scene) -> None:
    scene.store.objects["delta-3-4"] = scene.store.objects["delta-3-4"][:-9]


def half_uploaded(scene: Scene) -> None:
    """Its record, too, was written of the half."""
    scene.delta(3, 4, scene.store.objects["delta-3-4"][:200])


def swapped(scene: Scene) -> None:
    objects = scene.store.objects
    objects["delta-3-4"], objects["delta-4-5"] = objects["delta-4-5"], objects["delta-3-4"]


def missing(scene: Scene) -> None:
    del scene.store.objects["delta-3-4"]


def of_another_base(scene: Scene) -> None:
    scene.delta(3, 4, encode_delta(weights(2), weights(4), Label("p", 0, 3, 4)))


def mislabelled(scene: Scene) -> None:
    """Right in all but the version that it says it makes."""
    scene.delta(3, 4, encode_delta(weights(3), weights(4), Label("p", 0, 3, 5)))


def of_an_older_epoch(scene: Scene) -> None:
    data = scene.store.objects["delta-3-4"]
    scene.delta(3, 4, data, epoch=1)


def of_other_contents(scene: Scene) -> None:
    """Hashes and label are right, what it does is not: only what comes out can tell."""
    hashes = (hash_weights(weights(3)), hash_weights(weights(4)))
    scene.delta(3, 4, encode_delta(weights(3), weights(7), Label("p", 0, 3, 4), hashes=hashes))


DAMAGE = (
    flipped,
    truncated,
    half_uploaded,
    swapped,
    missing,
    of_another_base,
    mislabelled,
    of_an_older_epoch,
    of_other_contents,
)


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_damaged_delta_is_refused_and_the_next_anchor_heals(damage: Callable[[Scene], None]) -> None:
    scene = Scene()
    scene.load_version(3)
    damage(scene)
    with pytest.raises(BadWeights, match=r"delta of version 4: .*the next anchor"):
        scene.load_version(4)
    with pytest.raises(BadWeights, match=r"no published deltas lead|the next anchor"):
        scene.load_version(5)
    assert scene.held.load_version(scene.events.values(), scene.events["delta-2-3"])["w"].data == weights(3)["w"].data
    scene.anchor(6)
    scene.load_version(8)
    assert scene.is_at(8)


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_damaged_delta_is_gone_round_where_there_is_another_way(damage: Callable[[Scene], None]) -> None:
    scene = Scene()
    scene.load_version(3)
    scene.delta(2, 5)
    damage(scene)
    scene.load_version(5)
    assert scene.is_at(5)


def test_a_copy_that_this_machine_altered_is_fetched_once_more() -> None:
    scene = Scene()
    scene.load_version(3)
    whole = scene.store.get
    asked: list[str] = []

    def altered_at_first(claim: ClaimCheck) -> memoryview:
        asked.append(claim.key)
        data = whole(claim)
        return data if asked.count(claim.key) > 1 else memoryview(b"x" + bytes(data[1:]))

    scene.store.get = altered_at_first  # type: ignore[method-assign]
    scene.load_version(4)
    assert asked == ["delta-3-4", "delta-3-4"]
    assert scene.store.dropped == ["delta-3-4"]


def test_an_object_that_was_refused_is_not_asked_for_again_by_who_asks_for_several_versions() -> None:
    scene = Scene()
    scene.load_version(3)
    missing(scene)
    refused: set[ClaimCheck] = set()
    scene.store.asked.clear()
    for version in (8, 7, 6, 5, 4):
        with pytest.raises(BadWeights):
            scene.held.load_version(scene.events.values(), scene.events[f"delta-{version - 1}-{version}"], refused)
    assert scene.store.asked == ["delta-3-4"]


def test_a_store_that_is_away_changes_nothing_and_when_it_is_back_all_goes_on() -> None:
    scene = Scene()
    scene.load_version(3)
    scene.store.away = True
    with pytest.raises(StoreUnavailable):
        scene.load_version(5)
    scene.store.away = False
    assert scene.is_at(3)
    scene.load_version(5)
    assert scene.is_at(5)


def test_an_anchor_that_is_not_what_its_record_says_is_refused_though_a_delta_leads_on_from_it() -> None:
    scene = Scene()
    scene.store.objects["anchor-0"] = b"torn"
    with pytest.raises(BadWeights, match="anchor of version 0"):
        scene.load_version(2)
    event = scene.events["anchor-0"]
    scene.put("anchor-0", encode_safetensors(weights(5)), event)
    with pytest.raises(BadWeights, match=r"but .* was recorded"):
        scene.load_version(2)


def cut_anchor(scene: Scene) -> WeightsPublished:
    """Make of anchor 0 two files and their index."""
    named = {
        name: Tensor("BF16", (2000,), weights(0)["w"].data[at : at + 4000]) for name, at in (("a", 0), ("b", 4000))
    }
    *shards, index = ((name, b"".join(pieces)) for name, pieces in files_of(named, "", shard_bytes=4000))
    event = replace(scene.events["anchor-0"], weights_hash=hash_weights(named))
    for name, data in shards:
        scene.store.objects[name] = data
    claims = [ClaimCheck("main", name, hashlib.sha256(data).hexdigest(), len(data)) for name, data in shards]
    found = [NamedObject(name, claim) for (name, _), claim in zip(shards, claims, strict=True)]
    scene.put("anchor-0", index[1], replace(event, shards=tuple(found)))
    return scene.events["anchor-0"]


def test_an_anchor_of_several_files_is_read_as_one() -> None:
    scene = Scene()
    event = cut_anchor(scene)
    found = scene.held.load_version([event], event)
    assert [bytes(found[name].data) for name in "ab"] == [
        bytes(weights(0)["w"].data)[at : at + 4000] for at in (0, 4000)
    ]
    assert scene.held.fetched_bytes == sum(len(scene.store.objects[name]) for name in scene.store.asked)
    assert len(scene.store.asked) == 3


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda shards: shards[:1], "file model-00002.* is missing in the objects of the anchor"),
        (lambda shards: (shards[0], replace(shards[1], claim=None)), "file model-00002.* is missing in the objects"),
        (
            lambda shards: (shards[0], replace(shards[1], claim=shards[0].claim)),
            "do not agree on whether .* holds tensor 'a'",
        ),
        (
            lambda shards: (*shards, replace(shards[1], name="../other")),
            "file ../other is missing in model.safetensors.index",
        ),
    ],
    ids=["one too few", "one without an object", "one twice", "one too many"],
)
def test_files_of_an_anchor_that_its_index_does_not_name_are_refused(
    change: Callable[[tuple[NamedObject, ...]], tuple[NamedObject, ...]], why: str
) -> None:
    scene = Scene()
    event = cut_anchor(scene)
    changed = replace(event, shards=change(event.shards))
    with pytest.raises(BadWeights, match=why):
        scene.held.load_version([changed], changed)
    assert set(scene.store.dropped) >= {"anchor-0", event.shards[0].name}, "the copies here may be what is wrong"


def test_an_object_that_is_whole_and_of_no_use_is_fetched_no_more() -> None:
    scene = Scene()
    wrong = encode_delta(weights(2), weights(3), Label("p", 0, 2, 4))
    scene.delta(2, 3, wrong)
    for _ in range(3):
        with pytest.raises(BadWeights, match="delta of version 3: delta-2-3 is not the delta that its record"):
            scene.load_version(3)
    assert scene.store.asked.count("delta-2-3") == 1
    assert scene.store.dropped == [], "others on this machine keep their copy"
    assert bytes(scene.load_version(2)["w"].data) == bytes(weights(2)["w"].data)


def test_an_event_whose_object_has_less_than_no_size_leads_nowhere() -> None:
    claim = ClaimCheck("main", "k", "", 10)
    event = WeightsPublished("r", "solver", kind=ANCHOR, weights_hash="a", weights=claim)
    assert link_of(event) is not None
    assert link_of(replace(event, weights=replace(claim, size_bytes=-1))) is None
