"""What `headrace lineage` and `headrace inspect` find on real topics, of groups in every state."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from made_run import make_run, tiny_recipe
from said import say
from tokenizers import Tokenizer, models
from tokenizers.decoders import Fuse

from headrace.infra.embedded.servers import await_leaders
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Message, Outgoing
from headrace.infra.kafka.dead_letters import build_dead_letter
from headrace.infra.kafka.decoding import Refusal
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import ObjectStore
from headrace.ledger.follow import ask_ledger
from headrace.ops.lineage.group_fate import GroupLineage, group_lineage, look_up_group, parse_group
from headrace.ops.lineage.inspection import step, trajectory
from headrace.ops.lineage.lineage import version_lineage
from headrace.schemas import codec
from headrace.schemas.headers import Stamp, task_key
from headrace.schemas.records import (
    BatchTrained,
    CuratedGroup,
    DeadLetter,
    Failure,
    GroupUse,
    NamedObject,
    Outcome,
    Sequence,
    Snapshot,
    Span,
    Task,
    Trajectory,
    TrajectoryGroup,
    WeightsPublished,
)

ISSUED = 40
TOKENS = {"2": 0, "+": 1, "=": 2, "4": 3, "5": 4, "[e]": 5}


class Log:
    """Writes what components would have written, each record at the next offset of its partition."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._next: dict[tuple[str, int], int] = {}
        state = Snapshot(run_id=run.run_id, component="feed", body=json.dumps({"next": {"sums": ISSUED}}).encode())
        self.write(Outgoing(run.topics.state, codec.encode(state), b"feed", partition=0))

    def write(self, record: Outgoing) -> int:
        partition_id = (record.topic, record.partition)
        say(self.run, record)
        self._next[partition_id] = self._next.get(partition_id, 0) + 1
        return self._next[partition_id] - 1

    def task(self, number: int) -> None:
        task = Task(run_id=self.run.run_id, stream="sums", number=number)
        self.write(Outgoing(self.run.topics.tasks("sums"), codec.encode(task), task_key("sums", number), partition=0))

    def stamp(self, number: int) -> Stamp:
        return Stamp(self.run.run_id, "sums", number, policy="solver", min_version=0, max_version=1, head_version=1)

    def group(self, number: int, worker: str = "w-1", value: bytes = b"") -> tuple[int, bytes]:
        """A worker's record; returns its offset and value."""
        value = value or codec.encode(group(self.run.run_id, number, worker))
        topic, stamp = self.run.topics.trajectories("solver"), self.stamp(number)
        return self.write(Outgoing(topic, value, stamp.key, stamp.to_headers(), number % 4)), value

    def outcome(self, number: int, verdict: str = "kept", reason: str = "", component: str = "curate") -> None:
        record = Outcome(
            run_id=self.run.run_id, stream="sums", number=number, policy="solver", verdict=verdict, reason=reason,
            component=component, rewards=(1.0, 0.0),
        )  # fmt: skip
        topic, stamp = self.run.topics.outcomes("solver"), self.stamp(number)
        self.write(Outgoing(topic, codec.encode(record), stamp.key, stamp.to_headers(), number % 4))

    def keep(self, number: int, value: bytes) -> GroupUse:
        """The curator's records of a kept group; returns its use, as a batch names it."""
        self.outcome(number)
        curated = CuratedGroup(
            run_id=self.run.run_id, stream="sums", number=number, group=value, kept=(0, 1), rewards=(1.0, 0.0)
        )
        topic, stamp = self.run.topics.curated("solver"), self.stamp(number)
        offset = self.write(Outgoing(topic, codec.encode(curated), stamp.key, stamp.to_headers(), number % 4))
        return GroupUse("sums", number, 0, number % 4, offset)

    def batch(self, version: int, *uses: GroupUse) -> None:
        record = BatchTrained(
            run_id=self.run.run_id, policy="solver", version=version, groups=uses, base_hash="base",
            weights_hash=f"hash-{version}", metrics={"loss": 0.5},
        )  # fmt: skip
        self.write(Outgoing(self.run.topics.batches("solver"), codec.encode(record), partition=0))

    def weights(self, version: int) -> None:
        tokenizer = Tokenizer(models.WordLevel(TOKENS, unk_token="2"))
        tokenizer.decoder = Fuse()
        event = WeightsPublished(
            run_id=self.run.run_id, policy="solver", version=version, weights_hash=f"hash-{version}",
            weights=self.run.put(f"weights {version}".encode(), "weights"),
            files=(NamedObject("tokenizer.json", self.run.put(tokenizer.to_str().encode(), "files")),),
        )  # fmt: skip
        self.write(Outgoing(self.run.topics.weights("solver"), codec.encode(event), partition=0))

    def letter(self, number: int, offset: int, reason: str = "undecodable", redrives: int = -1) -> int:
        at = Message(
            self.run.topics.trajectories("solver"), number % 4, offset, b"", b"bad", self.stamp(number).to_headers()
        )
        record = build_dead_letter(self.run.topics, self.run.run_id, "curate.solver", at, Refusal(reason, "why"))
        letter = replace(codec.decode(record.value, DeadLetter), redrives=redrives)
        return self.write(replace(record, value=codec.encode(letter), partition=0))

    def fate(self, number: int) -> GroupLineage:
        return ask_ledger(self.run, None, lambda one: group_lineage(self.run, one, "solver", "sums", number))


