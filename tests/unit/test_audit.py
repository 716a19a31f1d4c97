from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_recipes import sums_recipe

from headrace.infra.kafka.clients import Message
from headrace.infra.recipe.settings import Recipe
from headrace.ledger.feeder_snapshot import FeederSnapshot
from headrace.ops.audit.account import RunAccount
from headrace.ops.audit.bounds import Bounds
from headrace.ops.audit.broken_numbers import Scope
from headrace.ops.audit.fold import AuditFold
from headrace.ops.audit.numbers import PolicyAudit
from headrace.ops.audit.problems import MOST_LISTED
from headrace.ops.audit.results import Audit
from headrace.schemas import codec
from headrace.schemas.headers import Headers, Stamp, outcome_stamp, task_key
from headrace.schemas.records import (
    BatchTrained,
    CheckpointPointer,
    DeadLetter,
    Eviction,
    GroupUse,
    Outcome,
    Position,
    Snapshot,
    WeightsPublished,
)
from headrace.schemas.topics import checkpoint_key

RECIPE = sums_recipe(
    policies={"solver": {"path": "x"}, "judge": {"path": "y"}},
    workflows={
        "sums": {"env": {"use": "a"}, "policies": {"solver": "solver"}},
        "debate": {"env": {"use": "a"}, "policies": {"s": "solver", "j": "judge"}},
    },
    kafka={"partitions": 1},
)
TOPICS = RECIPE.topics
WHOLE = Scope(whole=True)
STILL = Scope(whole=True, still=True)
DRAINED = Scope(whole=True, still=True, drained=True)
GONE = "is in flight, but its task does not wait for a worker, and no worker has produced its group"
UNISSUED = "has a record on the tasks topic, but the feeder's snapshot does not count it as issued"


Workflows: TypeAlias = dict[str, dict[str, str]]
"""Workflow to its policies, as a recipe has them."""


