"""The number of requests at once that Headrace finds, on servers in memory: `python -m benchmarks.admission`.

Each simulated server has a KV cache of its own size, and makes its own number of tokens between two readings of its
load. It gets short answers, long answers, or answers of equal length. How close does the speed of the found number come
to that of the best of six fixed numbers? `benchmarks.served_engine --only admission` asks the same of real servers.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from headrace.producers.engines.served.admission import Admission
from headrace.producers.engines.served.server_api import ServerLoad

CAPACITIES, STRIDES = (3000, 6000, 12000), (10, 20)
PROMPT = 40
FIXED = (4, 8, 16, 32, 64, 128)
EPISODES = 128
LOOK_EVERY = 5
"""Steps of an idle server between two readings."""


@dataclass(eq=False)
class Request:
    """One under way, with the tokens that its answer will have."""

    tokens: int
    made: int = 0

    @property
    def size(self) -> int:
        """Tokens in the KV cache."""
        return PROMPT + self.made


class Server:
    """A server in memory: a step makes some tokens of each request, and the newest gives way where the cache is full.

    A step costs time by itself and for each request; a prompt, and what is computed again, for each token.
    """

    def __init__(self, capacity: int, stride: int) -> None:
        self.capacity, self.stride = capacity, stride
        self.now, self.retractions = 0.0, 0
        self.running: list[Request] = []
        self.queue: deque[Request] = deque()

    @property
    def used(self) -> int:
        """Tokens in the KV cache."""
        return sum(one.size for one in self.running)

    def step(self) -> int:
        """Return how many requests ended."""
        used, computed = self.used, 0
        while self.queue and used + self.queue[0].size + self.stride * (len(self.running) + 1) <= self.capacity:
            self.running.append(self.queue.popleft())
            used += self.running[-1].size
            computed += self.running[-1].size
        while used + self.stride * len(self.running) > self.capacity:
            self.queue.appendleft(self.running.pop())
            used -= self.queue[0].size
            self.retractions += 1
        self.now += 1 + 0.02 * len(self.running) + 0.001 * computed
        for one in self.running:
            one.made += self.stride
        before = len(self.running)
        self.running = [one for one in self.running if one.made < one.tokens]
        return before - len(self.running)


@dataclass(frozen=True, slots=True)
class Workload:
    """Lengths of answers."""

    draw: Callable[[], Iterator[int]]
    most: int
    """Tokens that an answer may have, which is all that the server is told."""
    until: float
    """Time at which it ends, in steps of an idle server; what counts is its second half."""


def draw_short() -> Iterator[int]:
    chosen = random.Random(1)  # noqa: S311 - a workload that is the same each time
    while True:
        yield chosen.randrange(20, 200, 20)


def draw_long() -> Iterator[int]:
    chosen = random.Random(1)  # noqa: S311 - a workload that is the same each time
    while True:
        yield min(2000, int(chosen.lognormvariate(6.2, 0.6)))


def draw_equal() -> Iterator[int]:
    while True:
        yield 600


WORKLOADS: Mapping[str, Workload] = {
    "short": Workload(draw_short, 200, 300.0),
    "long": Workload(draw_long, 2000, 1500.0),
    "equal": Workload(draw_equal, 2000, 1500.0),
}


@dataclass(frozen=True, slots=True)
class Played:
    """What a number of requests at once gave."""

    speed: float
    """Answers in a unit of time."""
    retractions: float
    """Per answer."""


def play(workload: Workload, server: Server, admission: Admission) -> Played:
    """Play a workload to its end."""
    lengths = workload.draw()
    under_way = answers = looked = 0
    half = (0.0, 0, 0)
    while server.now < workload.until:
        for _ in range(min(admission.limit, EPISODES) - under_way):
            admission.note_request(PROMPT + workload.most)
            server.queue.append(Request(next(lengths)))
            under_way += 1
        ended = server.step()
        under_way, answers = under_way - ended, answers + ended
        for _ in range(ended):
            admission.note_ended()
        if server.now > looked + LOOK_EVERY:
            looked = int(server.now)
            load = ServerLoad(len(server.running), len(server.queue), server.used, server.capacity, server.retractions)
            admission.look(load, under_way, EPISODES - under_way)
        if server.now < workload.until / 2:
            half = (server.now, answers, server.retractions)
    began, answers_before, retractions_before = half
    made = answers - answers_before
    return Played(made / (server.now - began), (server.retractions - retractions_before) / made)


@dataclass(frozen=True, slots=True)
class Found:
    """The found number beside the best fixed one."""

    answers: str
    capacity: int
    stride: int
    limit: int
    """At the end."""
    share: float
    """Of the speed of the best fixed number."""
    retractions: float
    """Per answer, with the found number."""
    best: int
    best_retractions: float


def measure(name: str, capacity: int, stride: int) -> Found:
    workload = WORKLOADS[name]
    fixed = {most: play(workload, Server(capacity, stride), Admission(most)) for most in FIXED}
    best = max(fixed, key=lambda most: fixed[most].speed)
    admission = Admission()
    found = play(workload, Server(capacity, stride), admission)
    share = found.speed / fixed[best].speed
    limit = min(admission.limit, EPISODES)
    return Found(name, capacity, stride, limit, share, found.retractions, best, fixed[best].retractions)


def show(console: Console, rows: Sequence[Found]) -> None:
    table = Table(title="The number of requests at once that is found, beside the best of six fixed ones")
    for name in ("answers", "cache, tokens", "tokens a step", "found", "share of the best", "retractions per answer"):
        table.add_column(name, justify="right")
    for name in ("best fixed", "its retractions per answer"):
        table.add_column(name, justify="right")
    for one in rows:
        sizes = (f"{one.capacity:,}", str(one.stride), str(one.limit))
        figures = (f"{one.share:.2f}", f"{one.retractions:.2f}", str(one.best), f"{one.best_retractions:.2f}")
        table.add_row(one.answers, *sizes, *figures)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacities", type=int, nargs="+", default=CAPACITIES, help="tokens in the KV cache")
    parser.add_argument("--strides", type=int, nargs="+", default=STRIDES, help="tokens that a step makes of a request")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    rows = [measure(name, size, made) for name in WORKLOADS for size in options.capacities for made in options.strides]
    show(Console(), rows)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
