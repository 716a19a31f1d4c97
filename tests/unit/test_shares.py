"""Shares of workers of different speed: the feeder's choice of partitions, over simulated workers."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from headrace.infra.kafka.group_offsets import Commit
from headrace.infra.run.run import Run
from headrace.producers.feed import task_commits
from headrace.producers.feed.pacing import Pacing, Quota
from headrace.producers.feed.task_commits import TaskCommits
from headrace.producers.task_ledger import TaskLedger, read_owner
from headrace.schemas.ids import GroupId
from headrace.schemas.topics import Topics

STREAM, POLICY = "sums", "solver"
SPEEDS = (1.0, 0.6, 0.3)
"""Groups per second that a worker plays at each of its places."""


def play(owned: Sequence[range], *, batch: int, places: int, seconds: float = 600.0, step_s: float = 0.3) -> list[int]:
    """Return how many groups each worker plays.

    Args:
        owned: Partitions of each worker.
        batch: Groups per batch; two batches may be open.
        places: Groups that each worker plays at once.
        seconds: How long they play.
        step_s: Seconds that a batch is trained.
    """
    pacing = Pacing({STREAM: (POLICY,)}, {POLICY: Quota(2 * batch, 10**9, batch)}, "any", sum(map(len, owned)))
    queues: list[list[GroupId]] = [[] for _ in owned]
    played, running = [0] * len(owned), [0] * len(owned)
    trained: list[GroupId] = []
    ends: list[tuple[float, int, list[GroupId]]] = []  # when, by which worker or -1 for the trainer, what
    now_s, trains_until_s = 0.0, 0.0
    pacing.owners[STREAM] = {one: str(worker) for worker, partitions in enumerate(owned) for one in partitions}
    while now_s < seconds:
        while pacing.has_room(STREAM):
            number, task = pacing.issue(STREAM, 0, "")
            [owner] = [worker for worker, partitions in enumerate(owned) if task.partition in partitions]
            queues[owner].append(GroupId(STREAM, number))
        for worker, queue in enumerate(queues):
            while queue and running[worker] < places:
                running[worker] += 1
                heapq.heappush(ends, (now_s + 1 / SPEEDS[worker], worker, [queue.pop(0)]))
        now_s, worker, groups = heapq.heappop(ends)
        if worker < 0:
            for group in groups:
                pacing.conclude(group, POLICY)
            continue
        played[worker] += 1
        running[worker] -= 1
        pacing.acknowledge(groups[0], POLICY)
        trained += groups
        if len(trained) == batch:
            trains_until_s = max(now_s, trains_until_s) + step_s
            heapq.heappush(ends, (trains_until_s, -1, trained))
            trained = []
    return played


@pytest.mark.parametrize(
    "owned",
    [
        [range(3), range(3, 6), range(6, 8)],
        [range(5, 8), range(2), range(2, 5)],
        [range(2), range(2, 5), range(5, 8)],
        [range(20), range(20, 42), range(42, 64)],
    ],
)
@pytest.mark.parametrize(("batch", "places"), [(8, 1), (32, 1), (32, 4), (32, 8)])
def test_while_tasks_wait_for_workers_each_gets_its_share_by_its_speed_whatever_its_partitions(
    owned: Sequence[range], batch: int, places: int
) -> None:
    played = play(owned, batch=batch, places=places)

    shares = [count / sum(played) / (speed / sum(SPEEDS)) for count, speed in zip(played, SPEEDS, strict=True)]
    assert shares == pytest.approx([1, 1, 1], abs=0.1), played
    assert sum(played) >= 0.94 * 600 * places * sum(SPEEDS), "nobody waits for the slow one"


def test_of_partitions_whose_workers_are_not_known_yet_each_gets_its_turn() -> None:
    pacing = Pacing({STREAM: (POLICY,)}, {POLICY: Quota(2, 10)}, "any", 4)
    chosen = []
    for _ in range(4):
        number, task = pacing.issue(STREAM, 0, "")
        chosen.append(task.partition)
        pacing.conclude(GroupId(STREAM, number))

    assert chosen == [0, 1, 2, 3], "and not always the first"


def test_a_commit_names_its_worker_by_a_mark_that_others_leave_out() -> None:
    marks = [read_owner(TaskLedger(0, "", "run", name).commit()[1]) for name in ("a", "b", "a" * 9999, "")]

    assert len({*marks}) == 4
    assert max(map(len, marks)) == 8
    assert [read_owner(odd) for odd in ("", "{", "[]", '{"by":[1]}', '{"run":"r"}')] == [""] * 5


def test_the_feeder_learns_from_commits_which_partitions_are_of_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def commit(owner: str, run_id: str = "run") -> Commit:
        return Commit(*TaskLedger(3, "", run_id, owner).commit())

    topic = Topics("t").tasks(STREAM)
    found = {(topic, 0): commit("a"), (topic, 1): commit("a"), (topic, 2): commit(""), (topic, 3): commit("a", "other")}
    monkeypatch.setattr(task_commits, "fetch_commits", lambda *_: found)
    commits, owners = object.__new__(TaskCommits), dict[str, dict[int, str]]()
    commits.run = cast("Run", SimpleNamespace(connection=None, topics=Topics("t"), run_id="run"))

    assert commits._fetch_committed(STREAM, owners) == {(STREAM, partition): 3 for partition in range(3)}
    [(stream, marks)] = owners.items()
    assert (stream, list(marks), len(set(marks.values()))) == (STREAM, [0, 1], 1)