class Log:
    """Makes messages with the next offset of their topic."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._ends: Counter[str] = Counter()
        self._positions: dict[str, tuple[Position, ...]] = {}

    def say(self, topic: str, value: bytes, key: bytes = b"", headers: Headers | None = None) -> None:
        self.messages.append(Message(topic, 0, self._ends[topic], key, value, headers or []))
        self._ends[topic] += 1

    def issued(self, **numbers: int) -> None:
        for stream, end in numbers.items():
            for number in range(end):
                self.say(TOPICS.tasks(stream), b"", headers=Stamp("r", stream, number).to_headers())
        snapshot = Snapshot(run_id="r", component="feed", body=json.dumps({"next": numbers}).encode())
        self.say(TOPICS.state, codec.encode(snapshot), b"feed")

    def produced(self, number: int, stream: str = "sums", policy: str = "solver", **more: Any) -> None:
        headers = Stamp(**{"run_id": "r", "stream": stream, "number": number, "policy": policy, **more}).to_headers()
        self.say(TOPICS.trajectories(policy), b"", task_key(stream, number), headers)

    def curated(self, number: int, stream: str = "sums", policy: str = "solver", **more: Any) -> None:
        self.say(TOPICS.curated(policy), b"", headers=Stamp("r", stream, number, policy=policy, **more).to_headers())

    def outcome(self, number: int, verdict: str = "dropped", reason: str = "zero_variance", **more: Any) -> None:
        common = {"run_id": "r", "stream": "sums", "policy": "solver", "component": "curate"}
        outcome = Outcome(**{**common, "number": number, "verdict": verdict, "reason": reason, **more})
        self.say(TOPICS.outcomes(outcome.policy), codec.encode(outcome), headers=outcome_stamp(outcome).to_headers())

    def kept(self, number: int, stream: str = "sums", policy: str = "solver", **more: Any) -> None:
        self.produced(number, stream, policy)
        self.outcome(number, "kept", "", stream=stream, policy=policy)
        self.curated(number, stream, policy, **more)

    def dropped(self, number: int, **more: Any) -> None:
        self.produced(number)
        self.outcome(number, **more)

    def batch(self, version: int, *numbers: int, use: int = 0, stream: str = "sums", **more: Any) -> None:
        policy = more.pop("policy", "solver")
        self._positions[policy] = more.setdefault("positions", self._positions.get(policy, ()))
        groups = tuple(GroupUse(stream, number, use) for number in numbers)
        hashes = {"base_hash": f"w{version - 1}", "weights_hash": f"w{version}"} if version >= 0 else {}
        record = BatchTrained(
            **{"run_id": "r", "policy": policy, "version": version, "groups": groups, **hashes, **more}
        )
        self.say(TOPICS.batches(policy), codec.encode(record))

    def weights(self, version: int, policy: str = "solver", **more: Any) -> None:
        common = {"run_id": "r", "policy": policy, "version": version, "weights_hash": f"w{version}"}
        self.say(TOPICS.weights(policy), codec.encode(WeightsPublished(**{**common, **more})))

    def checkpoint(self, version: int, **more: Any) -> None:
        common = {"run_id": "r", "policy": "solver", "version": version, "weights_hash": f"w{version}"}
        pointer = CheckpointPointer(**{**common, **more})
        self.say(TOPICS.state, codec.encode(pointer), checkpoint_key("solver", version))

    def replay(self, number: int, use: int) -> None:
        self.outcome(number, "kept", "", use=use)
        headers = Stamp("r", "sums", number, use=use, policy="solver").to_headers()
        self.say(TOPICS.curated("solver"), b"", headers=headers)

    def evicted(self, number: int, verdict: str = "expired", use: int = 0) -> None:
        eviction = Eviction(GroupUse("sums", number, use), verdict)
        self.batch(-1, evictions=(eviction,))
        if verdict != "dead":
            self.outcome(number, verdict, verdict, component="train", use=use)

    def letter(self, number: int = -1, policy: str = "solver", stream: str = "sums", **more: Any) -> None:
        record = DeadLetter(**{"run_id": "r", "policy": policy, "stream": stream, "number": number, **more})
        self.say(TOPICS.dead_letters, codec.encode(record))

    def audit(self, scope: Scope = WHOLE, **more: Any) -> Audit:
        return audited(self.messages, scope, **more)


def audited(messages: list[Message], scope: Scope = WHOLE, **more: Any) -> Audit:
    return folded(messages).account.audit(scope, **more)


def folded(messages: list[Message], **known: Any) -> AuditFold:
    """Take in messages; `known` is of `account.known`."""
    fold = AuditFold("r", RECIPE)
    for name, value in known.items():
        setattr(fold.account.known, name, value)
    for message in messages:
        fold.fold_message(message)
    fold.fold_feeder_snapshot()
    return fold


def says(found: Audit) -> list[str]:
    return [str(problem) for problem in found.problems.listed]


def clean() -> Log:
    """A run of nine sums and two debates of which all is well: trained, dropped, evicted, dead, one still open."""
    log = Log()
    log.issued(sums=9, debate=2)
    log.weights(0)
    log.weights(0, "judge")
    log.checkpoint(0)
    for number in (0, 1, 2, 4, 5):
        log.kept(number)
    log.batch(1, 0, 1, positions=(Position(0, 4),))
    log.weights(1)
    log.dropped(3)
    log.evicted(4)
    log.evicted(5, "run_end")
    log.batch(2, 2, positions=(Position(0, 5),))
    log.weights(2)
    log.checkpoint(2)
    log.produced(6)
    log.letter(6, topic=TOPICS.trajectories("solver"), offset=6, reason="undecodable")
    log.kept(7)
    for policy in ("solver", "judge"):
        log.kept(0, "debate", policy)
    log.batch(1, 0, policy="judge", stream="debate")
    log.weights(1, "judge")
    log.outcome(0, reason="length", level="trajectory", trajectory_id="sums:0:3")
    return log


# --------------------------------------------------------------------------------------------------------------- counts


def test_every_number_is_trained_discarded_dead_or_in_flight() -> None:
    found = clean().audit(STILL)
    assert says(found) == []
    assert found.policies["solver"] == PolicyAudit(
        issued=11,
        produced=9,
        kept=7,
        trained=3,
        discarded={"expired": 1, "run_end": 1, "zero_variance": 1},
        dead=1,
        in_flight=4,
        trajectories_discarded=1,
    )
    judge = found.policies["judge"]
    assert (judge.issued, judge.trained, judge.in_flight) == (2, 1, 1)
    assert (found.tasks.issued, found.tasks.concluded) == (11, 7)  # debate 0 is open for the solver
    assert (found.groups.kept, found.groups.trained, found.groups.discarded, found.groups.in_flight) == (8, 4, 3, 5)


def test_a_group_delivered_again_is_a_duplicate_and_no_problem() -> None:
    log = clean()
    log.produced(0)
    log.produced(0, attempt=1)
    found = log.audit(STILL)
    assert (found.ok, found.groups.produced, found.groups.duplicates) == (True, 10, 2)


def test_replays_are_counted_apart() -> None:
    log = clean()
    log.replay(0, 1)
    log.batch(3, 0, use=1)
    found = log.audit(STILL)
    assert says(found) == []
    assert (found.policies["solver"].trained, found.policies["solver"].replayed) == (3, 1)
    log.replay(1, 1)
    log.evicted(1, "missing", use=1)
    log.replay(1, 2)
    log.letter(1, use=2)
    log.replay(2, 1)
    solver = log.audit(STILL).policies["solver"]
    assert says(log.audit(STILL)) == []
    assert (solver.replays, solver.replayed, solver.replays_discarded, solver.dead) == (4, 1, 2, 1)
    assert replace(solver, replays=0, replayed=0, replays_discarded=0) == clean().audit(STILL).policies["solver"]


def ended() -> Log:
    """A run of one sum that was trained, and nothing else; it is over."""
    log = Log()
    log.issued(sums=1)
    log.weights(0)
    log.checkpoint(0)
    log.kept(0)
    return log


def test_a_replay_that_vanishes_behind_the_trainers_back_is_found_when_the_run_is_over() -> None:
    log = ended()
    log.batch(1, 0, positions=(Position(0, 2),))
    log.weights(1)
    log.replay(0, 1)
    log.replay(0, 2)
    assert log.audit(STILL).ok
    assert says(log.audit(DRAINED)) == [
        "sums:0 of solver (use 1) was read by the trainer, but neither trained nor evicted"
    ], "the second it never read: the run was over first"
    log.evicted(0, "run_end", use=1)
    assert log.audit(DRAINED).ok


def test_a_replay_whose_use_before_vanished_is_found() -> None:
    log = ended()
    log.replay(0, 2)
    log.batch(1, 0)
    log.batch(2, 0, use=2)
    log.weights(1)
    log.weights(2)
    assert says(log.audit(STILL)) == [
        "sums:0 of solver (use 2) is a replay, but the same group's use before this replay was never kept"
    ]


def test_a_dead_task_is_dead_for_all_policies_of_its_workflow() -> None:
    log = Log()
    log.issued(debate=1)
    log.letter(0, policy="", stream="debate")
    found = log.audit(DRAINED)
    assert found.ok
    assert [(found.policies[name].dead, found.policies[name].in_flight) for name in ("solver", "judge")] == [(1, 0)] * 2


def test_the_letter_of_a_task_is_void_where_another_worker_played_it() -> None:
    log = clean()
    log.letter(8, policy="", topic=TOPICS.tasks("sums"), reason="unknown_revision")
    assert (log.audit(STILL).policies["solver"].dead, log.audit(STILL).policies["solver"].in_flight) == (2, 3)
    log.kept(8)
    found = log.audit(STILL)
    assert (found.ok, found.policies["solver"].dead, found.policies["solver"].in_flight) == (True, 1, 4)
    log.batch(3, 8)
    log.weights(3)
    found = log.audit(STILL)
    assert says(found) == []
    assert (found.doubled, found.policies["solver"].dead, found.policies["solver"].trained) == (0, 1, 4)


def test_a_curated_record_that_was_sent_back_is_no_second_one() -> None:
    log = clean()
    log.letter(7, topic=TOPICS.curated("solver"), offset=5, reason="poison")
    log.letter(7, topic=TOPICS.curated("solver"), offset=6, reason="redriven", redrives=1)
    headers = Stamp("r", "sums", 7, policy="solver").to_headers()
    log.say(TOPICS.curated("solver"), b"", headers=[*headers, ("redrive", b"1")])
    assert log.audit(STILL).ok


def test_a_group_that_was_refused_as_never_issued_is_no_problem_and_concludes_nothing() -> None:
    log = clean()
    about = {"topic": TOPICS.trajectories("solver"), "offset": 9, "reason": "not_issued"}
    log.letter(**about)
    log.produced(50_000)
    found = log.audit(STILL)
    assert (found.ok, found.lost, found.groups.produced) == (True, 0, 10)
    assert found.unnumbered_letters == {"not_issued": 1}


def test_a_group_whose_headers_its_curator_refused_is_no_delivery_of_the_number_in_them() -> None:
    for number, what in ((3, "was read by the curators"), (10**30, "was produced, but never issued")):
        log = Log()
        log.issued(sums=4)
        for other in range(3):
            log.dropped(other)
        headers = [(k, v) for k, v in Stamp("r", "sums", 3, policy="solver").to_headers() if k != "head_version"]
        headers = [(k, b"%d" % number if k == "number" else v) for k, v in headers]
        log.say(TOPICS.trajectories("solver"), b"", headers=headers)
        reached = {(TOPICS.trajectories("solver"), 0): 4}
        [said] = says(folded(log.messages, reached=reached).account.audit(WHOLE))
        assert what in said
        letter = Log()
        letter.letter(policy="", stream="", topic=TOPICS.trajectories("solver"), offset=3, reason="undecodable")
        found = folded([*letter.messages, *log.messages], reached=reached).account.audit(WHOLE)
        assert (says(found), found.groups.produced) == ([], 3)


FORM = "its JSON does not have the form that the feeder writes"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"next": {"sums": 1e999}}', f"{FORM} (OverflowError: "),
        (b'{"next": {"sums": 1e15}}', f"must be from 0 to {1 << 32}, but it is 1000000000000000 for sums"),
        (b'{"next": {"sums": -1}}', f"must be from 0 to {1 << 32}, but it is -1 for sums"),
        (b"{}", f"{FORM} (KeyError: 'next')"),
    ],
)
def test_a_snapshot_with_a_number_that_no_run_comes_to_is_none(body: bytes, why: str) -> None:
    log = clean()
    log.say(TOPICS.state, codec.encode(Snapshot(run_id="r", component="feed", body=body)), b"feed")
    said = " ".join(says(log.audit(STILL)))
    assert "the feeder's snapshot t.state[0]@3 cannot be read: " in said
    assert why in said


def test_a_group_of_a_number_that_was_never_issued_may_wait_for_its_curator() -> None:
    log = clean()
    log.produced(50_000)
    reached = {(TOPICS.trajectories("solver"), 0): 9}
    assert folded(log.messages, reached=reached).account.audit(WHOLE).ok
    assert not log.audit(WHOLE).ok


def test_evaluations_other_runs_and_letters_without_a_number_are_left_out_of_the_counts_of_numbers() -> None:
    log = clean()
    before = log.audit(STILL)
    log.outcome(1, stream="eval.sums")
    log.outcome(1, run_id="other")
    log.batch(1, 0, run_id="other")
    log.letter(1, stream="eval.sums", reason="missing_object")
    log.letter(reason="poison")
    after = log.audit(STILL)
    assert replace(after, unnumbered_letters={}) == before
    assert after.unnumbered_letters == {"missing_object": 1, "poison": 1}


def test_letters_that_conclude_no_number_are_counted_by_reason_until_they_are_sent_back() -> None:
    log = clean()  # with letter 0, of a number
    for reason in ("undecodable", "undecodable", "other_run", "", "x" * 100):
        log.letter(reason=reason)
    log.letter(3, policy="nobody", reason="other_run")
    assert log.audit().unnumbered_letters == {"other": 2, "other_run": 2, "undecodable": 2}
    for redrives in (1, 0, -1, 1 << 60):
        log.letter(reason="redriven", redrives=redrives)
    assert log.audit().unnumbered_letters == {"other": 2, "other_run": 2, "undecodable": 1}
    log.letter(reason="undecodable")
    assert log.audit().unnumbered_letters["undecodable"] == 2
    assert says(log.audit(STILL)) == []


def test_the_newest_snapshot_of_the_feeder_tells_what_was_issued() -> None:
    log = Log()
    log.issued(sums=3)
    log.say(TOPICS.state, codec.encode(Snapshot(run_id="r", body=b"{}")), b"curate.solver|x|0")
    log.issued(sums=8, debate=2)
    assert log.audit().policies["solver"].issued == 10


def test_more_reasons_than_there_is_room_for_count_as_other() -> None:
    log = Log()
    log.issued(sums=300)
    for number in range(300):
        log.dropped(number, reason=f"reason{number}")
        log.letter(reason=f"reason {number}")
    found = log.audit(DRAINED)
    assert found.ok
    assert sum(found.policies["solver"].discarded.values()) == 300
    assert found.policies["solver"].discarded["other"] == 300 - 126
    assert (len(found.unnumbered_letters), sum(found.unnumbered_letters.values())) == (127, 300)


# ------------------------------------------------------------------------------------------------------------- problems


def replayed_twice(log: Log) -> None:
    for _ in range(2):
        log.replay(0, 1)
    log.batch(3, 0, use=1)
    log.batch(4, 0, use=1)


Flaw = Callable[[Log], object]

DOUBLED: list[tuple[Flaw, str]] = [
    (lambda log: log.batch(3, 2), "sums:2 of solver was trained more than once"),
    (lambda log: log.batch(3, 7, 7), "sums:7 of solver was trained more than once"),
    (lambda log: log.outcome(0), "sums:0 of solver was both trained and discarded (zero_variance)"),
    (lambda log: log.outcome(3), "sums:3 of solver was discarded more than once (zero_variance)"),
    (lambda log: log.evicted(3), "sums:3 of solver was discarded more than once (zero_variance)"),
    (lambda log: log.outcome(7, "kept", ""), "sums:7 of solver was kept more than once"),
    (lambda log: log.curated(7), "sums:7 of solver has more than one curated record"),
    (lambda log: log.letter(0), "sums:0 of solver is a dead letter, but was also trained or discarded"),
]


def test_a_use_that_concluded_twice_is_doubled_and_named() -> None:
    for flaw, sentence in DOUBLED:
        log = clean()
        flaw(log)
        found = log.audit(STILL)
        assert (found.ok, found.doubled, found.lost, says(found)) == (False, 1, 0, [sentence])


def test_what_is_in_flight_when_all_is_drained_is_lost() -> None:
    found = clean().audit(DRAINED)
    assert (found.ok, found.lost, found.policies["solver"].lost) == (False, 5, 4)
    kept, issued = ", but neither trained nor evicted", ", but never concluded"
    assert sorted(says(found)) == [
        f"debate:0 of solver was kept{kept}",
        f"debate:1 of judge was issued{issued}",
        f"debate:1 of solver was issued{issued}",
        f"sums:7 of solver was kept{kept}",
        f"sums:8 of solver was issued{issued}",
    ]


def test_groups_that_the_trainer_read_and_that_do_not_fit_into_its_window_are_lost() -> None:
    def found(kept: int, position: int) -> Audit:
        """Of a running run: so many numbers kept, the first two trained, the trainer's position behind some."""
        log = Log()
        log.issued(sums=kept)
        log.weights(0)
        log.batch(1, 0, 1, positions=(Position(0, position),))
        log.weights(1)
        for number in range(kept):
            log.kept(number)
        return log.audit(WHOLE)

    room = Bounds.of([RECIPE]).waiting["solver"]
    assert room == (1 + 1 + 4) * 32
    assert not [what for what in says(found(room + 3, room + 2)) if "unfinished batches" in what]
    lost = found(room + 9, room + 7)
    assert lost.lost >= 5
    [what] = [what for what in says(lost) if "unfinished batches" in what]
    assert what.startswith(f"{room + 5} groups of solver were read by its trainer and neither trained nor evicted")
    assert what.endswith(f"hold at most {room} groups: 5 groups are lost")


