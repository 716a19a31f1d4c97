"""The audit on a real broker and store: a run made by hand that is whole, and the same run with one thing wrong."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from made_run import make_run, tiny_recipe
from said import say

from headrace.infra.kafka.clients import Outgoing, open_consumer
from headrace.infra.kafka.topic_offsets import fetch_end_offsets
from headrace.infra.kafka.topic_reader import find_start_positions
from headrace.infra.run.run import Run, read_revisions
from headrace.infra.store.object_store import ObjectStore
from headrace.infra.weights.delta import encode_delta
from headrace.infra.weights.delta_header import Label
from headrace.infra.weights.tensor_file import encode_safetensors
from headrace.infra.weights.tensors import Tensor, hash_weights
from headrace.ops.audit.report import report
from headrace.ops.plain_json import plain
from headrace.schemas import codec
from headrace.schemas.headers import Stamp, outcome_stamp
from headrace.schemas.records import (
    BatchTrained,
    CheckpointPointer,
    ClaimCheck,
    CuratedGroup,
    GroupUse,
    NamedObject,
    Outcome,
    Position,
    Snapshot,
    Task,
    Trajectory,
    TrajectoryGroup,
    WeightsPublished,
)
from headrace.schemas.topics import checkpoint_key

TRAINED = ((0, 1, 2), (3, 4, 5))
"""Groups of version 1 and of version 2."""
READ = ((1, 1, 1, 0), (2, 2, 1, 1))
"""How far the trainer had read each partition then."""
DROPPED = 6
END = 7
AS_DELTA = 2
"""The version that is published as what changed."""


@dataclass
class Made:
    """A whole run as records, before they are produced: a test takes one away, adds or changes one."""

    run: Run
    records: dict[str, Outgoing] = field(default_factory=dict)
    objects: dict[str, ClaimCheck] = field(default_factory=dict)

    def say(self, name: str, topic: str, record: Any, stamp: Stamp | None = None, **more: Any) -> None:
        headers = stamp.to_headers() if stamp else []
        key = more.pop("key", stamp.key if stamp else b"")
        self.records[name] = Outgoing(topic, codec.encode(record), key, headers, **{"partition": 0, **more})

    def produce(self) -> None:
        say(self.run, *self.records.values())
        self.commit()

    def commit(self, **lag: int) -> None:
        """Commit what workers and curators have read: all, less some records."""
        topics = self.run.topics
        groups = {topics.rollout_group("sums"): topics.tasks("sums")}
        groups[topics.curate_group("solver")] = topics.trajectories("solver")
        for group, topic in groups.items():
            ends = fetch_end_offsets(self.run.connection, find_start_positions(self.run.connection, [topic]))
            consumer = open_consumer(self.run.connection, "made", group)
            behind = lag.get("of_curator", 0) if "trajectories" in topic else 0
            offsets = [TopicPartition(t, p, end - behind) for (t, p), end in ends.items()]
            consumer.commit(offsets=offsets, asynchronous=False)
            consumer.close()

    def group(self, number: int, **more: Any) -> TrajectoryGroup:
        members = tuple(Trajectory(f"sums:{number}:{i}", float(i)) for i in range(2))
        common = {"run_id": self.run.run_id, "stream": "sums", "number": number, "policy": "solver"}
        return TrajectoryGroup(**{**common, "n_asked": 2, "trajectories": members, **more})

    def curated(self, number: int, group: TrajectoryGroup) -> CuratedGroup:
        value = codec.encode(group)
        return CuratedGroup(
            self.run.run_id,
            "sums",
            number,
            group=value,
            deadline_version=1,
            min_version=-1,
            kept=(0, 1),
            rewards=(0.0, 1.0),
        )

    def say_group(self, number: int, group: TrajectoryGroup | None = None) -> None:
        topics, group = self.run.topics, group or self.group(number)
        stamp = Stamp(self.run.run_id, "sums", number, policy="solver")
        of_partition = {"partition": number % 4}
        self.say(f"produced {number}", topics.trajectories("solver"), group, stamp, **of_partition)
        if number != DROPPED:
            self.say(f"curated {number}", topics.curated("solver"), self.curated(number, group), stamp, **of_partition)

    def say_version(self, version: int, groups: tuple[int, ...]) -> None:
        topics = self.run.topics
        tensor = Tensor("BF16", (4, 2), memoryview(bytes([version] * 16)))
        before = Tensor("BF16", (4, 2), memoryview(bytes([max(version - 1, 0)] * 16)))
        name, run_id = f"weights {version}", self.run.run_id
        data = encode_safetensors({"w": tensor})
        if version == AS_DELTA:
            data = encode_delta({"w": before}, {"w": tensor}, Label("solver", 0, version - 1, version))
        self.objects[name] = self.run.put(data, "weights")
        self.objects[f"checkpoint {version}"] = self.run.put(b"checkpoint %d" % version, "checkpoints")
        self.objects["file"] = self.run.put(b"{}", "files")
        files = tuple(NamedObject(name, self.objects["file"]) for name in ("config.json", "tokenizer.json"))
        result = hash_weights({"w": tensor})
        event = WeightsPublished(
            run_id,
            "solver",
            version=version,
            weights_hash=result,
            weights=self.objects[name],
            files=files,
            final=version == len(TRAINED),
        )
        if version == AS_DELTA:
            base = hash_weights({"w": before})
            event = replace(event, kind="delta", base_version=version - 1, base_hash=base, files=())
        self.say(name, topics.weights("solver"), event)
        claim = self.objects[f"checkpoint {version}"]
        pointer = CheckpointPointer(run_id, "solver", version=version, checkpoint=claim, weights_hash=result)
        self.say(f"checkpoint {version}", topics.state, pointer, key=checkpoint_key("solver", version))
        if version:
            uses = tuple(GroupUse("sums", number) for number in groups)
            base = hash_weights({"w": before})
            batch = BatchTrained(run_id, "solver", version=version, groups=uses, base_hash=base, weights_hash=result)
            batch = replace(batch, positions=tuple(Position(p, READ[version - 1][p]) for p in range(4)))
            self.say(f"batch {version}", topics.batches("solver"), batch)


@pytest.fixture
def made(bootstrap: str, store: ObjectStore, run_name: str) -> Made:
    recipe = tiny_recipe(run_name)
    recipe = recipe.model_copy(update={"trainer": recipe.trainer.model_copy(update={"steps": len(TRAINED)})})
    run = make_run(bootstrap, store, recipe)
    one = Made(run)
    for number in range(END):
        task = Task(run_id=run.run_id, stream="sums", number=number, workflow="sums")
        one.say(f"task {number}", run.topics.tasks("sums"), task, Stamp(run.run_id, "sums", number))
        one.say_group(number)
        kept = number != DROPPED
        outcome = Outcome(
            run.run_id,
            "sums",
            number,
            policy="solver",
            verdict="kept" if kept else "dropped",
            reason="" if kept else "zero_variance",
            component="curate",
        )
        one.say(f"outcome {number}", run.topics.outcomes("solver"), outcome, outcome_stamp(outcome))
    for version, groups in enumerate(((), *TRAINED)):
        one.say_version(version, groups)
    snapshot = Snapshot(run_id=run.run_id, component="feed", body=json.dumps({"next": {"sums": END}}).encode())
    one.say("feeder", run.topics.state, snapshot, key=b"feed")
    over = replace(read_revisions(run.address)[-1], ended="steps", created_ms=0)
    one.say("ended", run.topics.recipe, over)
    return one


def problems(made: Made, **more: Any) -> list[str]:
    found = plain(report(made.run, rests=True, **more))
    assert found["ok"] == (not found["problems"])
    problems: list[str] = found["problems"]
    return problems


def headrace_audit(run: Run, *words: str) -> tuple[int, dict[str, Any], str]:
    command = [sys.executable, "-m", "headrace", "audit", "--run", str(run.address), "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, json.loads(done.stdout), done.stderr


def test_a_whole_run_closes(made: Made) -> None:
    made.produce()
    code, found, said = headrace_audit(made.run, "--deep")
    assert code == 0, (found["problems"], said)
    assert found["problems"] == []
    assert found["tasks"] == {"issued": 7, "concluded": 7}
    assert found["groups"] == {
        "produced": 7,
        "duplicates": 0,
        "kept": 6,
        "trained": 6,
        "discarded": 1,
        "dead": 0,
        "in_flight": 0,
    }
    assert (found["lost"], found["doubled"], found["weights_chain_ok"], found["store"]) == (0, 0, True, "checked")
    assert found["policies"]["solver"]["discarded"] == {"zero_variance": 1}
    assert found["objects"] == 3 + 3 + 1
    assert found["records"] == len(made.records) - 1
    assert found["deep"]["records"] == 7 + 6
    assert "\r" not in said, "progress is for terminals"


def test_an_outcome_that_is_missing_and_a_batch_that_is_there_twice_are_named_with_their_records(made: Made) -> None:
    del made.records[f"outcome {DROPPED}"]
    made.records["again"] = made.records["batch 2"]
    made.produce()
    code, found, _ = headrace_audit(made.run)
    run = made.run.address.run
    assert code == 1
    assert (found["ok"], found["lost"], found["doubled"], found["weights_chain_ok"]) == (False, 1, 3, False)
    assert [problem for problem in found["problems"] if "sums:3" in problem] == [
        (
            f"sums:3 of solver was trained more than once ({run}.batches.solver[0]@1 version 2, "
            f"{run}.batches.solver[0]@2 version 2, {run}.outcomes.solver[0]@3 kept, {run}.curated.solver[3]@0, "
            f"{run}.trajectories.solver[3]@0, "
            f"{run}.tasks.sums[0]@3)"
        )
    ]
    assert [problem for problem in found["problems"] if "sums:6" in problem] == [
        (
            f"sums:6 of solver was produced, but has no outcome and no dead letter ({run}.trajectories.solver[2]@1, "
            f"{run}.tasks.sums[0]@6)"
        )
    ]


def no_object(made: Made, store: ObjectStore) -> str:
    claim = made.objects["weights 1"]
    store._bucket.client.remove_object(bucket_name=store.address.bucket, object_name=claim.key)
    return f"version 1 of solver, announced by {made.run.topics.weights('solver')}[0]@1: {claim.key} does not exist"


def flipped_byte(made: Made, store: ObjectStore) -> str:
    claim = made.objects["weights 2"]
    data = bytearray(store.get(claim.key, claim.sha256, claim.size_bytes))
    data[-1] ^= 1
    store._bucket.client.put_object(store.address.bucket, claim.key, io.BytesIO(bytes(data)), len(data))
    return f"version 2 of solver, announced by {made.run.topics.weights('solver')}[0]@2: {claim.key} has sha256"


@pytest.mark.tools
@pytest.mark.parametrize("flaw", [no_object, flipped_byte])
def test_an_object_that_is_not_what_its_record_promises_breaks_the_chain(
    made: Made, store: ObjectStore, flaw: Callable[[Made, ObjectStore], str]
) -> None:
    made.produce()
    wanted = flaw(made, store)
    code, found, _ = headrace_audit(made.run)
    assert (code, found["ok"], found["weights_chain_ok"], found["lost"], found["doubled"]) == (1, False, False, 0, 0)
    assert any(wanted in _without_host(problem, store) for problem in found["problems"]), found["problems"]
    left_out = plain(report(made.run, use_store=False))
    assert (left_out["ok"], left_out["store"], left_out["objects"]) == (True, "left out", 0)


def _without_host(problem: str, store: ObjectStore) -> str:
    return problem.replace(f"{store.address.endpoint}/{store.address.bucket}/", "")


@pytest.mark.tools
def test_objects_that_the_record_of_another_run_names_are_not_looked_at(made: Made) -> None:
    nowhere = ClaimCheck("main", f"{made.run.store_address.prefix}weights/nowhere", "00", 2)
    made.say(
        "foreign", made.run.topics.weights("solver"), WeightsPublished("other", "solver", version=3, weights=nowhere)
    )
    pointer = CheckpointPointer("other", "solver", version=3, checkpoint=nowhere)
    made.say("foreign pointer", made.run.topics.state, pointer, key=checkpoint_key("solver", 3))
    made.produce()
    assert problems(made) == []


@pytest.mark.tools
def test_a_store_that_does_not_answer_is_neither_a_problem_of_the_run_nor_a_crash(made: Made) -> None:
    made.produce()
    nowhere = replace(made.run.store_address, endpoint="127.0.0.1:1")
    found = plain(report(replace(made.run, store_address=nowhere), rests=True))
    assert (found["ok"], found["weights_chain_ok"], found["store"]) == (False, True, "away")
    assert found["problems"] == []
    told, _, _ = found["unchecked"].partition(" (")
    assert told == "the object store cannot be read, so no further objects are checked"
