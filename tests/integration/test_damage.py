"""The damage table: whatever is wrong with an object of weights, the worker plays on with its last good version, says
why, and heals by itself; and the audit calls the object damaged while it is.

One worker takes all of it, row after row; what a row left behind, an anchor makes good before the next.
"""

from __future__ import annotations

import hashlib
import io
import re
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from forked import Forked
from made_records import tasks
from made_run import TINY_MODEL, make_run, tiny_recipe
from said import say
from stoppable import until
from tcp_proxy import TcpProxy

from headrace.envs.arithmetic import ALPHABET
from headrace.infra.kafka.clients import Outgoing
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.run.run import STORE_NAME, Run
from headrace.infra.store.object_store import ObjectStore, StoreAddress
from headrace.infra.weights.delta import encode_delta
from headrace.infra.weights.delta_header import Label
from headrace.infra.weights.paths import ANCHOR, DELTA
from headrace.infra.weights.tensor_file import encode_safetensors
from headrace.infra.weights.tensors import Tensor, hash_weights
from headrace.ops.audit.report import report
from headrace.ops.plain_json import plain
from headrace.schemas import codec
from headrace.schemas.headers import Stamp
from headrace.schemas.records import ClaimCheck, NamedObject, WeightsPublished, WorkerStatus
from headrace.trainers.learner.model import build_model, character_tokenizer, encode_model_files, round_to_bf16

Weights = dict[str, Tensor]
BEHIND = 3
"""Versions by which a worker is too far behind; some rows make it lack two."""


def play_in_haste(address: str) -> None:
    """Be a worker that says often how it is, and asks often for what it lacks."""
    from headrace.producers.rollout import weight_loader, worker, worker_status

    worker_status.STATUS_EVERY_S, weight_loader.LONGEST_PAUSE_S = 0.2, 1.0
    worker.main(address, None, "w", "", 4)


@dataclass(frozen=True)
class Version:
    """One that is published, or will be."""

    weights: Weights
    event: WeightsPublished
    data: bytes

    @property
    def number(self) -> int:
        return self.event.version


class Scene:
    """A run of which the test is the trainer. The run's store is behind a proxy; the trainer's way goes past it."""

    def __init__(self, run: Run, store: ObjectStore, between: TcpProxy, cache: Path) -> None:
        self.run, self.store, self.between, self.cache = run, store, between, cache
        self.played = 0
        tokenizer = character_tokenizer(ALPHABET)
        model = build_model(TINY_MODEL, tokenizer, seed=1)
        weights = round_to_bf16({name: tensor.detach() for name, tensor in model.named_parameters()})
        self.files = tuple(
            NamedObject(name, self.put(data, "files")) for name, data in encode_model_files(model, tokenizer).items()
        )
        self.newest = self.whole(0, weights)

    # -------------------------------------------------------------------------------------------------- the trainer's

    def put(self, data: bytes, kind: str = "weights") -> ClaimCheck:
        stored = self.store.put(data, kind)
        return ClaimCheck(STORE_NAME, stored.key, stored.sha256, stored.size_bytes)

    def whole(self, number: int, weights: Weights) -> Version:
        return self._version(number, weights, encode_safetensors(weights), files=self.files)

    def delta(self, on: Version, data: bytes | None = None, **changes: object) -> Version:
        """The next version, as what changed, or as the bytes that are given."""
        number, weights = on.number + 1, moved(on.weights, on.number)
        base = {"kind": DELTA, "base_version": on.number, "base_hash": on.event.weights_hash}
        made = data or encode_delta(on.weights, weights, Label("solver", 0, on.number, number))
        return self._version(number, weights, made, **{**base, **changes})

    def _version(self, number: int, weights: Weights, data: bytes, **more: object) -> Version:
        sha256 = hashlib.sha256(data).hexdigest()
        claim = ClaimCheck(STORE_NAME, self.store.key("weights", sha256), sha256, len(data))
        plain = {"kind": ANCHOR, "weights_hash": hash_weights(weights), "weights": claim}
        event = WeightsPublished(self.run.run_id, "solver", version=number, **{**plain, **more})  # type: ignore[arg-type]
        return Version(weights, event, data)

    def lay(self, version: Version, data: bytes | None = None) -> None:
        """Put a version's bytes where its event says they are, or other bytes."""
        content = version.data if data is None else data
        assert version.event.weights is not None
        bucket, key = self.store.address.bucket, version.event.weights.key
        self.store._bucket.client.put_object(bucket, key, io.BytesIO(content), len(content))

    def announce(self, version: Version) -> Version:
        topic = self.run.topics.weights("solver")
        say(self.run, Outgoing(topic, codec.encode(version.event), b"%d" % version.number, partition=0))
        self.newest = version
        return version

    def publish(self, version: Version) -> Version:
        self.lay(version)
        return self.announce(version)

    def publish_anchor(self) -> Version:
        """The next version, whole."""
        return self.publish(self.whole(self.newest.number + 1, moved(self.newest.weights, self.newest.number)))

    # --------------------------------------------------------------------------------------------------- the worker's

    def status(self) -> WorkerStatus:
        said = [message.value for message in read_all(self.run.connection, [self.run.topics.workers])]
        return codec.decode(said[-1], WorkerStatus) if said else WorkerStatus()

    def serves(self, version: Version) -> bool:
        """In good order."""
        status = self.status()
        return (status.versions.get("solver"), status.state, status.detail) == (version.number, "rolling", "")

    def play_one(self) -> tuple[int, int]:
        """Return the least and the greatest version that made a group that is asked for now."""
        number, self.played = self.played, self.played + 1
        say(self.run, *tasks(self.run, [number]))
        found: dict[int, Stamp] = {}

        def is_there() -> bool:
            groups = read_all(self.run.connection, [self.run.topics.trajectories("solver")])
            found.update((stamp.number, stamp) for stamp in (Stamp.from_headers(m.headers) for m in groups))
            return number in found

        until(is_there, "a group")
        return found[number].min_version, found[number].max_version

    # ---------------------------------------------------------------------------------------------------- the audit's

    def audit_says(self, row: Row) -> bool:
        """Whether it says what is wrong, of this version or of the store."""
        of = f"(version {row.version.number} of solver|the object store).*{row.audit}"
        found = plain(report(self.run, rests=False))
        return any(re.search(of, sentence) for sentence in [*found["problems"], found["unchecked"]])