def test_more_in_flight_than_the_feeder_lets_be_open_are_lost_unless_they_were_sent_back() -> None:
    alone = RECIPE.model_copy(update={"workflows": {"sums": RECIPE.workflows["sums"]}})
    every = RECIPE.model_copy(update={"feed": RECIPE.feed.model_copy(update={"pace": "all"})})
    assert (Bounds.of([RECIPE]).open, Bounds.of([every]).open) == ({}, {"solver": 64, "judge": 64})
    judge = every.policies["judge"].model_copy(update={"trainer": {"max_staleness": 0, "groups_per_batch": 16}})
    slow = every.model_copy(update={"policies": {**every.policies, "judge": judge}})
    assert Bounds.of([slow]).open == {"solver": 64, "judge": 64}, "solver alone counts when judge has all its versions"
    most = Bounds.of([alone]).open["solver"]
    assert most == 64

    def found(issued: int, before: int | None = None, **more: Any) -> Audit:
        fold, log = AuditFold("r", alone), Log()
        log.issued(sums=issued)
        if before is not None:
            body = json.dumps({"next": {"sums": before}}).encode()
            newest = FeederSnapshot()
            newest.fold_message(Message(TOPICS.state, 0, 0, b"feed", codec.encode(Snapshot(run_id="r", body=body))))
            fold.begin(newest)
        if more:
            log.letter(0, topic=TOPICS.tasks("sums"))
            log.letter(0, topic=TOPICS.tasks("sums"), **more)
        for message in log.messages:
            fold.fold_message(message)
        fold.fold_feeder_snapshot()
        return fold.account.audit(WHOLE)

    assert found(most).ok
    lost = found(most + 2)
    told = f"{most + 2} tasks of solver are in flight, but the feeder allows at most {most} open tasks: 2 are lost"
    assert (says(lost), lost.lost) == ([told], 2)
    assert found(most + 2, before=most).ok, "issued while the audit read what was concluded"
    assert found(most + 1, reason="redriven", redrives=0).ok, "a number that was sent back is open beside the others"


