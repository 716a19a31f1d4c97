"""Shares of workers of different speed: the feeder's choice of partitions, over simulated workers."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import pytest

from headrace.producers.feed.pacing import Pacing, Quota
from headrace.schemas.ids import GroupId

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
    assert sum(played) >= 0.95 * 600 * places * sum(SPEEDS), "nobody waits for the slow one"


def test_a_worker_with_the_last_partitions_gets_tasks_though_fewer_are_open_than_there_are_partitions() -> None:
    played = play([range(4), range(4, 8), range(8, 12)], batch=2, places=4)

    assert min(played) > 0.1 * sum(played), played
