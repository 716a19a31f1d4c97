from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.producers.feed.overdue import NumbersSource, OverdueNumbers, Passed
from headrace.producers.feed.pacing import FRESH_LOOK_BACK, MOST_DEAD_NUMBERS, Pacing, Quota
from headrace.schemas.ids import GroupId

PARTITIONS = 3


def pacing(pace: Any = "any", quotas: dict[str, Quota] | None = None, **policies_of: tuple[str, ...]) -> Pacing:
    streams = policies_of or {"math": ("solver",)}
    names = {policy for policies in streams.values() for policy in policies}
    return Pacing(streams, quotas or dict.fromkeys(names, Quota(4, 10)), pace, PARTITIONS)


def issue_all(state: Pacing) -> list[tuple[str, int]]:
    issued: list[tuple[str, int]] = []
    while (stream := state.choose_stream()) is not None:
        number, _ = state.issue(stream, len(issued), "")
        issued.append((stream, number))
    return issued


def restore(second: Pacing, first: Pacing, written: dict[str, Any]) -> None:
    """Write what has changed over what was written before, and have another take it."""
    written |= json.loads(json.dumps(first.table.take_changes()))
    chunks = [chunk for chunk in written.values() if chunk is not None]
    second.restore(json.loads(json.dumps(first.snapshot())), chunks)


def test_what_is_replayed_makes_room_smaller_down_to_one_batch_over_a_restart() -> None:
    state = pacing(quotas={"solver": Quota(12, 10, batch=4)})
    for _ in range(FRESH_LOOK_BACK):
        state.note_batch("solver", 2, 4)
    state.note_batch("solver", 0, 0)
    assert state.open_limit("solver") == 6, "batches are half fresh: a number waits three versions as before"
    second = pacing(quotas={"solver": Quota(12, 10, batch=4)})
    restore(second, state, {})
    assert len(issue_all(second)) == 6
    for _ in range(FRESH_LOOK_BACK):
        state.note_batch("solver", 0, 4)
    assert state.open_limit("solver") == 4, "or no batch would come together when nothing is left to replay"
    for _ in range(FRESH_LOOK_BACK):
        state.note_batch("solver", 4, 4)
    assert state.open_limit("solver") == 12


def test_a_conclusion_makes_room_for_one_more_and_its_repetition_does_not() -> None:
    state, group = pacing(), GroupId("math", 2)
    assert issue_all(state) == [("math", n) for n in range(4)], "exactly the quota"
    assert (state.reissue(group).attempt, sum(state.count_outstanding("math"))) == (1, 4)
    assert [state.acknowledge(group, "solver") for _ in range(2)] == [True, False]
    assert issue_all(state) == [], "a group that was kept stays open"
    assert [state.conclude(group, "solver") for _ in range(2)] == [True, False]
    assert issue_all(state) == [("math", 4)]
    turns = pacing(quotas={"solver": Quota(6, 10)}, easy=("solver",), hard=("solver",))
    assert [stream for stream, _ in issue_all(turns)] == ["easy", "hard"] * 3, "workflows take turns"


def test_any_follows_the_policy_with_most_room_and_all_the_one_with_least() -> None:
    quotas = {"solver": Quota(5, 10), "judge": Quota(2, 10)}
    issued = [len(issue_all(pacing(pace, quotas, debate=("solver", "judge")))) for pace in ("any", "all")]
    assert issued == [5, 2]


def test_a_policy_with_all_its_versions_has_no_say() -> None:
    for pace in ("any", "all"):
        state = pacing(pace, {"solver": Quota(5, 10), "judge": Quota(2, 10)}, debate=("solver", "judge"))
        state.note_version("judge", 10)
        assert len(issue_all(state)) == 5
        state.conclude(GroupId("debate", 0), "judge")
        assert issue_all(state) == []
        state.note_version("solver", 10)
        state.conclude(GroupId("debate", 1))
        assert issue_all(state) == []
        assert state.end_reason() == "steps"


def test_the_partition_with_the_fewest_outstanding_is_taken_and_the_smaller_of_equals() -> None:
    state = pacing(quotas={"solver": Quota(6, 10)})
    issue_all(state)
    assert [state.tasks["math", n].partition for n in range(6)] == [0, 1, 2, 0, 1, 2]
    state.conclude(GroupId("math", 1), "solver")
    state.acknowledge(GroupId("math", 4), "solver")  # kept, so past the workers, and open at the trainer
    assert state.count_outstanding("math") == (2, 0, 2)
    assert issue_all(state) == [("math", 6)]
    assert state.tasks["math", 6].partition == 1