def test_a_group_that_expired_long_ago_and_was_neither_trained_nor_evicted_is_named() -> None:
    log = Log()
    log.issued(sums=20)
    log.weights(0)
    for version in range(1, 8):
        log.batch(version, *(() if version == 3 else (version + 1,)), positions=(Position(0, 12),))
        log.weights(version)
        if version == 3:
            log.evicted(0)
    for version in (8, 9):
        log.weights(version)
    for number in range(12):
        log.kept(number, min_version=max(number - 2, 0), max_version=max(number - 2, 0))
    assert says(log.audit(WHOLE)) == [
        "sums:1 of solver was read by the trainer and is past its deadline, but was neither trained nor evicted",
        "sums:4 of solver was read by the trainer and is past its deadline, but was neither trained nor evicted",
    ]


def test_a_number_that_was_concluded_without_having_been_issued_is_lost() -> None:
    log = clean()
    log.dropped(9)
    log.dropped(-4)
    found = log.audit()
    assert (found.lost, found.policies["solver"].in_flight) == (2, 4)
    concluded = "of solver was concluded, but never issued"
    assert sorted(says(found)) == [f"sums:-4 {concluded}", f"sums:9 {concluded}"]
    log.dropped(2**60)
    assert f"sums:{2**60} {concluded}" in says(log.audit()), "and costs no memory for those before it"


def outcome_without_eviction(log: Log) -> None:
    log.outcome(7, "surplus", "surplus", component="train")


UNPROVEN: list[tuple[Flaw, str]] = [
    (lambda log: log.produced(9), "sums:9 of solver was produced, but never issued"),
    (
        lambda log: (log.produced(8), log.outcome(8, "kept", "")),
        "sums:8 of solver was kept, but has no curated record",
    ),
    (lambda log: log.curated(8), "sums:8 of solver has a curated record, but no outcome says that it was kept"),
    (
        lambda log: (log.produced(8), log.batch(3, 8)),
        "sums:8 of solver was trained, but no outcome says that it was kept",
    ),
    (lambda log: log.outcome(8), "sums:8 of solver was curated, but no worker produced it"),
    (
        lambda log: log.batch(-1, evictions=(Eviction(GroupUse("sums", 7), "surplus"),)),
        "sums:7 of solver was evicted by the trainer, but no outcome says so",
    ),
    (
        outcome_without_eviction,
        "sums:7 of solver was discarded by the trainer (surplus), but no batch record says so",
    ),
    (lambda log: log.dropped(8, reason=""), "sums:8 of solver was discarded without a reason"),
    (
        lambda log: log.batch(-1, evictions=(Eviction(GroupUse("sums", 4), "expired"),)),
        "sums:4 of solver was evicted by the trainer more than once",
    ),
]


def test_a_group_that_was_trained_into_the_wrong_version_is_named() -> None:
    for low, high, sentence in (
        (0, 1, "sums:8 of solver was trained after its deadline"),
        (
            2,
            3,
            (
                "sums:8 of solver was trained into a version that is not newer than the version that sampled its "
                "newest token"
            ),
        ),
    ):
        log = clean()
        log.batch(3, 8)
        log.weights(3)
        log.kept(8, min_version=low, max_version=high)
        assert says(log.audit(WHOLE)) == [sentence]


def test_a_link_of_a_number_that_is_missing_is_named() -> None:
    for flaw, sentence in UNPROVEN:
        log = clean()
        flaw(log)
        found = log.audit(STILL)
        assert (found.ok, found.lost, found.doubled, says(found)) == (False, 0, 0, [sentence])


def test_the_outcome_of_an_eviction_has_its_verdict() -> None:
    log = clean()
    log.batch(-1, evictions=(Eviction(GroupUse("sums", 7), "surplus"),))
    log.outcome(7, "expired", "expired", component="train")
    assert says(log.audit(STILL)) == [
        "sums:7 of solver was evicted by the trainer for another reason than its outcome gives (expired)"
    ]


def test_while_a_run_goes_on_what_is_read_later_may_be_ahead() -> None:
    log = clean()
    log.curated(8)
    outcome_without_eviction(log)
    log.weights(3)
    log.checkpoint(3)
    assert log.audit(WHOLE).ok


def test_an_offline_experiment_has_only_its_own_batches() -> None:
    log = Log()
    log.weights(0)
    log.batch(1, 0, 1)
    log.batch(2, 2)
    log.weights(2)
    offline = Scope(still=True, drained=True, offline=True)
    assert log.audit(offline).ok
    log.batch(3, 0)
    log.weights(3)
    assert says(log.audit(offline)) == ["sums:0 of solver was trained more than once"]


def test_beyond_a_hundred_problems_are_only_counted() -> None:
    log = Log()
    log.issued(sums=10_000)
    found = log.audit(DRAINED)
    assert (found.lost, len(found.problems.listed), found.problems.more) == (10_000, MOST_LISTED, 9_900)
    assert says(found)[-1] == "sums:99 of solver was issued, but never concluded"


# --------------------------------------------------------------------------------------------------- chain of weights


CHAIN: list[tuple[dict[str, Any], str]] = [
    (
        {"version": 3, "base_hash": "other"},
        "trained from weights other, but the version before it has weights w2: {}3 and {}4",
    ),
    (
        {"version": 3, "base_hash": ""},
        "trained from weights without a hash, but the version before it has weights w2: {}3 and",
    ),
    ({"version": 3, "epoch": 2}, "is of epoch 2, but after a version of epoch 0 it can only be 0 or 1: {}4"),
    ({"version": 5}, "no batch record names versions 3 to 4 of solver: the next batch record, {}4, names version 5"),
    ({"version": 2}, "version 2 of solver was trained twice: {}3 and {}4"),
]


def test_a_version_that_does_not_follow_from_the_one_before_breaks_the_chain() -> None:
    for more, sentence in CHAIN:
        log = clean()
        log.batch(**more)
        found = log.audit(STILL)
        assert (found.ok, found.weights_chain_ok, found.lost, found.doubled) == (False, False, 0, 0)
        [what] = says(found)
        assert sentence.replace("{}", "t.batches.solver[0]@") in what
    log = Log()
    log.issued()
    log.weights(0, weights_hash="begin")
    log.batch(1)
    assert "trained from weights w0, but the version before it has weights begin" in says(log.audit())[0], (
        "version 1 too"
    )


def test_a_new_epoch_begins_from_any_weights_at_the_next_version() -> None:
    log = clean()
    log.batch(3, epoch=1, base_hash="elsewhere")
    log.weights(3, epoch=1)
    log.batch(4, epoch=1)
    assert log.audit(STILL).ok


def test_a_new_epoch_may_begin_by_an_anchor_of_the_newest_version_from_whose_weights_the_next_batch_begins() -> None:
    for published_before in (True, False):
        log = clean()
        log.batch(3)
        if published_before:
            log.weights(3)
        log.weights(3, epoch=1, weights_hash="elsewhere")
        log.weights(3, kind="whole", epoch=1, weights_hash="elsewhere")
        assert log.audit(STILL).ok
        log.batch(4, epoch=1, base_hash="elsewhere")
        log.weights(4, epoch=1, kind="delta", base_version=3, base_hash="elsewhere")
        assert log.audit(STILL).ok
        log.batch(5, epoch=1)
        log.weights(3, epoch=2, weights_hash="late")
        log.batch(6, epoch=1, base_hash="others")
        assert [what.split(":")[0] for what in says(log.audit(STILL))] == [
            "version 3 of solver was published twice",
            "version 6 of solver was trained from weights others, but the version before it has weights w5",
        ]