def group(run_id: str, number: int, worker: str) -> TrajectoryGroup:
    """Two members, one of them right, tokens of versions 0 and 1; a third failed."""

    def member(sample: int, reward: float, answer: int) -> Trajectory:
        sequence = Sequence(
            ids=np.array([0, 1, 0, 2, answer], np.int32),
            logprobs=np.array([0, 0, 0, -0.25, -0.5], np.float32),
            version_runs=np.array([-1, 3, 0, 1, 1, 1], np.int32),
            spans=(Span("prompt", 3), Span("generated", 2, finish_reason="stop")),
        )
        return Trajectory(f"sums:{number}:{sample}", reward, {"right": reward}, (sequence,))

    return TrajectoryGroup(
        run_id=run_id, stream="sums", number=number, policy="solver", task_id=f"sum:{number}", worker=worker,
        trajectories=(member(0, 1.0, 3), member(1, 0.0, 4)), failures=(Failure(2, "time_limit"),), n_asked=3,
    )  # fmt: skip


@pytest.fixture
def written(bootstrap: str, store: ObjectStore, run_name: str) -> Log:
    run = make_run(bootstrap, store, tiny_recipe(run_name))
    await_leaders(run.connection)
    return Log(run)


def test_a_version_names_its_groups_in_order_and_what_it_is_made_of(written: Log) -> None:
    uses = [written.keep(number, written.group(number, f"w-{number}")[1]) for number in range(6)]
    written.weights(0)
    written.batch(1, uses[4], uses[0])
    written.weights(1)

    found = version_lineage(written.run, "solver", 1)

    assert [made.number for made in found.groups] == [4, 0]
    assert [made.worker for made in found.groups] == ["w-4", "w-0"]
    assert (found.groups[0].partition, found.groups[0].offset) == (0, 1)
    assert found.groups[0].version_shares == {"0": 0.5, "1": 0.5}
    assert found.groups[0].reward_mean == 0.5
    assert (found.base_version, found.base_hash, found.weights_hash) == (0, "base", "hash-1")
    assert found.object_key.startswith(written.run.store.address.prefix + "weights/")
    assert version_lineage(written.run, "solver", 0).groups == ()
    with pytest.raises(UsageError, match=r"no version 2: there are 0 to 1"):
        version_lineage(written.run, "solver", 2)


@pytest.mark.tools
def test_a_group_that_is_not_where_its_batch_says_is_looked_for_everywhere(written: Log) -> None:
    moved, gone = (written.keep(number, written.group(number)[1]) for number in (0, 1))
    written.batch(1, replace(moved, offset=77), replace(moved, number=2), replace(gone, partition=-1))

    found = version_lineage(written.run, "solver", 1).groups

    assert [made.missing for made in found] == [False, True, False]
    assert [made.task_id for made in found] == ["sum:0", "", "sum:1"]


@pytest.mark.tools
def test_a_group_behind_a_claim_check_is_fetched(written: Log) -> None:
    whole = group(written.run.run_id, 0, "w-1")
    short = replace(whole, trajectories=(), claim=written.run.put(codec.encode(whole), "groups"))
    use = written.keep(0, written.group(0, value=codec.encode(short))[1])
    lost = replace(short, number=1, claim=replace(short.claim, key="groups/none"))  # type: ignore[arg-type]
    written.batch(1, use, written.keep(1, written.group(1, value=codec.encode(lost))[1]))
    written.weights(0)

    assert [made.version_shares for made in version_lineage(written.run, "solver", 1).groups] == [
        {"0": 0.5, "1": 0.5},
        {},
    ]
    assert step(written.run, "solver", 1, "sums:0").groups[0].trajectories[0].id == "sums:0:0"
    assert written.fate(0).attempts[0].trajectories == 2


