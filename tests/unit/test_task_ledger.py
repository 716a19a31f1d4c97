"""The ledger of one partition of tasks: no interleaving of starts, ends and restarts loses an unfinished offset."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.producers.task_ledger import MOST_METADATA_BYTES, TaskLedger


class Partition(RuleBasedStateMachine):
    """A partition with gaps, its owners one after the other, and what is really finished."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets: list[int] = []
        self.finished: set[int] = set()
        self.committed = (-1001, "")
        self.ledger = TaskLedger(*self.committed)
        self.unread = 0
        self.received: list[int] = []

    @rule(gap=st.integers(1, 3))
    def a_task_is_issued(self, gap: int) -> None:
        self.offsets.append((self.offsets[-1] if self.offsets else -1) + gap)

    @precondition(lambda self: self.unread < len(self.offsets))
    @rule()
    def the_next_is_received(self) -> None:
        offset = self.offsets[self.unread]
        self.unread += 1
        if self.ledger.receive(offset):
            self.received.append(offset)
        else:
            assert offset in self.finished

    @precondition(lambda self: self.received)
    @rule(data=st.data())
    def one_is_started(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(self.received))
        assert self.ledger.add_start(offset) is (offset in self.ledger._open)

    @precondition(lambda self: self.received)
    @rule(data=st.data())
    def one_is_finished(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(self.received))
        self.received.remove(offset)
        self.finished.add(offset)
        self.ledger.mark_done(offset)

    @rule()
    def a_commit_is_made(self) -> None:
        offset, metadata = self.ledger.commit()
        assert offset >= self.committed[0]
        self.committed = (offset, metadata)

    @rule(in_good_order=st.booleans())
    def the_partition_moves(self, *, in_good_order: bool) -> None:
        if in_good_order:
            self.ledger.reset_starts()
            self.committed = self.ledger.commit()
        self.ledger = TaskLedger(*self.committed)
        self.unread = sum(offset < self.committed[0] for offset in self.offsets)
        self.received = []

    @invariant()
    def nothing_unfinished_is_passed(self) -> None:
        assert {offset for offset in self.offsets if offset < self.committed[0]} <= self.finished
        assert len(self.committed[1]) <= MOST_METADATA_BYTES


test_no_interleaving_loses_an_unfinished_offset = Partition.TestCase


def test_done_tasks_are_skipped_and_open_ones_keep_their_starts() -> None:
    ledger = TaskLedger(5)
    for offset in (5, 6, 8, 9):
        assert ledger.add_start(offset)
    ledger.mark_done(6)
    ledger.mark_done(8)
    offset, metadata = ledger.commit()
    assert (offset, metadata) == (5, '{"done":"1-3","started":"0:1,4:1"}')

    heir = TaskLedger(offset, metadata)
    assert not heir.add_start(6)
    assert not heir.add_start(8)
    assert heir.add_start(5)
    assert heir.add_start(9)
    assert [heir.count_starts(offset) for offset in (5, 7, 9)] == [1, 0, 1]
    assert TaskLedger(*heir.commit()).count_starts(9) == 2


def test_an_owner_that_leaves_in_good_order_takes_its_own_starts_back_and_no_others() -> None:
    ledger = TaskLedger(0, '{"started":"0:1"}')
    ledger.add_start(0)
    ledger.add_start(1)
    ledger.reset_starts()
    assert ledger.commit() == (0, '{"started":"0:1"}')
    for offset in (0, 1):
        ledger.mark_done(offset)
    assert ledger.commit() == (2, ""), "once all is finished, the next offset"


def test_a_commit_that_names_another_run_counts_as_none_and_one_that_names_no_run_as_ours() -> None:
    earlier = TaskLedger(4, '{"done":"2","started":"0:2"}', "earlier")
    offset, metadata = earlier.commit()
    assert (offset, metadata) == (4, '{"done":"2","started":"0:2","run":"earlier"}')
    again = TaskLedger(offset, metadata, "earlier")
    assert (again.position, again.receive(4), again.receive(6), again.count_starts(4)) == (4, True, False, 2)
    later = TaskLedger(offset, metadata, "later")
    assert (later.position, later.receive(0), later.receive(6), later.count_starts(4)) == (0, True, True, 0)
    of_older_build = TaskLedger(4, '{"done":"2"}', "later")
    assert (of_older_build.position, of_older_build.receive(6)) == (4, False)
    assert TaskLedger(4, "", "later").position == 4
    assert TaskLedger(-1001, "", "later").position == 0


def test_foreign_metadata_means_that_nothing_is_done() -> None:
    for text in ("{", "[1]", '{"done":"x"}', '{"started":"1"}', '{"done":3}'):
        ledger = TaskLedger(0, text)
        assert ledger.receive(0)
        assert not ledger.count_starts(0)


def test_metadata_too_large_keeps_start_counts_and_long_runs_and_loses_no_task() -> None:
    n = 6_000
    ledger = TaskLedger(0)
    started = set(range(0, n, 60))
    for offset in range(n):
        ledger.receive(offset)
        if offset in started:
            ledger.add_start(offset)
    a_long_run = set(range(5_461, 5_519))
    finished = a_long_run | {offset for offset in range(5_400) if offset not in started and offset % 3}
    for offset in finished:
        ledger.mark_done(offset)

    offset, metadata = ledger.commit()
    assert offset == 0
    assert MOST_METADATA_BYTES // 2 < len(metadata) <= MOST_METADATA_BYTES
    heir = TaskLedger(offset, metadata)
    again = {offset for offset in range(n) if heir.receive(offset)}
    assert again >= set(range(n)) - finished
    assert {offset for offset in again if heir.count_starts(offset)} == started
    assert not again & a_long_run
    assert len(again) < n - len(a_long_run)