def test_the_batch_after_an_anchor_that_begins_an_epoch_begins_from_its_weights() -> None:
    log = clean()
    log.weights(2, epoch=1, weights_hash="elsewhere")
    log.batch(3, epoch=1)
    (said,) = says(log.audit(STILL))
    assert said.startswith(
        "version 3 of solver was trained from weights w2, but the version before it has weights elsewhere"
    )


def test_an_event_and_a_checkpoint_say_what_the_batch_says() -> None:
    log = clean()
    log.batch(3)
    log.weights(3, weights_hash="torn")
    log.batch(4)
    log.weights(4, epoch=2)
    log.checkpoint(4, weights_hash="torn")
    found = log.audit(STILL)
    assert not found.weights_chain_ok
    says_batch = "of solver has weights {} of epoch 0 in t.batches.solver[0]@{}, but weights"
    assert says(found) == [
        f"version 3 {says_batch.format('w3', 4)} torn of epoch 0 in the event t.weights.solver[0]@3",
        f"version 4 {says_batch.format('w4', 5)} w4 of epoch 2 in the event t.weights.solver[0]@4",
        f"version 4 {says_batch.format('w4', 5)} torn of epoch 0 in the checkpoint t.state[0]@3",
    ]


def test_an_event_without_its_batch_breaks_the_chain_and_a_batch_without_an_event_does_not() -> None:
    log = clean()
    log.batch(3)
    assert log.audit(STILL).ok
    log.weights(4)
    assert says(log.audit(STILL)) == ["no batch record names version 4 of solver, but t.weights.solver[0]@3 does"]


def test_weights_that_are_there_whole_once_more_publish_no_version_and_must_agree_with_theirs() -> None:
    log = clean()
    log.weights(2, kind="whole")
    log.weights(1, kind="whole")
    assert log.audit(STILL).ok
    log.weights(2, kind="whole", weights_hash="w1")
    log.weights(2, kind="whole", epoch=1)
    log.weights(4, kind="whole")
    log.weights(9, kind="merged", base_version=0)  # of an older run: skipped
    name, partition = "the whole weights of version", "t.weights.solver[0]"
    assert says(log.audit(STILL)) == [
        f"{name} 2 of solver are w1 of epoch 0, but that version has weights w2 of epoch 0: {partition}@5",
        f"{name} 2 of solver are w2 of epoch 1, but that version has weights w2 of epoch 0: {partition}@6",
        f"{name} 4 of solver are w4 of epoch 0, but that version is not published: {partition}@7",
    ]


def test_versions_with_a_checkpoint_and_the_last_one_may_not_be_left_out() -> None:
    log = clean()
    log.batch(3)
    log.checkpoint(3)
    assert says(log.audit(STILL)) == ["version 3 of solver has a checkpoint, but is not published: t.state[0]@3"]
    assert log.audit(WHOLE).ok, "its event may have come after events were read"
    log.batch(4)
    log.weights(4)
    assert [what for what in says(log.audit(WHOLE)) if "checkpoint" in what]
    log.batch(5)
    assert not [what for what in says(log.audit(STILL)) if "last" in what], "the next trainer publishes what follows"
    assert "version 5 of solver is the last one, but is not published: t.batches.solver[0]@6" in says(
        log.audit(DRAINED)
    )
    log.weights(5)
    assert not [what for what in says(log.audit(DRAINED)) if "last" in what]


def test_a_delta_on_other_weights_than_those_of_the_version_that_it_names_breaks_the_chain() -> None:
    log = clean()
    log.batch(3)
    log.weights(3, kind="delta", base_version=2, base_hash="w2")
    assert log.audit(STILL).ok
    log.batch(4)
    log.weights(4, kind="delta", base_version=3, base_hash="w2")
    log.batch(5, epoch=1, base_hash="elsewhere")
    log.weights(5, epoch=1, kind="delta", base_version=4, base_hash="w4")
    log.batch(6, epoch=1)
    log.batch(7, epoch=1)
    log.weights(7, epoch=1, kind="delta", base_version=6, base_hash="w6")
    partition = "t.weights.solver[0]"
    assert [what.partition(" of solver is a delta of ")[2] for what in says(log.audit(STILL))] == [
        f"epoch 0 on weights w2, but its base, version 3, has weights w3 of epoch 0: {partition}@4",
        f"epoch 1 on weights w4, but its base, version 4, has weights w4 of epoch 0: {partition}@5",
        f"epoch 1 on weights w6, but its base, version 6, is not published: {partition}@6",
    ]


def test_a_version_is_published_once_and_versions_do_not_go_back() -> None:
    log = clean()
    log.weights(2)
    log.batch(4, base_hash="w3")
    log.batch(3)
    assert says(log.audit(STILL)) == [
        "version 2 of solver was published twice: t.weights.solver[0]@2 and t.weights.solver[0]@3",
        "version 3 of solver was trained after version 4: t.batches.solver[0]@5",
    ]


def test_the_trainers_positions_only_move_forward() -> None:
    log = clean()
    log.batch(3, positions=(Position(0, 4),))
    found = log.audit(STILL)
    assert (found.ok, found.weights_chain_ok) == (False, True)
    assert says(found) == [
        "the trainer's position on t.curated.solver[0] went back from 5 to 4: t.batches.solver[0]@4",
    ]


def test_no_group_is_trained_that_its_trainer_had_not_read() -> None:
    at = len([message for message in clean().messages if message.topic == TOPICS.curated("solver")])
    found = []
    for position in (at, at + 1):
        log = clean()
        log.kept(8)
        log.batch(3, groups=(GroupUse("sums", 8, 0, 0, at),), positions=(Position(0, position),))
        log.weights(3)
        found.append(says(log.audit(STILL)))
    [what], nothing = found
    assert what == (
        f"version 3 of solver was trained on the group at t.curated.solver[0]@{at}, but its trainer had read that "
        f"partition only to offset {at}: t.batches.solver[0]@4"
    )
    assert nothing == []


def test_what_is_on_the_topic_of_another_policy_is_named() -> None:
    log, own = clean(), Log()
    own.outcome(1, policy="judge")
    own.batch(9, policy="judge")
    own.weights(9, "judge")
    own.produced(1)
    own.curated(1)
    offsets = {"t.outcomes": 90, "t.batches": 91, "t.weights": 92, "t.trajectories": 93, "t.curated": 94}
    for message in own.messages:
        kind, _, policy = message.topic.rpartition(".")
        other = {"judge": "solver", "solver": "judge"}[policy]
        log.messages.append(replace(message, topic=f"{kind}.{other}", offset=offsets[kind]))
    found = says(log.audit(STILL))
    assert len(found) == 5
    assert all("but on the topic of another policy" in what for what in found)
    variant = clean()
    variant.weights(1, variant="free", kind="merged", base_version=0)
    assert len(says(variant.audit(STILL))) == 1


def test_the_trainers_positions_are_within_what_it_reads() -> None:
    fold = folded(clean().messages)
    chain, partition_id = fold.account.chains["solver"], (TOPICS.curated("solver"), 0)
    assert list(chain.positions.find_past_end({partition_id: 5})) == []
    assert list(chain.positions.find_past_end({partition_id: 4})) == [
        "the trainer's position on t.curated.solver[0] is 5, but the partition ends at 4"
    ]