def test_a_run_ends_solved_when_every_stream_of_the_policies_left_is_closed() -> None:
    state = pacing(sums=("solver",), debate=("solver", "judge"))
    state.closed.add("sums")
    assert state.end_reason() == ""
    assert {stream for stream, _ in issue_all(state)} == {"debate"}
    state.closed.add("debate")
    assert state.end_reason() == "solved"


def test_only_numbers_that_nobody_told_of_and_that_were_committed_past_are_lost() -> None:
    state = pacing(quotas={"solver": Quota(4, 10)})
    issue_all(state)
    for number in range(4):
        state.tasks["math", number].offset = 10 + number  # partitions 0, 1, 2, 0
    committed = {("math", 0): 14, ("math", 1): 11}
    assert list(state.find_passed(committed)) == [(("math", 0), 0, ("solver",)), (("math", 3), 0, ("solver",))]
    state.acknowledge(GroupId("math", 0), "solver")
    assert list(state.find_passed(committed)) == [(("math", 3), 0, ("solver",))]


def lost(number: int, attempt: int = 0, policies: tuple[str, ...] = ("solver",)) -> Passed:
    return Passed(GroupId("math", number), attempt, policies)


def test_overdue_counts_from_the_first_look_and_a_lost_number_waits_twice_as_long_each_time() -> None:
    overdue = OverdueNumbers(10, 1)
    read = {NumbersSource("solver", 0): 5}
    assert overdue.find_due([lost(1), lost(2)], read, read, 100) == []
    assert overdue.find_due([lost(1)], read, read, 109) == []
    assert overdue.find_due([lost(1), lost(2)], read, read, 110) == [("math", 1)]
    assert overdue.find_due([lost(1, 1), lost(2)], read, read, 119) == []
    assert overdue.find_due([lost(1, 1), lost(2)], read, read, 120) == [("math", 2)]
    assert overdue.find_due([lost(1, 1)], read, read, 138) == []
    assert overdue.find_due([lost(1, 1)], read, read, 139) == [("math", 1)]


def test_no_number_is_overdue_while_the_curators_have_not_read_what_there_was_when_it_was_passed() -> None:
    overdue = OverdueNumbers(10, 2)
    one, both = NumbersSource("solver", 1), [lost(1), lost(3)]
    assert overdue.find_sources(both) == {one}
    for now in range(0, 10_000, 100):
        assert overdue.find_due(both, {one: 7 + now}, {one: 6} if now else {}, now) == []
    assert overdue.find_due(both, {one: 20_000}, {one: 7}, 10_000) == [], "the wait begins"
    assert overdue.find_due([*both, lost(5)], {one: 20_000}, {one: 7}, 10_010) == [("math", 1), ("math", 3)]


def test_every_policy_of_a_number_must_have_had_its_turn() -> None:
    overdue = OverdueNumbers(10, 1)
    passed = [lost(1, policies=("judge", "solver"))]
    ends = {NumbersSource("solver", 0): 3, NumbersSource("judge", 0): 3}
    assert overdue.find_due(passed, ends, {NumbersSource("solver", 0): 3, NumbersSource("judge", 0): 2}, 0) == []
    assert overdue.find_due(passed, ends, {NumbersSource("solver", 0): 3, NumbersSource("judge", 0): 2}, 100) == []
    assert overdue.find_due(passed, ends, ends, 200) == []
    assert overdue.find_due(passed, ends, ends, 210) == [("math", 1)]


EVENT = st.tuples(
    st.sampled_from(["issue", "heard", "conclude", "reissue", "mark_dead", "reopen"]),
    st.sampled_from(["sums", "debate"]),
    st.integers(0, 12),
    st.sampled_from(["solver", "judge", ""]),
)


