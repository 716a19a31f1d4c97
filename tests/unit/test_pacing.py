from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.producers.feed.pacing import LOOK_BACK, MOST_DEAD, Overdue, Pacing, Quota

PARTITIONS = 3


def pacing(pace: Any = "any", quotas: dict[str, Quota] | None = None, **policies_of: tuple[str, ...]) -> Pacing:
    streams = policies_of or {"math": ("solver",)}
    names = {policy for policies in streams.values() for policy in policies}
    return Pacing(streams, quotas or dict.fromkeys(names, Quota(4, 10)), pace, PARTITIONS)


def issue_all(state: Pacing) -> list[tuple[str, int]]:
    issued: list[tuple[str, int]] = []
    while (stream := state.next_stream()) is not None:
        number, _ = state.issue(stream, len(issued), "")
        issued.append((stream, number))
    return issued


def test_exactly_the_quota_is_open() -> None:
    state = pacing()
    assert issue_all(state) == [("math", n) for n in range(4)]
    assert state.open("solver") == 4


def test_what_is_replayed_makes_room_smaller_down_to_one_batch_over_a_restart() -> None:
    state = pacing(quotas={"solver": Quota(12, 10, batch=4)})
    for _ in range(LOOK_BACK):
        state.batch("solver", 2, 4)
    state.batch("solver", 0, 0)
    assert state.most_open("solver") == 6, "batches are half fresh: a number waits three versions as before"
    second = pacing(quotas={"solver": Quota(12, 10, batch=4)})
    second.restore(json.loads(json.dumps(state.snapshot())))
    assert len(issue_all(second)) == 6
    for _ in range(LOOK_BACK):
        state.batch("solver", 0, 4)
    assert state.most_open("solver") == 4, "or no batch would come together when nothing is left to replay"
    for _ in range(LOOK_BACK):
        state.batch("solver", 4, 4)
    assert state.most_open("solver") == 12


def test_a_conclusion_makes_room_for_one_more_and_its_repetition_does_not() -> None:
    state = pacing()
    issue_all(state)
    assert state.conclude("math", 2, "solver")
    assert not state.conclude("math", 2, "solver")
    assert issue_all(state) == [("math", 4)]


def test_a_group_that_was_kept_stays_open() -> None:
    state = pacing()
    issue_all(state)
    assert state.acknowledged("math", 0, "solver")
    assert not state.acknowledged("math", 0, "solver")
    assert issue_all(state) == []


def test_workflows_take_turns() -> None:
    state = pacing(quotas={"solver": Quota(6, 10)}, easy=("solver",), hard=("solver",))
    assert [stream for stream, _ in issue_all(state)] == ["easy", "hard"] * 3


@pytest.mark.parametrize(("pace", "issued"), [("any", 5), ("all", 2)])
def test_any_follows_the_policy_with_most_room_and_all_the_one_with_least(pace: str, issued: int) -> None:
    quotas = {"solver": Quota(5, 10), "judge": Quota(2, 10)}
    assert len(issue_all(pacing(pace, quotas, debate=("solver", "judge")))) == issued


@pytest.mark.parametrize("pace", ["any", "all"])
def test_a_policy_with_all_its_versions_has_no_say(pace: str) -> None:
    quotas = {"solver": Quota(5, 10), "judge": Quota(2, 10)}
    state = pacing(pace, quotas, debate=("solver", "judge"))
    state.version("judge", 10)
    assert len(issue_all(state)) == 5
    state.conclude("debate", 0, "judge")
    assert issue_all(state) == []
    state.version("solver", 10)
    state.conclude("debate", 1)
    assert issue_all(state) == []
    assert state.ended() == "steps"


def test_the_partition_with_the_fewest_outstanding_is_taken_and_the_smaller_of_equals() -> None:
    state = pacing(quotas={"solver": Quota(6, 10)})
    issue_all(state)
    assert [state.tasks["math", n].partition for n in range(6)] == [0, 1, 2, 0, 1, 2]
    state.conclude("math", 1, "solver")
    state.acknowledged("math", 4, "solver")  # kept, so past the workers, and open at the trainer
    assert state.outstanding("math") == (2, 0, 2)
    assert issue_all(state) == [("math", 6)]
    assert state.tasks["math", 6].partition == 1


def test_a_run_ends_solved_when_every_stream_of_the_policies_left_is_closed() -> None:
    state = pacing(sums=("solver",), debate=("solver", "judge"))
    state.closed.add("sums")
    assert state.ended() == ""
    assert {stream for stream, _ in issue_all(state)} == {"debate"}
    state.closed.add("debate")
    assert state.ended() == "solved"


def test_a_reissued_number_is_another_attempt_of_the_same_number() -> None:
    state = pacing()
    issue_all(state)
    task = state.reissue("math", 1)
    assert task.attempt == 1
    assert sum(state.outstanding("math")) == 4
    state.conclude("math", 1, "solver")
    assert sum(state.outstanding("math")) == 3


def test_only_numbers_that_nobody_told_of_and_that_were_committed_past_are_lost() -> None:
    state = pacing(quotas={"solver": Quota(4, 10)})
    issue_all(state)
    for number in range(4):
        state.tasks["math", number].offset = 10 + number  # partitions 0, 1, 2, 0
    committed = {("math", 0): 14, ("math", 1): 11}
    assert list(state.passed(committed)) == [("math", 0, 0), ("math", 3, 0)]
    state.acknowledged("math", 0, "solver")
    assert list(state.passed(committed)) == [("math", 3, 0)]