def test_a_delta_names_the_nearest_anchor_and_the_last_version_is_marked_as_such() -> None:
    log = clean()
    log.batch(3)
    log.weights(3, kind="delta", base_version=2, base_hash="w2", anchor_offset=0)
    last = RECIPE.trainer.steps
    for version in range(4, last + 1):
        log.batch(version)
    log.weights(last, kind="delta", base_version=3, base_hash="w3", anchor_offset=2)
    assert says(log.audit(STILL)) == [
        "t.weights.solver[0]@3 names offset 0 as its anchor, but the nearest whole weights are at offset 2",
        "the last version of solver is not marked as final: t.weights.solver[0]@4",
    ]


def test_a_version_that_became_the_last_one_by_a_later_recipe_needs_no_mark_and_one_made_as_the_last_does() -> None:
    lowered = RECIPE.model_copy(update={"trainer": RECIPE.trainer.model_copy(update={"steps": 3})})
    for revision, unmarked in ((0, []), (1, ["the last version of solver is not marked as final"])):
        log = clean()
        log.batch(3, revision=revision)
        log.weights(3)
        fold = AuditFold("r", lowered, [RECIPE, lowered])
        for message in log.messages:
            fold.fold_message(message)
        fold.fold_feeder_snapshot()
        assert [what.partition(":")[0] for what in says(fold.account.audit(STILL))] == unmarked


def test_a_version_is_marked_as_final_only_if_a_recipe_of_the_run_ends_with_it() -> None:
    """By an earlier recipe it was the last one; the run went on."""
    shorter = sums_recipe(**{**RECIPE.model_dump(exclude_unset=True), "trainer": {"steps": 2}})
    fold = AuditFold("r", RECIPE, (shorter, RECIPE))
    log = Log()
    for version in (1, 2):
        log.weights(version, final=True)
    for message in log.messages:
        fold.fold_message(message)
    assert not fold.account.chains["solver"].problems(still=False).listed, "a new recipe may have ended it there"
    found = map(str, fold.account.chains["solver"].problems(still=True).listed)
    [wrong] = [what for what in found if "final" in what]
    assert "version 1 of solver is marked as final, but no recipe of the run ends with it or before it" in str(wrong)


def test_a_version_that_a_group_or_an_outcome_names_is_published() -> None:
    log = clean()
    for one in ({"max_version": 3}, {"head_version": 3}, {"min_version": 3}):
        found = clean()
        found.kept(8, **one)
        [wrong] = [what for what in says(found.audit()) if "is not published" in what]
        assert wrong == "version 3 of solver is not published, but t.curated.solver[0]@7 names it"
    log.kept(8, min_version=0, max_version=1, head_version=2)
    assert not [what for what in says(log.audit()) if "is not published" in what]
    log.outcome(8, "dropped", "ahead", max_version=9)  # the chain refused a token of that version
    assert not [what for what in says(log.audit()) if "is not published" in what]
    log.outcome(8, "dropped", "zero_variance", head_version=7)
    [wrong] = [what for what in says(log.audit()) if "is not published" in what]
    assert re.fullmatch(r"version 7 of solver is not published, but t.outcomes.solver\[0\]@\d+ names it", wrong)


def test_nothing_is_said_of_sampled_versions_where_no_event_was_copied() -> None:
    log = Log()
    log.kept(0, max_version=3)
    assert not [what for what in says(log.audit()) if "is not published" in what]


def test_every_record_of_a_version_gives_the_trainers_position_on_each_partition() -> None:
    log = Log()
    log.weights(0)
    log.batch(1, positions=(Position(0, 4), Position(1, 2)))
    log.batch(2, positions=(Position(0, 5),))
    log.batch(-1, positions=())
    [wrong] = [what for what in says(log.audit()) if "gives no position" in what]
    assert wrong == (
        "the record of version 2 gives no position on t.curated.solver[1], but an earlier record does: "
        "t.batches.solver[0]@1"
    )


def test_a_checkpoint_under_the_key_of_another_is_named() -> None:
    log = clean()
    pointer = CheckpointPointer("r", "solver", version=2, weights_hash="w2")
    log.say(TOPICS.state, codec.encode(pointer), checkpoint_key("solver", 1))
    [wrong] = [what for what in says(log.audit()) if "key of checkpoint" in what]
    assert wrong.endswith("is b'checkpoint|solver|1', but must be b'checkpoint|solver|2'")


def test_an_event_of_a_kind_that_nobody_knows_is_named() -> None:
    log = clean()
    log.weights(1, kind="sparse")
    assert any("is of kind 'sparse', which this release does not know" in what for what in says(log.audit()))


def test_the_audit_notes_how_far_curators_have_concluded_deliveries() -> None:
    log = Log()
    log.issued(sums=4)
    log.dropped(0)
    log.produced(1)
    log.outcome(1, "kept", "")
    log.produced(2)
    log.produced(0)
    log.messages.sort(key=lambda message: message.topic == TOPICS.trajectories("solver"))
    assert folded(log.messages).account.find_curated_ends() == {("solver", TOPICS.trajectories("solver"), 0): 2}


# ------------------------------------------------------------------------------------------------------------ in flight


def given_up(log: Log, begins: dict[str, list[list[int]]], *before: Workflows, **known: Any) -> RunAccount:
    """What is counted of a run that had these workflows, each with its policies, before those of `RECIPE`."""
    tables = RECIPE.model_dump(mode="json")
    found = [{w: {"env": {"use": "a"}, "policies": policies} for w, policies in one.items()} for one in before]
    fold = AuditFold("r", RECIPE, [*(Recipe.model_validate({**tables, "workflows": one}) for one in found), RECIPE])
    for name, value in known.items():
        setattr(fold.account.known, name, value)
    numbers = {"words": 4, "sums": 1, "debate": 3}
    state = json.dumps({"next": numbers, "revisions": begins}).encode()
    log.say(TOPICS.state, codec.encode(Snapshot("r", "feed", body=state)), b"feed")
    for message in log.messages:
        fold.fold_message(message)
    fold.fold_feeder_snapshot()
    return fold.account


def given_up_log() -> Log:
    """A run that dropped the workflow words: of its four numbers two were played, and conclude."""
    log = ended()
    log.batch(1, 0)
    log.weights(1)
    log.kept(0, stream="words")
    log.produced(1, "words")
    log.outcome(1, stream="words")
    log.batch(2, 0, stream="words")
    log.weights(2)
    log.checkpoint(2)
    for policy in ("solver", "judge"):
        log.produced(2, "debate", policy)
        log.outcome(2, "kept", "", stream="debate", policy=policy, revision=1)
        log.curated(2, "debate", policy, revision=1)
    log.weights(0, "judge")
    log.batch(1, 2, policy="judge", stream="debate")
    log.weights(1, "judge")
    log.batch(3, 2, stream="debate")
    log.weights(3)
    return log


WORDS_ONCE: tuple[Workflows, ...] = ({"words": {"s": "solver"}, "debate": {"j": "judge"}},)
"""The workflow words is renamed to sums, and solver joins the debate."""


