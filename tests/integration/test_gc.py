"""`headrace gc` on a real broker and store: what goes, what stays, and that the run is whole without it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, cast

import pytest
from made_run import but_for_checkpoints, make_run, tiny_recipe
from patience import PATIENCE_S
from rich.console import Console
from said import say

from headrace.app.views.gc_page import gc_page
from headrace.infra.environment import FAILPOINTS_VARIABLE
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Fenced, Outgoing
from headrace.infra.kafka.topic_admin import ensure_topics
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.run.revisions import plan_revision, write_revision
from headrace.infra.run.run import Run, join, parse_store, read_revisions
from headrace.infra.store import object_store
from headrace.infra.store.object_store import ObjectStore
from headrace.infra.weights.delta import encode_delta
from headrace.infra.weights.delta_header import Label
from headrace.infra.weights.tensor_file import encode_safetensors
from headrace.infra.weights.tensors import Tensor, hash_weights
from headrace.ops.audit.report import report
from headrace.ops.figures.weights_history import weights_history
from headrace.ops.plain_json import plain
from headrace.ops.retention import collector
from headrace.ops.retention.collector import (
    Collected,
    CollectionRequest,
    SharedPrefix,
    TooSlow,
    collect,
    list_runs_beside,
)
from headrace.ops.weights_export import export
from headrace.producers.engines.contract import Engine, EngineStats
from headrace.producers.rollout.pauses import Pauses
from headrace.producers.rollout.run_follower import RunFollower
from headrace.producers.rollout.weight_loader import WeightLoader
from headrace.schemas import codec
from headrace.schemas.records import (
    BatchTrained,
    CheckpointPointer,
    ClaimCheck,
    DeadLetter,
    NamedObject,
    Snapshot,
    TrajectoryGroup,
    WeightsPublished,
)
from headrace.schemas.topics import checkpoint_key
from headrace.trainers.versions.history import read_history

VERSIONS, ANCHOR_EVERY, CHECKPOINT_EVERY = 80, 8, 20
"""The newest 64 are 16 to 79, and 16 is an anchor; checkpoints are those of 0, 20, 40, 60 and 79."""
NO_AGE = CollectionRequest(older_than=timedelta(0))
COLLECT = """
import sys
from datetime import timedelta
from headrace.ops.retention.collector import CollectionRequest, collect
from headrace.infra.kafka.run_address import parse_run
from headrace.infra.run.run import join
collect(join(parse_run(sys.argv[1])), CollectionRequest(keep_checkpoints=2, older_than=timedelta(0)), rests=True)
"""


@dataclass
class Made:
    """A run that trained all its versions, with objects of every kind."""

    run: Run
    records: list[Outgoing] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, data: bytes, kind: str, suffix: str = "") -> ClaimCheck:
        claim = self.run.put(data, kind, suffix)
        self.keys[name] = claim.key
        return claim

    def say_version(self, version: int) -> None:
        run, topics = self.run, self.run.topics
        held, before = weights_of(version), weights_of(max(0, version - 1))
        is_anchor = version % ANCHOR_EVERY == 0
        result, base = hash_weights(held), hash_weights(before)
        if is_anchor:
            data, suffix = encode_safetensors(held), ".safetensors"
        else:
            label = Label("solver", 0, version - 1, version)
            data, suffix = encode_delta(before, held, label, hashes=(base, result)), ".delta"
        beside = self.put("config", b"{}", "files")
        event = WeightsPublished(
            run_id=run.run_id,
            policy="solver",
            version=version,
            kind="anchor" if is_anchor else "delta",
            base_version=-1 if is_anchor else version - 1,
            base_hash="" if is_anchor else base,
            weights_hash=result,
            weights=self.put(f"weights {version}", data, "weights", suffix),
            files=tuple(NamedObject(name, beside) for name in ("config.json", "tokenizer.json")) if is_anchor else (),
            anchor_offset=-1 if is_anchor else version // ANCHOR_EVERY * ANCHOR_EVERY,
        )
        self.records.append(Outgoing(topics.weights("solver"), codec.encode(event), partition=0))
        if version:
            batch = BatchTrained(run.run_id, "solver", version=version, base_hash=base, weights_hash=result)
            self.records.append(Outgoing(topics.batches("solver"), codec.encode(batch), partition=0))
        if version % CHECKPOINT_EVERY == 0 or version == VERSIONS - 1:
            claim = self.put(f"checkpoint {version}", b"checkpoint %d" % version, "checkpoints")
            pointer = CheckpointPointer(run.run_id, "solver", version=version, checkpoint=claim, weights_hash=result)
            key = checkpoint_key("solver", version)
            self.records.append(Outgoing(topics.state, codec.encode(pointer), key, partition=0))

    def there(self) -> set[str]:
        """Names of the objects that are in the store."""
        keys = {one.key for one in self.run.store.list_objects()}
        return {name for name, key in self.keys.items() if key in keys}


def weights_of(version: int) -> dict[str, Tensor]:
    return {"w": Tensor("BF16", (8,), memoryview(version.to_bytes(2, "little") + bytes(14)))}


@pytest.fixture
def made(bootstrap: str, store: ObjectStore, run_name: str) -> Made:
    """Three versions, of which nothing goes."""
    return make(bootstrap, store, run_name, 3)


def make(bootstrap: str, store: ObjectStore, run_name: str, versions: int) -> Made:
    run = make_run(bootstrap, store, tiny_recipe(run_name))
    one = Made(run)
    for version in range(versions):
        one.say_version(version)
    letter = DeadLetter(
        run.run_id,
        "curate",
        reason="missing_object",
        value=codec.encode(TrajectoryGroup(run.run_id, claim=one.put("group of a letter", b"a group", "groups"))),
    )
    snapshot = Snapshot(run.run_id, "feed", body=json.dumps({"next": {}}).encode())
    over = replace(read_revisions(run.address)[-1], ended="steps", created_ms=0)
    say(
        run,
        *one.records,
        Outgoing(run.topics.dead_letters, codec.encode(letter), partition=0),
        Outgoing(run.topics.state, codec.encode(snapshot), b"feed", partition=0),
        Outgoing(run.topics.recipe, codec.encode(over), partition=0),
    )
    one.put("left by a crash", b"an upload that no transaction followed", "weights", ".delta")
    return one


def named(what: str, versions: range) -> set[str]:
    return {f"{what} {version}" for version in versions}


def page_of(found: Collected) -> str:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(gc_page(found))
    return captured.get()


def killed_at(point: str, run: Run, folder: Path) -> int:
    """Collect in a process of its own, which a failpoint kills; return its exit code."""
    (folder / point).write_text("kill")
    command = [sys.executable, "-c", COLLECT, str(run.address)]
    return subprocess.run(command, check=False, timeout=300, env={FAILPOINTS_VARIABLE: str(folder)}).returncode


@dataclass
class Serving:
    """As much of an engine as a follower needs."""

    loaded: dict[str, int] = field(default_factory=dict)
    weights: Mapping[str, Tensor] = field(default_factory=dict)

    def load(self, policy: str, version: int, weights: Mapping[str, Tensor]) -> None:
        self.loaded[policy], self.weights = version, dict(weights)

    def versions(self) -> dict[str, int]:
        return self.loaded

    def stats(self) -> EngineStats:
        return EngineStats(0, 0, 0, 0, 0, 0.0)


def joined(run: Run) -> Serving:
    """What a worker serves that joins now."""
    engine = Serving()
    follower = RunFollower(run, ("solver",), "joiner")
    follower.use_loader(WeightLoader(cast("Engine", engine), follower.published, run.weights_cache, Pauses()))
    follower.start()
    end = time.monotonic() + PATIENCE_S
    while engine.loaded.get("solver") != VERSIONS - 1 and follower.is_alive() and time.monotonic() < end:
        time.sleep(0.05)
    follower.stop()
    return engine


@pytest.mark.weights
def test_what_nothing_needs_goes_and_the_run_is_whole_without_it(
    bootstrap: str, store: ObjectStore, run_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(bootstrap, store, run_name, VERSIONS)
    everything = set(made.keys)
    order = replace(NO_AGE, keep_checkpoints=2)
    assert but_for_checkpoints(plain(report(made.run, rests=True))["problems"]) == []

    would = collect(made.run, replace(order, dry_run=True), rests=True)
    said = plain(would)
    rows = sorted((row["kind"], row["objects"]) for row in said["collected"])
    assert rows == [("checkpoints", 2), ("weights", 1), ("weights", 15)]
    assert said["retired"] == [
        {"policy": "solver", "what": "weights", "versions": [[1, 15]]},
        {"policy": "solver", "what": "checkpoints", "versions": [[20, 40]]},
    ]
    assert made.there() == everything, "a dry run deletes nothing"
    for words in ("would be deleted", "no record names it", "weights of solver, versions 1 to 15: would be marked"):
        assert words in page_of(would)
    done = collect(made.run, CollectionRequest(keep_checkpoints=2))
    assert plain(done)["collected"] == [], "all of it is younger than a day"
    assert made.there() == everything

    def another_begins(run: Run) -> list[str]:
        TransactionalWriter(run.connection, f"{run.address.run}.gc").close()
        return list_runs_beside(run)

    with monkeypatch.context() as patched:
        patched.setattr(collector, "list_runs_beside", another_begins)
        with pytest.raises(Fenced):
            collect(made.run, order, rests=True)
    assert (made.there(), read_history(made.run, "solver").retired) == (everything, ())

    assert killed_at("gc.committed", made.run, tmp_path) == -signal.SIGKILL
    assert made.there() == everything, "it was killed between the word and the deletion"
    assert but_for_checkpoints(plain(report(made.run, rests=True))["problems"]) == []
    assert killed_at("gc.deleted", made.run, tmp_path) == -signal.SIGKILL
    assert 0 < len(everything) - len(made.there()) < 18
    assert but_for_checkpoints(plain(report(made.run, rests=True))["problems"]) == []
    done = plain(collect(made.run, NO_AGE, rests=True))
    assert done["retired"] == [], "it was said before"
    gone = {"left by a crash"} | named("weights", range(1, 16)) | {"checkpoint 20", "checkpoint 40"}
    assert made.there() == everything - gone
    assert plain(collect(made.run, NO_AGE, rests=True))["collected"] == []

    assert but_for_checkpoints(plain(report(made.run, rests=True, deep=True))["problems"]) == []
    engine = joined(made.run)
    assert (engine.loaded, engine.weights) == ({"solver": VERSIONS - 1}, weights_of(VERSIONS - 1))
    history = read_history(made.run, "solver")
    assert (sorted(history.checkpoints), history.retired) == ([0, 60, 79], (20, 40))
    versions = plain(weights_history(made.run, "solver"))["versions"]
    assert [one["version"] for one in versions if one["retired"]] == list(range(1, 16))
    with pytest.raises(UsageError, match=r"gc` has retired .* version 8 .*: choose .* versions 0, 16 to 79"):
        export(made.run, "solver", 8, tmp_path / "eight")
    export(made.run, "solver", 0, tmp_path / "zero")

    for name in ("weights 16", "checkpoint 60"):
        made.run.store.delete(made.keys[name])
    missing = but_for_checkpoints(plain(report(made.run, rests=True))["problems"])
    assert len(missing) == 3
    for what in ("version 16 of solver", "before the next anchor", "checkpoint of version 60"):
        assert any(what in problem for problem in missing)


@pytest.mark.weights
def test_objects_of_a_transaction_that_is_open_stay(made: Made) -> None:
    """What it hides is waited for; what comes later is young."""
    patient = replace(made.run.connection, client={**made.run.connection.client, "transaction.timeout.ms": "60000"})
    writer = TransactionalWriter(patient, f"{made.run.address.run}.train.solver")
    claim = made.put("on its way", b"a large group", "groups")
    group = codec.encode(TrajectoryGroup(made.run.run_id, claim=claim))
    writer.begin()
    writer.produce([Outgoing(made.run.topics.trajectories("solver"), group, partition=0)])
    writer.flush()
    process = subprocess.Popen([sys.executable, "-c", COLLECT, str(made.run.address)])
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(4)  # it goes on waiting; the transaction may be open for a minute
    assert made.there() == set(made.keys)
    writer.commit()
    writer.close()
    assert process.wait(120) == 0
    assert "on its way" in made.there()
    assert "left by a crash" not in made.there()


@pytest.mark.weights
def test_of_a_run_that_goes_on_nothing_younger_than_a_day_is_taken(made: Made) -> None:
    with pytest.raises(UsageError, match="--data"):
        collect(made.run, NO_AGE)


@pytest.mark.weights
def test_what_was_written_anew_since_the_listing_stays(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that comes back makes the same bytes again, while it is not known yet that it will name them."""
    age, listing = timedelta(hours=1), made.run.store.list_objects
    monkeypatch.setattr(
        made.run.store, "list_objects", lambda: [replace(one, modified=one.modified - 2 * age) for one in listing()]
    )
    done = plain(collect(made.run, CollectionRequest(older_than=age), rests=True))
    assert (done["spared"], [row["objects"] for row in done["collected"]]) == (1, [1])
    assert made.there() == set(made.keys)