@given(st.lists(EVENT, max_size=80), st.integers(0, 80))
def test_counts_hold_whatever_happens_in_whatever_order_and_over_a_restart(  # noqa: C901 - a table of events
    events: list[tuple[str, str, int, str]], restart_at: int
) -> None:
    def fresh() -> Pacing:
        quotas = {"solver": Quota(5, 10), "judge": Quota(3, 10)}
        return pacing("any", quotas, sums=("solver",), debate=("solver", "judge"))

    state, issued, written = fresh(), Counter[str](), dict[str, Any]()
    for step, (what, stream, number, policy) in enumerate(events):
        if step == restart_at:
            before, state = state, fresh()
            restore(state, before, written)
        elif step % 3 == 0:
            written |= json.loads(json.dumps(state.table.take_changes()))
        if what == "issue":
            if state.has_room(stream):
                assert state.issue(stream, step, "")[0] == issued[stream]
                issued[stream] += 1
        elif what == "heard":
            state.acknowledge(GroupId(stream, number), policy)
        elif what == "conclude":
            state.conclude(GroupId(stream, number), policy)
            task = state.tasks.get((stream, number))
            assert task is None or (policy and policy not in task.open)
        elif what == "mark_dead":
            state.mark_dead(GroupId(stream, number), policy)
        elif what == "reopen":
            state.reopen(GroupId(stream, number), policy, (step % PARTITIONS, step) if step % 2 else None)
        elif (stream, number) in state.tasks:
            state.reissue(GroupId(stream, number))
    restore(again := fresh(), state, written)
    assert (again.tasks, list(again.dead.items())) == (state.tasks, list(state.dead.items()))
    assert (again.snapshot(), again.table.take_changes()) == (state.snapshot(), {})
    for policy in ("solver", "judge"):
        assert state.count_open(policy) == sum(policy in task.open for task in state.tasks.values())
    for stream in ("sums", "debate"):
        assert state.next[stream] == issued[stream]
        waiting = Counter(t.partition for (s, _), t in state.tasks.items() if s == stream and t.unacknowledged)
        assert state.count_outstanding(stream) == tuple(waiting[p] for p in range(PARTITIONS))
        assert all(task.unacknowledged <= task.open for task in (*state.tasks.values(), *state.dead.values()))
    assert all(dead.open and not dead.open & opened(state, numbered) for numbered, dead in state.dead.items())


def opened(state: Pacing, numbered: tuple[str, int]) -> set[str]:
    return state.tasks[numbered].open if numbered in state.tasks else set()


def test_a_dead_number_makes_room_and_takes_it_again_when_it_is_sent_back() -> None:
    state = pacing()
    issue_all(state)
    state.mark_dead(GroupId("math", 2), "solver")
    assert issue_all(state) == [("math", 4)]
    assert state.reopen(GroupId("math", 2), "solver")
    assert not state.reopen(GroupId("math", 2), "solver")
    assert (state.count_open("solver"), sum(state.count_outstanding("math"))) == (5, 5)
    state.conclude(GroupId("math", 2), "solver")
    assert (state.count_open("solver"), sum(state.count_outstanding("math"))) == (4, 4)


def test_a_number_that_is_open_again_and_that_nobody_tells_of_is_lost_and_asked_again() -> None:
    state = pacing()
    issue_all(state)
    state.tasks["math", 1].offset = 11
    state.mark_dead(GroupId("math", 1))
    assert list(state.find_passed({("math", 1): 40})) == []
    state.reopen(GroupId("math", 1), "")
    assert list(state.find_passed({("math", 1): 40})) == [(("math", 1), 0, ("solver",))]
    assert state.reissue(GroupId("math", 1)).index == 1
    state.mark_dead(GroupId("math", 0))
    state.reopen(GroupId("math", 0), "", (2, 57))  # the task itself stands at another offset again
    assert list(state.find_passed({("math", 0): 40, ("math", 2): 57})) == []
    assert list(state.find_passed({("math", 2): 58})) == [(("math", 0), 0, ("solver",))]


def test_a_copy_that_concludes_before_the_word_of_it_came_is_not_opened_by_that_word() -> None:
    state = pacing()
    issue_all(state)
    for number in (1, 2):
        state.mark_dead(GroupId("math", number), "solver")
    assert not state.conclude(GroupId("math", 1), "solver")
    assert not state.reopen(GroupId("math", 1), "solver")
    assert state.acknowledge(GroupId("math", 2), "solver")  # curated and kept
    assert state.reopen(GroupId("math", 2), "solver")
    assert state.tasks["math", 2].unacknowledged == set()