def test_numbers_of_a_workflow_that_was_dropped_or_renamed_are_lost_only_where_they_were_played() -> None:
    begins = {"words": [[0, 0]], "debate": [[0, 0], [1, 2]]}
    found = given_up(given_up_log(), begins, *WORDS_ONCE).audit(DRAINED)
    assert says(found) == [
        "debate:0 of judge was issued, but never concluded",
        "debate:1 of judge was issued, but never concluded",
    ], "judge had the debate all the time, and solver later"
    solver = found.policies["solver"]
    assert (solver.issued, solver.trained, solver.discarded, solver.lost) == (4, 3, {"zero_variance": 1}, 0)
    assert given_up(given_up_log(), begins, *WORDS_ONCE, played={}).audit(WHOLE).lost == 2, "those of judge"

    played = given_up_log()
    played.produced(2, "words")
    lost = given_up(played, begins, *WORDS_ONCE).audit(DRAINED)
    assert lost.policies["solver"].lost == 1
    assert "words:2 of solver was produced, but has no outcome and no dead letter" in says(lost)


def test_numbers_of_a_workflow_that_came_back_are_due_from_there_on() -> None:
    more = ({"sums": {"s": "solver"}, "debate": {"s": "solver", "j": "judge"}},)
    both = (*more, {"sums": {"s": "solver"}})
    for before, begins, lost in (
        (both, [[0, 0], [2, 2]], []),  # the third is concluded
        (both, [[0, 0], [2, 1]], ["debate:1 of judge", "debate:1 of solver"]),
        (both, [[0, 0]], []),  # the feeder has not said yet that it goes on
        (more, [[0, 0]], ["debate:0 of judge", "debate:1 of judge", "debate:0 of solver", "debate:1 of solver"]),
    ):
        account = given_up(given_up_log(), {"words": [[0, 0]], "debate": begins}, *before)
        named = [what for what in says(account.audit(DRAINED)) if "never concluded" in what]
        assert sorted(named) == sorted(f"{one} was issued, but never concluded" for one in lost)


def test_what_the_feeder_may_have_forgotten_is_not_counted_as_open_beside_what_it_issued_since() -> None:
    log = Log()
    log.produced(0, "words")
    log.outcome(1)
    account = folded(log.messages).account
    numbers = account.numbers["solver"]
    account.settle()
    numbers.forgettable = {"words": 4}
    assert numbers.count_open_below({"words": 4, "sums": 3}) == 2


def live(log: Log, *, passed: int, reached: int) -> Audit:
    """The audit of a running run, whose workers and curators were so far before anything was read."""
    return folded(
        log.messages,
        played={(TOPICS.tasks("sums"), 0): passed, (TOPICS.tasks("debate"), 0): 0},
        reached={(TOPICS.trajectories("solver"), 0): reached},
    ).account.audit(WHOLE)


def test_a_number_in_flight_is_lost_that_the_workers_are_past_and_of_which_no_group_is_there() -> None:
    assert says(live(clean(), passed=8, reached=0)) == []
    found = live(clean(), passed=9, reached=0)
    assert found.lost == 1
    assert says(found) == [f"sums:8 of solver {GONE}"]


def test_what_the_curators_have_read_has_an_answer_also_while_a_run_goes_on() -> None:
    log = clean()
    log.produced(8)
    assert says(live(log, passed=9, reached=9)) == []
    assert says(live(log, passed=9, reached=10)) == [
        "sums:8 of solver was read by the curators, but has no outcome and no dead letter"
    ]
    log.curated(8)
    assert says(live(log, passed=9, reached=10)) == [
        "sums:8 of solver has a curated record, but no outcome says that it was kept"
    ]


# --------------------------------------------------------------------------------------------------- what is unreadable


def test_what_cannot_be_read_needs_a_letter_that_names_its_offset() -> None:
    log = clean()
    log.say(TOPICS.outcomes("solver"), b"no record")
    log.say(TOPICS.trajectories("solver"), b"", headers=[("run_id", b"r")])
    log.produced(8, run_id="other")
    records = [(message.topic, message.offset) for message in log.messages[-3:]]
    reasons = ("not an Avro single-object message", "header 'policy' is missing", "it is of run id b'other'")
    for what, (topic, offset), reason in zip(says(log.audit(STILL)), records, reasons, strict=True):
        assert what.startswith(f"{topic}[0]@{offset} cannot be used, but has no dead letter: {reason}")
    for topic, offset in records:
        log.letter(topic=topic, offset=offset)
    assert log.audit(STILL).ok


def test_a_task_that_the_feeder_does_not_know_is_lost_and_one_beyond_all_numbers_is_a_problem_like_others() -> None:
    for number, lost in ((b"9", 1), (b"9" * 40, MOST_LISTED)):
        log = clean()
        headers = [("run_id", b"r"), ("stream", b"sums"), ("number", number), ("revision", b"0")]
        log.say(TOPICS.tasks("sums"), b"", headers=headers)
        found = log.audit()
        assert says(found)[0] == f"sums:9 of solver {UNISSUED}"
        assert (found.lost >= lost, len(found.problems.listed)) == (True, lost)


def test_a_letter_that_cannot_be_read_is_told_and_fails_nobody_as_nobody_could_mend_it() -> None:
    log = clean()
    log.say(TOPICS.dead_letters, b"no record")
    log.letter(3, run_id="other")
    found = log.audit(STILL)
    assert (found.ok, found.unreadable_letters) == (True, 1)


def test_what_its_reader_has_not_come_to_yet_may_still_get_its_letter() -> None:
    log = clean()
    log.say(TOPICS.trajectories("solver"), b"")
    partition_id = (TOPICS.trajectories("solver"), 0)
    assert log.audit(positions={partition_id: 9}).ok
    assert not log.audit(positions={partition_id: 10}).ok


def test_a_snapshot_of_the_feeder_that_cannot_be_read_is_a_problem() -> None:
    log = clean()
    log.say(TOPICS.state, b"torn", b"feed")
    assert "the feeder's snapshot t.state[0]@3 cannot be read" in says(log.audit())[0], "before what follows from it"
    log = clean()
    log.say(TOPICS.state, codec.encode(Snapshot("other", "feed", body=b'{"next": {}}')), b"feed")
    assert "cannot be read: it is of another run, with the id 'other'" in says(log.audit())[0]


def test_a_group_on_a_partition_that_is_not_its_own_counts_for_nothing() -> None:
    recipe = RECIPE.model_copy(update={"kafka": RECIPE.kafka.model_copy(update={"partitions": 2})})
    fold = AuditFold("r", recipe)
    headers = Stamp("r", "sums", 1, policy="solver").to_headers()
    assert not fold.fold_message(Message(TOPICS.trajectories("solver"), 0, 0, b"", b"", headers))
    assert "does not belong" in str(fold.account.audit(WHOLE).problems.listed[0])


# ------------------------------------------------------------------------------------------------------- order, a model


FLAWS = st.lists(st.sampled_from([*(flaw for flaw, _ in DOUBLED + UNPROVEN), replayed_twice]), max_size=3, unique=True)


@settings(max_examples=50)
@given(FLAWS, st.randoms(use_true_random=False))
def test_the_order_in_which_partitions_are_read_changes_nothing(flaws: list[Any], draw: Random) -> None:
    log = clean()
    for flaw in flaws:
        flaw(log)
    by_topic: dict[str, list[Message]] = defaultdict(list)
    for message in log.messages:
        by_topic[message.topic].append(message)
    order = [message.topic for message in log.messages]
    draw.shuffle(order)
    lines = {topic: iter(messages) for topic, messages in by_topic.items()}
    found = audited([next(lines[topic]) for topic in order], STILL)
    expected = log.audit(STILL)
    assert replace(found, problems=expected.problems) == expected
    assert sorted(says(found)) == sorted(says(expected))