def test_overdue_counts_from_the_first_look_and_a_new_attempt_begins_anew() -> None:
    overdue = Overdue(10)
    lost = [("math", 1, 0), ("math", 2, 0)]
    assert overdue.due(lost, 100) == []
    assert overdue.due(lost[:1], 109) == []
    assert overdue.due(lost, 110) == [("math", 1)]
    assert overdue.due([("math", 1, 1), lost[1]], 119) == []
    assert overdue.due([("math", 1, 1), lost[1]], 120) == [("math", 2)]


EVENT = st.tuples(
    st.sampled_from(["issue", "heard", "conclude", "reissue", "bury", "reopen"]),
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

    state, issued = fresh(), Counter[str]()
    for step, (what, stream, number, policy) in enumerate(events):
        if step == restart_at:
            body = json.dumps(state.snapshot())
            state = fresh()
            state.restore(json.loads(body))
        if what == "issue":
            if state.has_room(stream):
                assert state.issue(stream, step, "")[0] == issued[stream]
                issued[stream] += 1
        elif what == "heard":
            state.acknowledged(stream, number, policy)
        elif what == "conclude":
            state.conclude(stream, number, policy)
            task = state.tasks.get((stream, number))
            assert task is None or (policy and policy not in task.open)
        elif what == "bury":
            state.mark_dead(stream, number, policy)
        elif what == "reopen":
            state.reopen(stream, number, policy, (step % PARTITIONS, step) if step % 2 else None)
        elif (stream, number) in state.tasks:
            state.reissue(stream, number)
    for policy in ("solver", "judge"):
        assert state.open(policy) == sum(policy in task.open for task in state.tasks.values())
    for stream in ("sums", "debate"):
        assert state.next[stream] == issued[stream]
        waiting = Counter(t.partition for (s, _), t in state.tasks.items() if s == stream and t.unacknowledged)
        assert state.outstanding(stream) == tuple(waiting[p] for p in range(PARTITIONS))
        assert all(task.unacknowledged <= task.open for task in (*state.tasks.values(), *state.dead.values()))
    assert all(dead.open and not dead.open & opened(state, numbered) for numbered, dead in state.dead.items())


def opened(state: Pacing, numbered: tuple[str, int]) -> set[str]:
    return state.tasks[numbered].open if numbered in state.tasks else set()


def test_a_dead_number_makes_room_and_takes_it_again_when_it_is_sent_back() -> None:
    state = pacing()
    issue_all(state)
    state.mark_dead("math", 2, "solver")
    assert issue_all(state) == [("math", 4)]
    assert state.reopen("math", 2, "solver")
    assert not state.reopen("math", 2, "solver")
    assert (state.open("solver"), sum(state.outstanding("math"))) == (5, 5)
    state.conclude("math", 2, "solver")
    assert (state.open("solver"), sum(state.outstanding("math"))) == (4, 4)


def test_a_number_that_is_open_again_and_that_nobody_tells_of_is_lost_and_asked_again() -> None:
    state = pacing()
    issue_all(state)
    state.tasks["math", 1].offset = 11
    state.mark_dead("math", 1)
    assert list(state.passed({("math", 1): 40})) == []
    state.reopen("math", 1, "")
    assert list(state.passed({("math", 1): 40})) == [("math", 1, 0)]
    assert state.reissue("math", 1).index == 1
    state.mark_dead("math", 0)
    state.reopen("math", 0, "", (2, 57))  # the task itself stands at another place again
    assert list(state.passed({("math", 0): 40, ("math", 2): 57})) == []
    assert list(state.passed({("math", 2): 58})) == [("math", 0, 0)]


def test_what_the_curator_had_kept_waits_for_the_trainer_alone_when_it_is_sent_back() -> None:
    state = pacing()
    issue_all(state)
    state.acknowledged("math", 1, "solver")
    state.mark_dead("math", 1, "solver")
    state.reopen("math", 1, "solver")
    assert not state.tasks["math", 1].unacknowledged


def test_a_copy_that_concludes_before_the_word_of_it_came_is_not_opened_by_that_word() -> None:
    state = pacing()
    issue_all(state)
    for number in (1, 2):
        state.mark_dead("math", number, "solver")
    assert not state.conclude("math", 1, "solver")
    assert not state.reopen("math", 1, "solver")
    assert state.acknowledged("math", 2, "solver")  # curated and kept
    assert state.reopen("math", 2, "solver")
    assert state.tasks["math", 2].unacknowledged == set()


def test_one_policy_is_opened_beside_another_that_never_closed() -> None:
    state = pacing(debate=("solver", "judge"))
    issue_all(state)
    state.mark_dead("debate", 0, "judge")
    state.reissue("debate", 0)
    state.reopen("debate", 0, "judge")
    assert state.tasks["debate", 0].attempt == 1
    assert state.tasks["debate", 0].open == {"solver", "judge"}
    assert (state.open("solver"), state.open("judge")) == (4, 4)


def test_only_the_newest_dead_numbers_are_kept() -> None:
    state = pacing(quotas={"solver": Quota(MOST_DEAD + 10, 10)})
    issue_all(state)
    for number in range(MOST_DEAD + 5):
        state.mark_dead("math", number)
    assert min(state.dead) == ("math", 5)
    assert not state.reopen("math", 4, "")
