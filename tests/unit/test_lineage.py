"""What became of a group, from records; and how it is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from drawn_page import drawn
from made_ledger import MadeLedger
from made_recipes import sums_recipe

from headrace.app.views.lineage_page import FATES, describe_fate, group_page, version_page
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Connection, RunAddress
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreAddress
from headrace.ops.lineage.group_fate import (
    Concluded,
    GroupDeadLetter,
    GroupFate,
    GroupLineage,
    PlayAttempt,
    TrainedUse,
    _find_dead_letters,
    _find_uses,
    find_fate,
    parse_group,
)
from headrace.ops.lineage.lineage import MadeOf, VersionLineage, find_trained_policies, version_shares
from headrace.schemas.ids import GroupId
from headrace.schemas.records import BatchTrained, DeadLetter, GroupUse, Sequence, Trajectory

KEPT = Concluded("kept", "", "curate", 0, 1, 5, (0.0, 1.0), 3, 4, "sum:1", "sum")
EXPIRED = replace(KEPT, verdict="expired", reason="expired", component="train")
DROPPED = replace(KEPT, verdict="dropped", reason="zero_variance")
LETTER = GroupDeadLetter(
    3, "undecodable", "bytes [bold]cut[/] short", "curate.solver", "r.trajectories.solver", 1, 9, False
)
REDRIVE = replace(LETTER, offset=4, reason="redriven", component="redrive")
TRAINED = TrainedUse(7, 0, 2, 32, 1, 5)
ATTEMPT = PlayAttempt(1, 5, 0, True, "w-1", "eu", 2, ("error",), "", 4, 3, 4, 1_000, 3_500, "")


def lineage(fate: str, **changes: Any) -> GroupLineage:
    blank = GroupLineage("demo", "solver", "sums", 9, fate, "", 40, (0,), (), (), (), ())
    return replace(blank, **changes)


def test_the_fate_of_a_number_is_that_of_its_first_use() -> None:
    for trained, concluded, letters, fate in (
        ((TRAINED,), (KEPT,), (), ("trained", "")),
        ((), (KEPT, EXPIRED), (), ("expired", "expired")),
        ((), (DROPPED,), (), ("dropped", "zero_variance")),
        ((), (KEPT,), (replace(LETTER, reason="unusable"),), ("dead", "unusable")),
        ((), (), (LETTER,), ("dead", "undecodable")),
        ((), (), (replace(LETTER, redriven=True), REDRIVE), ("", "")),
        ((), (KEPT,), (replace(LETTER, redriven=True), REDRIVE), ("kept", "")),
        ((replace(TRAINED, use=1),), (replace(KEPT, use=1),), (), ("", "")),
        ((), (), (), ("", "")),
    ):
        assert find_fate(trained, concluded, letters) == fate
    for told in FATES:
        words = describe_fate(lineage(told, reason="zero_variance", trained=(TRAINED,)))
        assert words.endswith("."), told
        assert "{" not in words, told


def test_a_group_is_found_in_every_batch_that_used_it() -> None:
    other, ours = GroupUse("sums", 8, 0, 0, 1), GroupUse("sums", 9, 0, 1, 5)
    ledger = MadeLedger()
    for version, groups in enumerate(((other, ours), (replace(ours, use=1, offset=8),), (replace(ours, number=7),)), 1):
        ledger.say(BatchTrained(version=version, groups=groups))

    assert _find_uses(ledger, "solver", "sums", 9) == (TrainedUse(1, 0, 1, 2, 1, 5), TrainedUse(2, 1, 0, 1, 1, 8))


def test_the_dead_letters_of_a_group_say_which_were_sent_back_and_a_shadow_has_only_those_of_its_task() -> None:
    ledger = MadeLedger()
    played = DeadLetter("", "curate.solver", "t.trajectories.solver", 1, 9, "undecodable", "cut", "", "sums", 9, use=2)
    for one in (played, replace(played, number=8), replace(played, topic="t.tasks.sums"), replace(played, policy="x")):
        ledger.say(one)
    ledger.say(replace(played, component="redrive", reason="redriven", redrives=0, offset=12))
    run = Run(RunAddress(Connection("k:1"), "t"), "r", (sums_recipe(),), StoreAddress("127.0.0.1:1", "b", "k", "s"))

    first, of_task, notice = _find_dead_letters(run, ledger, "solver", "sums", 9)

    place = "t.trajectories.solver", 1, 9
    assert first == GroupDeadLetter(0, "undecodable", "cut", "curate.solver", *place, redriven=True, use=2)
    assert (of_task.offset, of_task.redriven, notice.reason, notice.message_offset) == (2, False, "redriven", 12)
    assert _find_dead_letters(run, ledger, "solver.free", "sums", 9) == (of_task,)


def test_shares_count_generated_tokens_of_every_sequence() -> None:
    runs = np.array([-1, 7, 3, 6, 4, 2], np.int32), np.array([-1, 1, 10, 2], np.int32)
    group = (Trajectory(sequences=tuple(Sequence(version_runs=run) for run in runs)), Trajectory())

    assert version_shares(group) == {"3": 0.6, "4": 0.2, "10": 0.2}
    assert version_shares(()) == {}


def test_the_way_of_a_group_names_every_station_and_its_position() -> None:
    repeated = replace(ATTEMPT, offset=6, counts=False)
    found = lineage("trained", attempts=(ATTEMPT, repeated), concluded=(KEPT,), letters=(LETTER,), trained=(TRAINED,))
    told = " ".join(drawn(group_page(GroupFate("demo", "sums:9", {"solver": found}))).split())
    for words in (
        "produced trajectories[1]@5 by w-1 eu",
        "passed over trajectories[1]@6",
        "kept outcomes[1]@5 by curate, rewards 0 1, task sum:1",
        "dead letter @3 by curate.solver, undecodable: r.trajectories.solver[1]@9",
        "bytes [bold]cut[/] short",  # what a record says is text, not markup
        "trained version 7, index 2 of 32, from curated[1]@5",
    ):
        assert words in told


def test_a_number_that_was_not_issued_is_told_which_were() -> None:
    assert describe_fate(lineage("never_issued")) == "it was never issued: sums:0 to sums:39 were."
    nothing = lineage("never_issued", issued_next=0)
    assert describe_fate(nothing) == "it was never issued: no task of that stream was."


def test_a_group_of_a_workflow_that_a_later_recipe_dropped_can_be_looked_up() -> None:
    before = sums_recipe(
        policies={"solver": {"path": "x"}, "judge": {"path": "y"}},
        workflows={
            "sums": {"env": "a", "policies": {"s": "solver"}},
            "debate": {"env": "a", "policies": {"s": "solver", "j": "judge"}},
            "trial": {"env": "a", "policies": {"j": "judge"}},
        },
    )
    now = sums_recipe(policies={"solver": {"path": "x"}})
    run = Run(RunAddress(Connection("k:1"), "t"), "run-1", (before, now), StoreAddress("127.0.0.1:1", "b", "k", "s"))
    assert find_trained_policies(run, "debate.eu") == ("solver",)
    assert parse_group(run, "debate:3") == GroupId("debate", 3)
    with pytest.raises(UsageError, match="stream 'trial' of run t trains no policy of the run's newest recipe"):
        find_trained_policies(run, "trial")
    with pytest.raises(UsageError, match="run t has no stream 'other': it has sums, debate, trial"):
        find_trained_policies(run, "other")


def version(*groups: MadeOf) -> VersionLineage:
    return VersionLineage(
        "demo", "run-1", "solver", 7, 0, 0, 6, "a" * 64, "b" * 64, "weights/b.safetensors", "c" * 64, 9,
        {"torch": "2.9", "device": "cpu", "threads": "1"}, {}, 1_700_000_000_000, groups,
    )  # fmt: skip


def test_a_version_shows_its_groups_in_order_also_those_that_are_gone() -> None:
    made = MadeOf("sums", 9, 0, 1, 5, task_id="[b]3+4?", worker="w-1", reward_mean=0.5, head_version=6)
    made = replace(made, min_version=5, max_version=6, version_shares={"5": 0.25, "6": 0.75})
    gone = MadeOf("sums", 8, 1, 0, 2, missing=True)

    told = drawn(version_page(version(made, gone)), width=120)

    rows = told[told.index("curated\n") :].splitlines()[1:]
    assert [row.split()[1] for row in rows[:2]] == ["sums:9", "sums:8"]
    assert "[b]3+4?" in rows[0]
    assert "5 (25%), 6 (75%)" in rows[0]
    assert "missing" in rows[1]
    assert "1 missing or unreadable on the curated topic" in told