def test_only_the_newest_dead_numbers_are_kept() -> None:
    state = pacing(quotas={"solver": Quota(MOST_DEAD_NUMBERS + 10, 10)})
    issue_all(state)
    for number in range(MOST_DEAD_NUMBERS + 5):
        state.mark_dead(GroupId("math", number))
    assert min(state.dead) == ("math", 5)
    assert not state.reopen(GroupId("math", 4), "")


def test_what_is_written_of_a_change_does_not_grow_with_what_is_open() -> None:
    def written(most_open: int) -> tuple[int, int]:
        state = pacing(quotas={"solver": Quota(most_open, 10)})
        issue_all(state)
        chunks = state.table.take_changes()
        assert sum(len(chunk["open"]) for chunk in chunks.values() if chunk) == most_open
        assert max(len(json.dumps(chunk)) for chunk in chunks.values()) < 10_000
        assert state.table.take_changes() == {}
        state.acknowledge(GroupId("math", 77), "solver")
        state.acknowledge(GroupId("math", 77), "solver")
        state.mark_dead(GroupId("math", 78))
        state.conclude(GroupId("math", 79))
        state.conclude(GroupId("math", 79))
        [changed] = state.table.take_changes().values()
        assert changed is not None
        assert [row[1] for row in changed["dead"]] == [78]
        return len(json.dumps(changed)), len(json.dumps(state.snapshot()))

    small, large = written(200), written(20_000)
    assert large[0] == small[0]
    assert large[1] <= small[1] + 4, "the digits of the next number"


def test_every_change_of_a_number_has_it_written_again() -> None:
    state = pacing()
    issue_all(state)
    state.mark_dead(GroupId("math", 1))
    changes: dict[str, Callable[[], object]] = {
        "acknowledged": lambda: state.acknowledge(GroupId("math", 0), "solver"),
        "issued again": lambda: state.reissue(GroupId("math", 2)),
        "acknowledged while dead": lambda: state.acknowledge(GroupId("math", 1), "solver"),
        "opened again": lambda: state.reopen(GroupId("math", 1), ""),
        "dead": lambda: state.mark_dead(GroupId("math", 3)),
        "concluded while dead": lambda: state.conclude(GroupId("math", 3)),
        "concluded": lambda: state.conclude(GroupId("math", 0)),
        "issued": lambda: state.issue("math", 9, ""),
    }
    for what, change in changes.items():
        state.table.take_changes()
        change()
        assert list(state.table.take_changes()) == ["math|0"], what
    state.conclude(GroupId("math", 0))
    assert state.table.take_changes() == {}, "nothing has changed"


def test_a_chunk_in_which_nothing_is_left_is_taken_back() -> None:
    state = pacing()
    issue_all(state)
    state.table.take_changes()
    state.conclude(GroupId("math", 0))
    assert state.table.changed == 1
    for number in range(1, 4):
        state.conclude(GroupId("math", number))
    assert state.table.take_changes() == {"math|0": None}


def test_a_snapshot_of_before_there_were_chunks_is_read_and_goes_on_in_chunks() -> None:
    state = pacing(quotas={"solver": Quota(200, 10)})
    old = {**state.snapshot(), "next": {"math": 200}}
    del old["deaths"]
    old["open"] = [["math", n, n, "", n % PARTITIONS, 0, 10 + n, ["solver"], ["solver"]] for n in range(1, 199)]
    old["dead"] = [["math", n, n, "", 0, 1, 5, [], ["solver"]] for n in (199, 0)]
    state.restore(json.loads(json.dumps(old)), [{"open": [["math", 3, 9, "", 0, 9, 9, [], []]]}])
    assert (state.count_open("solver"), sum(state.count_outstanding("math"))) == (198, 198)
    assert (state.tasks["math", 3].attempt, list(state.dead)) == (0, [("math", 199), ("math", 0)])
    state.mark_dead(GroupId("math", 5))
    again, written = pacing(quotas={"solver": Quota(200, 10)}), dict[str, Any]()
    restore(again, state, written)
    assert sorted(written) == [f"math|{chunk}" for chunk in range(7)]
    assert (again.tasks, again.dead) == (state.tasks, state.dead)
    assert list(again.dead)[-1] == ("math", 5)