@pytest.mark.weights
def test_no_clock_but_the_stores_says_how_old_an_object_is(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.now(tz) + timedelta(days=3)

    for module in (collector, object_store):
        monkeypatch.setattr(module, "datetime", Ahead)
    done = plain(collect(made.run, CollectionRequest(older_than=timedelta(hours=1)), rests=True))
    assert (done["collected"], done["spared"], made.there()) == ([], 0, set(made.keys))


@pytest.mark.weights
def test_nothing_is_deleted_long_after_it_was_listed(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that was suspended: what is named by now was put anew so long ago that it looks old."""
    clock = iter([0.0])
    monkeypatch.setattr(collector, "seconds_awake_or_asleep", lambda: next(clock, 13 * 3600.0))
    with pytest.raises(TooSlow, match="not all objects could be deleted within 12 h"):
        collect(made.run, NO_AGE, rests=True)
    assert made.there() == set(made.keys)


@pytest.mark.weights
def test_a_run_whose_objects_may_lie_among_those_of_other_clusters_is_left_alone(made: Made) -> None:
    """Of a store that the recipe names, only what lies under the run's own id is its own for sure."""
    shared = made.run.recipe.model_copy(update={"store": made.run.recipe.store.model_copy(update={"endpoint": "s3:9"})})
    run = replace(made.run, revisions=(shared,))
    with pytest.raises(SharedPrefix, match="other clusters"):
        collect(run, NO_AGE, rests=True)


@pytest.mark.weights
def test_an_experiment_beside_the_run_keeps_its_objects(made: Made, run_name: str) -> None:
    """Its objects lie among its source's: they are listed, and named by records of another run only."""
    beside = make_run(made.run.connection.bootstrap, made.run.store, tiny_recipe(f"{run_name[:50]}-2"), "run-2")
    claim = made.put("of the experiment", b"weights of an experiment", "weights")
    event = WeightsPublished("run-2", "solver", version=0, weights_hash="0", weights=claim)
    say(beside, Outgoing(beside.topics.weights("solver"), codec.encode(event), partition=0))
    collect(made.run, NO_AGE, rests=True)
    assert "of the experiment" in made.there()
    assert "left by a crash" not in made.there()


@pytest.mark.weights
def test_a_run_begins_under_a_prefix_of_its_own_and_keeps_it(made: Made, run_name: str) -> None:
    recipe = tiny_recipe(f"{run_name[:50]}-3")
    address = replace(made.run.address, run=recipe.name)
    bucket = replace(made.run.store_address, prefix="", keys_file="/of/the/store.json")
    ensure_topics(address.connection, recipe.topics.all(("sums",), ("solver",), 4))
    first = plan_revision(address, recipe, bucket, new_recipe=False)
    assert first is not None
    assert parse_store(first).prefix == f"{first.run_id}/"
    write_revision(address.connection, recipe.topics.recipe, first)
    assert plan_revision(address, recipe, bucket, new_recipe=False) is None, "nothing has changed"
    moved = plan_revision(address, recipe, replace(bucket, endpoint="s3:1"), new_recipe=False)
    assert moved is not None
    assert parse_store(moved).prefix == f"{first.run_id}/"
    assert join(address).store_address.prefix == f"{first.run_id}/"