def test_the_fate_of_a_group_is_found_wherever_it_is(written: Log) -> None:
    for number in (0, 1):
        written.task(number)
    produced, value = written.group(1)
    waiting, kept = (written.group(number)[1] for number in (2, 3))
    written.keep(2, waiting)
    written.batch(1, written.keep(3, kept))
    written.outcome(4, "dropped", "zero_variance")
    written.keep(5, written.group(5)[1])
    written.outcome(5, "expired", "expired", "train")

    fates = {number: written.fate(number) for number in (*range(6), ISSUED)}

    assert [found.fate for found in fates.values()] == [
        "issued", "produced", "kept", "trained", "dropped", "expired", "never_issued",
    ]  # fmt: skip
    assert fates[0].on_tasks == (0,)
    assert (fates[1].attempts[0].partition, fates[1].attempts[0].offset) == (1, produced)
    assert fates[1].attempts[0].failures == ("time_limit",)
    assert [(use.version, use.place) for use in fates[3].trained] == [(1, 0)]
    assert fates[4].reason == "zero_variance"
    assert fates[ISSUED].issued_next == ISSUED
    assert look_up_group(written.run, None, "sums:0").policies["solver"].fate == "issued"
    with pytest.raises(UsageError, match=f"never issued a group sums:{ISSUED}: there are sums:0 to sums:{ISSUED - 1}"):
        look_up_group(written.run, None, f"sums:{ISSUED}")
    written.group(ISSUED)
    assert look_up_group(written.run, None, f"sums:{ISSUED}").policies["solver"].fate == "never_issued"
    assert value


@pytest.mark.tools
def test_a_repeated_record_counts_once_and_names_both_workers(written: Log) -> None:
    written.group(4, "first")
    written.group(4, "second")
    written.group(8, "another number of the same partition")

    attempts = written.fate(4).attempts

    assert [(attempt.worker, attempt.counts) for attempt in attempts] == [("first", True), ("second", False)]


@pytest.mark.tools
def test_a_dead_number_that_was_sent_back_is_open_again_and_then_trained(written: Log) -> None:
    bad, _ = written.group(4, value=b"garbage")
    first = written.letter(4, bad)
    dead = written.fate(4)
    written.letter(4, bad, "redriven", redrives=first)
    opened = written.fate(4)
    _, value = written.group(4, "mended")
    written.batch(1, written.keep(4, value))
    trained = written.fate(4)

    assert (dead.fate, dead.reason) == ("dead", "undecodable")
    assert "not an Avro single-object message" in dead.attempts[0].unreadable
    assert opened.fate == "issued"
    assert [letter.redriven for letter in opened.letters] == [True, False]
    assert trained.fate == "trained"
    assert [attempt.counts for attempt in trained.attempts] == [False, True]


@pytest.mark.tools
def test_records_that_nobody_can_read_hide_no_groups_fate(written: Log) -> None:
    written.task(3)
    written.batch(1, written.keep(3, written.group(3)[1]))
    topics, key, headers = written.run.topics, task_key("sums", 3), written.stamp(3).to_headers()
    for topic, partition in (
        (topics.dead_letters, 0), (topics.tasks("sums"), 0), (topics.batches("solver"), 0), (topics.state, 0),
        (topics.outcomes("solver"), 3), (topics.trajectories("solver"), 3),
    ):  # fmt: skip
        written.write(Outgoing(topic, b"garbage", key, headers, partition))

    found = written.fate(3)

    assert (found.fate, found.on_tasks, len(found.concluded), found.letters) == ("trained", (0,), 1, ())


@pytest.mark.tools
def test_a_name_that_is_no_group_of_the_run_is_refused_in_a_sentence(written: Log) -> None:
    for text, says in (
        ("12", "STREAM:NUMBER"), ("proofs:1", "it has sums"), ("sums:x", "STREAM:NUMBER"), ("eval.sums:1", "inspect"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=says):
            parse_group(written.run, text)
    assert parse_group(written.run, "sums.eu:12") == ("sums.eu", 12)


@pytest.mark.tools
def test_a_trajectory_is_opened_trained_or_not(written: Log) -> None:
    written.weights(0)
    written.batch(1, written.keep(0, written.group(0)[1]))
    written.group(1, value=b"garbage")
    written.group(1)

    trained, produced = (trajectory(written.run, None, f"sums:{number}:1") for number in (0, 1))

    assert (trained.version, trained.found_on) == (1, f"{written.run.topics.curated('solver')}[0]@0")
    assert (produced.version, produced.found_on) == (None, f"{written.run.topics.trajectories('solver')}[1]@1")
    each = produced.group.trajectories[0].sequences[0].each
    assert [(token.text, token.version) for token in each] == [
        ("2", None),
        ("+", None),
        ("2", None),
        ("=", 0),
        ("5", 1),
    ]
    assert trained.group.trajectories[0].sequences[0].advantage == pytest.approx(-1 / np.sqrt(2), abs=1e-3)
    assert produced.group.trajectories[0].sequences[0].advantage is None
    for name, says in (
        ("sums:1:2", r"sample 2 failed \(time_limit\), but no sums:1:2"), ("sums:9:0", "no worker has produced"),
        ("proofs:1:0", "it has sums"), ("sums:1", "STREAM:NUMBER:SAMPLE"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=says):
            trajectory(written.run, None, name)
