"""How many requests a server gets at once, against the best number that is known beforehand."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from headrace.producers.engines.admission import FIRST, NO_LIMIT, Admission
from headrace.producers.engines.server_api import ServerLoad

CAPACITY, PROMPT, STRIDE = 6000, 40, 20
FIXED = (4, 8, 16, 32, 64, 128)
EPISODES = 128


@dataclass(eq=False)
class Request:
    tokens: int
    made: int = 0

    @property
    def size(self) -> int:
        return PROMPT + self.made


class Server:
    """A server in memory: a step makes some tokens of each request, and the newest gives way where the cache is full.

    A step costs time by itself and for each request; a prompt, and what is computed again, for each token.
    """

    def __init__(self) -> None:
        self.now, self.retractions = 0.0, 0
        self.running: list[Request] = []
        self.queue: deque[Request] = deque()

    @property
    def used(self) -> int:
        return sum(one.size for one in self.running)

    def step(self) -> int:
        """Return how many requests ended."""
        used, computed = self.used, 0
        while self.queue and used + self.queue[0].size + STRIDE * (len(self.running) + 1) <= CAPACITY:
            self.running.append(self.queue.popleft())
            used += self.running[-1].size
            computed += self.running[-1].size
        while used + STRIDE * len(self.running) > CAPACITY:
            self.queue.appendleft(self.running.pop())
            used -= self.queue[0].size
            self.retractions += 1
        self.now += 1 + 0.02 * len(self.running) + 0.001 * computed
        for one in self.running:
            one.made += STRIDE
        before = len(self.running)
        self.running = [one for one in self.running if one.made < one.tokens]
        return before - len(self.running)


def draw_short() -> Iterator[int]:
    chosen = random.Random(1)  # noqa: S311 - a workload that is the same each time
    while True:
        yield chosen.randrange(20, 200, STRIDE)


def draw_long() -> Iterator[int]:
    chosen = random.Random(1)  # noqa: S311 - a workload that is the same each time
    while True:
        yield min(2000, int(chosen.lognormvariate(6.2, 0.6)))


def play(draw: Callable[[], Iterator[int]], most: int, admission: Admission, until: float) -> tuple[float, float]:
    """Return answers in a unit of time and retractions for each, both after half of the time."""
    server, lengths = Server(), draw()
    under_way = answers = looked = 0
    half = (0.0, 0, 0)
    while server.now < until:
        for _ in range(min(admission.limit, EPISODES) - under_way):
            admission.note_request(PROMPT + most)
            server.queue.append(Request(next(lengths)))
            under_way += 1
        ended = server.step()
        under_way, answers = under_way - ended, answers + ended
        for _ in range(ended):
            admission.note_ended()
        if server.now > looked + 5:
            looked = int(server.now)
            load = ServerLoad(len(server.running), len(server.queue), server.used, CAPACITY, server.retractions)
            admission.look(load, under_way, EPISODES - under_way)
        if server.now < until / 2:
            half = (server.now, answers, server.retractions)
    began, answers_before, retractions_before = half
    made = answers - answers_before
    return made / (server.now - began), (server.retractions - retractions_before) / made


@pytest.mark.parametrize(("draw", "most", "until"), [(draw_short, 200, 300.0), (draw_long, 2000, 1500.0)])
def test_the_limit_that_is_found_is_nearly_as_fast_as_the_best_that_is_known_beforehand_and_retracts_little(
    draw: Callable[[], Iterator[int]], most: int, until: float
) -> None:
    best = max(play(draw, most, Admission(fixed), until)[0] for fixed in FIXED)
    admission = Admission()
    speed, retractions = play(draw, most, admission, until)
    assert speed >= 0.95 * best
    assert retractions <= 1.5
    assert admission.limit != FIRST


def read(running: int = 0, waiting: int = 0, used: int = 0, capacity: int = 1000, retractions: int = 0) -> ServerLoad:
    return ServerLoad(running, waiting, used, capacity, retractions)


@pytest.mark.parametrize(
    ("ended", "held_back", "loads", "limit"),
    [
        (16, 1, [read(16, used=475)], 32),
        (15, 1, [read(16, used=475)], 16),
        (16, 1, [read(10, used=475)], 20),
        (16, 1, [read(0), read(8, used=475)], 17),
        (16, 1, [read(0)], 16),
        (16, 1, [read(16, used=1)], 64),
        (16, 0, [read(16, used=475)], 16),
        (16, 1, [read(16, used=970)], 16),
        (16, 1, [read(15, waiting=1, used=475)], 16),
        (16, 1, [read(16, used=475, retractions=13)], 16),
        (0, 1, [read(16, used=475, retractions=24)], 16),
        (0, 1, [read(10, waiting=6, used=990, retractions=25)], 10),
        (0, 1, [read(4, waiting=12, used=990)], 16),
        (0, 1, [read(4, waiting=12, used=990)] * 2, 12),
        (0, 1, [read(4, waiting=2, used=990)] * 2, 16),
        (0, 1, [read(4, waiting=12, used=990, retractions=1)] * 2, 16),
        (0, 0, [read(16, capacity=50 * 100)], 50),
        (0, 1, [read(16, capacity=0)], NO_LIMIT),
    ],
)
def test_the_limit_grows_where_there_is_room_and_is_cut_for_retractions_and_a_queue(
    ended: int, held_back: int, loads: list[ServerLoad], limit: int
) -> None:
    admission, exact = Admission(), Admission(7)
    for one in (admission, exact):
        one.note_request(100)
        one.look(read(), 16, held_back)
        for _ in range(ended):
            one.note_ended()
        for load in loads:
            one.look(load, 16, held_back)
    assert (admission.limit, exact.limit) == (limit, 7)


def test_a_queue_is_no_reason_while_the_server_still_has_more_than_a_cut_limit_allows() -> None:
    admission = Admission()
    for _ in range(3):
        admission.look(read(4, waiting=13, used=990), FIRST + 1, 9)
    assert admission.limit == FIRST


def test_retractions_from_before_the_first_reading_or_from_before_a_start_are_not_counted() -> None:
    admission = Admission()
    for retractions in (1000, 1020, 0, 4):
        admission.look(read(10, waiting=6, used=990, retractions=retractions), FIRST + 1, 9)
    assert admission.limit == FIRST
    admission.look(read(10, waiting=6, used=990, retractions=5), FIRST + 1, 9)
    assert admission.limit == 10
