from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.audit import Audit, AuditFold, PolicyAudit
from infra.kafka import Message
from infra.settings import Recipe
from schemas import codec
from schemas.headers import Stamp
from schemas.records import BatchTrained, DeadLetter, GroupUse, Outcome, Snapshot

Record = BatchTrained | Outcome | DeadLetter | Snapshot

RECIPE = Recipe.model_validate(
    {
        "name": "t",
        "policies": {"solver": {"path": "x"}, "judge": {"path": "y"}},
        "workflows": {
            "sums": {"env": {"use": "a"}, "policies": {"solver": "solver"}},
            "debate": {"env": {"use": "a"}, "policies": {"s": "solver", "j": "judge"}},
        },
    },
)


def issued(**numbers: int) -> Snapshot:
    return Snapshot(run_id="r", component="feed", body=json.dumps({"next": numbers}).encode())


def batch(version: int, *numbers: int, policy: str = "solver", stream: str = "sums", use: int = 0) -> BatchTrained:
    return BatchTrained("r", policy, version=version, groups=tuple(GroupUse(stream, n, use) for n in numbers))


def outcome(number: int, verdict: str = "dropped", reason: str = "zero_variance", **more: Any) -> Outcome:
    common = {"run_id": "r", "stream": "sums", "policy": "solver", "component": "curate"}
    return Outcome(**{**common, "number": number, "verdict": verdict, "reason": reason, **more})


def letter(number: int, policy: str = "solver", stream: str = "sums", **more: Any) -> DeadLetter:
    return DeadLetter(**{"run_id": "r", "policy": policy, "stream": stream, "number": number, **more})


def audited(*records: Record, drained: bool = False) -> Audit:
    fold = AuditFold("r", RECIPE)
    for place, record in enumerate(records):
        fold.take_record(record, place)
    return fold.audit(drained=drained)


def solver(*records: Record, drained: bool = False) -> PolicyAudit:
    return audited(*records, drained=drained).policies["solver"]


FLOW: list[Record] = [
    issued(sums=8, debate=2),
    outcome(0, "kept", ""),
    batch(1, 0, 1),
    batch(2, 2),
    outcome(3),
    outcome(4, "expired", "", component="train"),
    outcome(5, "run_end", "run_end", component="train"),
    letter(6),
    batch(1, 0, policy="judge", stream="debate"),
]


def test_every_number_is_trained_discarded_dead_or_in_flight() -> None:
    assert solver(*FLOW) == PolicyAudit(
        issued=10,
        trained=3,
        discarded={"expired": 1, "run_end": 1, "zero_variance": 1},
        dead=1,
        in_flight=3,
    )
    judge = audited(*FLOW).policies["judge"]
    assert (judge.issued, judge.trained, judge.in_flight) == (2, 1, 1)
    assert audited(*FLOW).ok


@given(st.permutations(list(enumerate(FLOW[1:]))), st.lists(st.sampled_from(list(enumerate(FLOW[1:]))), max_size=6))
def test_neither_the_order_nor_reading_a_record_again_changes_a_count(
    order: list[tuple[int, Record]], again: list[tuple[int, Record]]
) -> None:
    fold = AuditFold("r", RECIPE)
    for place, record in (*order, *again, (-1, FLOW[0])):
        fold.take_record(record, place)
    assert fold.audit(drained=False) == audited(*FLOW)


def test_what_is_in_flight_when_all_is_drained_is_lost() -> None:
    found = audited(*FLOW, drained=True)
    assert (found.ok, found.lost, found.policies["solver"].lost) == (False, 4, 3)


def test_a_number_that_concluded_without_having_been_issued_is_lost() -> None:
    found = solver(issued(sums=1), batch(1, 0), outcome(7))
    assert (found.in_flight, found.lost) == (0, 1)


@pytest.mark.parametrize(
    "records",
    [
        pytest.param((batch(1, 0), batch(2, 0)), id="two batches"),
        pytest.param((batch(1, 0, 0),), id="one batch twice"),
        pytest.param((batch(1, 0), batch(1, 0)), id="one batch recorded twice"),
        pytest.param((outcome(0), outcome(0)), id="dropped twice"),
        pytest.param((outcome(0, "kept", ""), outcome(0, "kept", "")), id="kept twice"),
        pytest.param((batch(1, 0), letter(0)), id="trained and dead"),
        pytest.param((batch(1, 0), outcome(0)), id="trained and dropped"),
        pytest.param((outcome(0), outcome(0, "expired", "", component="train")), id="dropped and expired"),
        pytest.param((batch(1, 0, use=1), batch(2, 0, use=1)), id="a replay twice"),
    ],
)
def test_a_use_that_concluded_twice_is_doubled(records: tuple[Record, ...]) -> None:
    found = audited(issued(sums=1), *records)
    assert (found.ok, found.doubled) == (False, 1)


def test_replays_and_single_trajectories_are_counted_apart() -> None:
    found = solver(
        issued(sums=1),
        batch(1, 0),
        batch(2, 0, use=1),
        outcome(0, reason="length", level="trajectory", trajectory_id="sums:0:3"),
    )
    assert (found.trained, found.replayed, found.trajectories_discarded, found.in_flight) == (1, 1, 1, 0)
    assert found.discarded == {}
    assert found.doubled == 0


def test_a_dead_task_is_dead_for_all_policies_of_its_workflow() -> None:
    found = audited(issued(debate=1), letter(0, policy="", stream="debate"))
    assert {policy: (a.dead, a.in_flight) for policy, a in found.policies.items()} == {
        "solver": (1, 0),
        "judge": (1, 0),
    }


def test_evaluations_and_other_runs_are_left_out() -> None:
    foreign: list[Record] = [replace(record, run_id="other") for record in FLOW]
    evaluations: list[Record] = [outcome(1, stream="eval.sums"), letter(1, stream="eval.sums"), letter(-1)]
    assert audited(*FLOW, *foreign, *evaluations) == audited(*FLOW)


def test_the_newest_snapshot_of_the_feeder_tells_what_was_issued() -> None:
    fold = AuditFold("r", RECIPE)
    bodies = [(b"feed", issued(sums=3)), (b"curate.solver|x|0", Snapshot(run_id="r", body=b"{}")), (b"feed", FLOW[0])]
    for offset, (key, record) in enumerate(bodies):
        fold.take(Message(RECIPE.topics.state, 0, offset, key, codec.encode(record)))
    assert fold.audit(drained=False).policies["solver"].issued == 10


def test_a_task_that_the_feeder_does_not_know_is_lost_and_unreadable_bytes_are_passed_over() -> None:
    fold = AuditFold("r", RECIPE)
    fold.take_record(issued(sums=3), 0)
    tasks = RECIPE.topics.tasks("sums")
    fold.take(Message(tasks, 0, 0, b"", b"", Stamp("r", "sums", 2).to_headers()))
    fold.take(Message(tasks, 0, 1, b"", b""))
    fold.take(Message(RECIPE.topics.outcomes("solver"), 0, 0, b"", b"no record"))
    assert fold.audit(drained=False).ok
    fold.take(Message(tasks, 0, 2, b"", b"", Stamp("r", "sums", 3).to_headers()))
    assert fold.audit(drained=False).lost == 1