WORDS = st.sampled_from(["kept", "dropped", "expired", "train", "dead", "redriven", "replay"])
STEPS = st.lists(st.tuples(st.integers(0, 5), WORDS), max_size=25)


@settings(max_examples=50)
@given(STEPS, st.booleans())
def test_the_counts_are_those_of_a_naive_model(steps: list[tuple[int, str]], drained: bool) -> None:
    log = Log()
    log.issued(sums=4)
    trained: Counter[tuple[int, int]] = Counter()
    discarded: Counter[int] = Counter()
    kept: Counter[int] = Counter()
    letters: Counter[int] = Counter()
    for version, (number, what) in enumerate(steps, 1):
        if what in ("train", "replay"):
            log.batch(version, number, use=int(what == "replay"))
            trained[number, int(what == "replay")] += 1
        elif what == "kept":
            log.outcome(number, "kept", "")
            kept[number] += 1
        elif what == "dropped":
            log.outcome(number)
            discarded[number] += 1
        elif what == "expired":
            log.evicted(number)
            discarded[number] += 1
        else:
            log.letter(number, reason=what)
            letters[number] += 1 if what == "dead" else -1
    first = {number for number, use in trained if not use}
    dead = {number for number, count in letters.items() if count > 0}
    concluded = first | discarded.keys() | dead
    in_flight = 4 - len([number for number in concluded if number < 4])
    found = log.audit(Scope(drained=drained)).policies["solver"]
    assert found.trained == len(first)
    assert sum(found.discarded.values()) == len(discarded.keys() - first)
    assert found.dead == len(dead - first - discarded.keys())
    assert found.kept == len(kept)
    assert found.in_flight == in_flight
    assert found.replayed == len({number for number, use in trained if use})
    assert found.lost == len([n for n in concluded if n >= 4]) + (in_flight if drained else 0)
    twice = sum(trained[n, 0] + discarded[n] > 1 for n in range(6)) + sum(trained[n, 1] > 1 for n in range(6))
    twice += sum(count > 1 for count in kept.values()) + len(dead & (first | discarded.keys()))
    assert found.doubled == twice


SHADOWED = Recipe.model_validate(
    {**RECIPE.model_dump(), "shadows": {"free": {"policy": "solver", "trainer": {"steps": 3}}}}
)
FREE = "solver.free"


def shadowed(log: Log, scope: Scope = STILL, answered: int = 0) -> Audit:
    """The audit, where the shadow's curators had read so many groups before anything was read."""
    fold = AuditFold("r", SHADOWED)
    fold.account.known.answered = {FREE: {(TOPICS.trajectories("solver"), 0): answered}}
    for message in log.messages:
        fold.fold_message(message)
    fold.fold_feeder_snapshot()
    return fold.account.audit(scope)


def beside(log: Log, *moved: str) -> Log:
    """The records of these kinds of topics as a shadow's."""
    of = {f"t.{kind}.solver": f"t.{kind}.{FREE}" for kind in moved}
    log.messages = [replace(message, topic=of.get(message.topic, message.topic)) for message in log.messages]
    return log


def with_shadow(trained: tuple[int, ...] = (0, 1), dropped: tuple[int, ...] = (2, 3)) -> Log:
    """Four numbers that the policy trained, and what the shadow did with them."""
    log = Log()
    log.issued(sums=4)
    for number in range(4):
        log.kept(number)
    log.weights(0)
    log.batch(1, 0, 1, 2, 3)
    log.weights(1)
    own = Log()
    for number in trained:
        own.outcome(number, "kept", "")
        own.curated(number)
    for number in dropped:
        own.outcome(number)
    own.weights(0, variant="free")
    own.batch(1, *trained, variant="free")
    own.weights(1, variant="free")
    log.messages += beside(own, "outcomes", "curated", "batches", "weights").messages
    return log


def test_a_shadow_closes_by_itself_and_beside_its_policy() -> None:
    found = shadowed(with_shadow())
    assert found.ok, found.problems.listed
    assert (found.policies["solver"].trained, found.groups.trained) == (4, 4), "the sums are those of policies"
    assert found.shadows[FREE] == PolicyAudit(issued=4, produced=4, kept=2, trained=2, discarded={"zero_variance": 2})


def test_a_shadows_outcome_of_a_group_that_its_policy_refused_may_name_an_unpublished_version() -> None:
    refused = Log()
    refused.outcome(3, head_version=999, max_version=999)
    log = with_shadow(dropped=(2,))
    log.messages += beside(refused, "outcomes").messages
    assert shadowed(log).ok, shadowed(log).problems.listed


def test_what_a_shadow_does_twice_or_leaves_out_is_found_and_is_not_its_policys() -> None:
    twice = with_shadow(trained=(0, 1, 2))
    assert not shadowed(twice).ok, "trained, and dropped too"
    assert shadowed(twice).doubled == shadowed(twice).shadows[FREE].doubled == 1
    assert shadowed(twice).policies["solver"].doubled == 0
    waits = with_shadow(dropped=(2,))
    assert shadowed(waits).ok
    assert shadowed(waits).shadows[FREE].in_flight == 1


def test_what_a_shadows_curators_have_read_has_an_answer() -> None:
    log = with_shadow(dropped=(2,))
    assert shadowed(log, answered=3).ok
    assert says(shadowed(log, answered=4)) == [
        "sums:3 of solver.free was read by the curators, but has no outcome and no dead letter"
    ]
    assert shadowed(with_shadow(), answered=4).ok


def test_what_waits_in_a_shadow_is_lost_once_it_has_made_its_last_version() -> None:
    log = with_shadow(dropped=(2,))
    assert (shadowed(log, DRAINED).ok, shadowed(log, DRAINED).lost) == (True, 0), "it trains on after the run's end"
    more = Log()
    for version in (2, 3):
        more.batch(version, variant="free")
        more.weights(version, variant="free")
    log.messages += beside(more, "batches", "weights").messages
    assert (shadowed(log, DRAINED).ok, shadowed(log, DRAINED).lost) == (False, 1)


def test_a_letter_concludes_a_shadows_number_only_where_no_worker_could_read_the_task() -> None:
    for topic, dead in ((TOPICS.trajectories("solver"), 0), (TOPICS.curated("solver"), 0), (TOPICS.tasks("sums"), 1)):
        log = with_shadow(dropped=(2,))
        log.issued(sums=5)
        log.letter(4, topic=topic, offset=9)
        found = shadowed(log)
        assert (found.policies["solver"].dead, found.shadows[FREE].dead) == (1, dead)


def test_what_a_shadows_trainer_could_not_read_needs_an_outcome_of_its_own() -> None:
    log = with_shadow(dropped=(2,))
    own = Log()
    own.outcome(3, "kept", "")
    own.curated(3)
    own.batch(-1, evictions=(Eviction(GroupUse("sums", 3, 0), "dead"),), variant="free")
    log.messages += beside(own, "outcomes", "curated", "batches").messages
    assert any("evicted by the trainer" in str(problem) for problem in shadowed(log).problems.listed)
    last = Log()
    last.outcome(3, "dropped", "unusable", component="train")
    log.messages += beside(last, "outcomes").messages
    assert shadowed(log).ok, shadowed(log).problems.listed
    assert shadowed(log).shadows[FREE].discarded == {"unusable": 1, "zero_variance": 1}