def moved(weights: Weights, seed: int) -> Weights:
    """A few values change by one unit in the last place."""
    rng, found = np.random.default_rng(seed), {}
    for name, tensor in weights.items():
        items = np.frombuffer(tensor.data, "<u2").copy()
        items[rng.integers(0, items.size, 1 + items.size // 100)] ^= 1
        found[name] = Tensor(tensor.dtype, tensor.shape, memoryview(items.view(np.uint8)).cast("B"))
    return found


@pytest.fixture(scope="module")
def scene(bootstrap: str, store_address: StoreAddress, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    name, folder = f"damage-{uuid.uuid4().hex[:8]}", tmp_path_factory.mktemp("damage")
    own = replace(store_address, prefix=f"{name}/")
    with TcpProxy(own.endpoint) as between, ObjectStore(own) as store:
        with ObjectStore(replace(own, endpoint=between.address)) as theirs:
            trainer = {"steps": 1000, "max_staleness": BEHIND - 1}
            run = make_run(bootstrap, theirs, tiny_recipe(name, trainer=trainer, store={"cache_gib": 0.1}))
        made = Scene(run, store, between, folder / "cache")
        made.publish(made.newest)
        worker = Forked(play_in_haste, (str(run.address),), folder / "log", {"HEADRACE_CACHE": str(made.cache)})
        try:
            until(lambda: made.serves(made.newest), "the worker plays")
            yield made
        finally:
            worker.kill()
            worker.wait()
            sys.stderr.write((folder / "log").read_text())


@pytest.fixture(autouse=True)
def good(scene: Scene) -> Version:
    """The worker serves the newest version, whatever the last row has left."""
    if not scene.serves(scene.newest):
        scene.publish_anchor()
        until(lambda: scene.serves(scene.newest), "the worker is well")
    return scene.newest


# ------------------------------------------------------------------------------------------------------------ the rows


@dataclass(frozen=True)
class Row:
    """What became of a version."""

    version: Version
    why: str
    """Pattern of what the worker says."""
    audit: str
    """Pattern of what the audit says."""
    mend: Callable[[], object] | None = None
    """Puts right what is wrong with the object; without, only another version can heal."""


def truncated(scene: Scene, good: Version) -> Row:
    version = scene.delta(good)
    scene.lay(version, version.data[:-9])
    return Row(
        version,
        "has .* bytes, but the record that names it says",
        "bytes, but the record that names it says",
        lambda: scene.lay(version),
    )


def other_contents(scene: Scene, good: Version) -> Row:
    """Label and hashes are right, what it does is not: only what comes out can tell."""
    hashes = (good.event.weights_hash, hash_weights(moved(good.weights, good.number)))
    label = Label("solver", 0, good.number, good.number + 1)
    version = scene.delta(good, encode_delta(good.weights, moved(good.weights, 77), label, hashes=hashes))
    scene.lay(version)
    return Row(version, "the delta made weights with hash", "the delta made weights with hash")


def missing(scene: Scene, good: Version) -> Row:
    version = scene.delta(good)
    return Row(version, "does not exist", "does not exist", lambda: scene.lay(version))


def whole_of_other_weights(scene: Scene, good: Version) -> Row:
    other = encode_safetensors(moved(good.weights, 77))
    version = scene._version(good.number + 1, moved(good.weights, good.number), other)
    scene.lay(version)
    return Row(version, "but .* was recorded", "but the record says")


def store_away(scene: Scene, good: Version) -> Row:
    version = scene.delta(good)
    scene.lay(version)
    scene.between._turn("cut")
    return Row(
        version,
        "the store does not answer",
        "cannot be read, so no further objects are checked",
        lambda: scene.between._turn("pass"),
    )


ROWS = (other_contents, whole_of_other_weights, store_away)


@pytest.mark.parametrize(
    "damage",
    [truncated, missing, *(pytest.param(row, marks=pytest.mark.weights) for row in ROWS)],
    ids=lambda damage: damage.__name__,
)
def test_a_damaged_version_is_never_served_and_the_worker_says_why_and_heals(
    scene: Scene, good: Version, damage: Callable[[Scene, Version], Row]
) -> None:
    row = damage(scene, good)
    scene.announce(row.version)
    try:
        said = re.compile(f"version {row.version.number} is not loaded: .*{row.why}")
        until(lambda: bool(said.search(scene.status().detail)), f"the worker says {said.pattern}")
        assert scene.status().versions == {"solver": good.number}
        assert scene.play_one() == (good.number, good.number)
        until(lambda: scene.audit_says(row), f"the audit says {row.audit}")
    finally:
        (row.mend or scene.publish_anchor)()
    until(lambda: scene.serves(scene.newest), "the worker has healed")
    assert scene.play_one() == (scene.newest.number,) * 2
    if row.mend is not None:
        until(lambda: not scene.audit_says(row), f"the audit says {row.audit} no more")
