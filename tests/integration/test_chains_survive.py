"""Curators that are killed and suspended under every data algorithm write what one undisturbed would.

The algorithms stand in a few chains, of which one is swapped for another while groups of both arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_run import make_run, tiny_recipe
from said import say
from stoppable import Component, Start, starter, until
from test_pauses import SHORT_SESSION, assert_curated_exactly_once, concluded, curate

from headrace.consumers.algorithms.chain import ALGORITHMS
from headrace.infra.embedded.kafka_server import EmbeddedKafka
from headrace.infra.kafka.clients import Message, Outgoing
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.run.run import Run, join, read_revisions
from headrace.infra.store.object_store import ObjectStore
from headrace.schemas import codec
from headrace.schemas.headers import Stamp
from headrace.schemas.records import Failure, Sampling, Sequence, Span, Trajectory, TrajectoryGroup

Tables = list[dict[str, Any]]

CHAINS: dict[str, Tables] = {
    "filters": [
        {"use": "failures", "policy": "keep_survivors"},
        {"use": "validate"},
        {"use": "max_staleness", "limit": 2},
        {"use": "drop_zero_variance"},
        {"use": "length_bounds", "longest": 11},
        {"use": "mask_truncated"},
        {"use": "repetition", "run": 4, "probability": 0.6},
        {"use": "gibberish", "vocabulary": 20, "rare_id": 17, "offset": -1},
        {"use": "best_and_worst", "m": 4},
        {"use": "replay_uniform", "ratio": 0.4, "max_staleness": 6},
    ],
    "shaping": [
        {"use": "validate"},
        {"use": "scale_rewards", "scale": 2.0},
        {"use": "overlong", "limit": 12, "buffer": 4},
        {"use": "linear_length"},
        {"use": "kimi_length"},
        {"use": "normalise_rewards"},
        {"use": "pods", "m": 3},
        {"use": "replay_prioritised", "ratio": 0.5, "capacity": 12},
    ],
    "sampling": [{"use": "random_m", "m": 3}, {"use": "replay_recency", "ratio": 0.3}],
    "short": [{"use": "gfpo", "m": 3}, {"use": "replay_dots", "ratio": 0.6, "max_uses": 3}],
    "swapped": [{"use": "drop_zero_variance"}, {"use": "replay_latest", "ratio": 0.5, "max_uses": 2}],
}
SWAPPED_AT = 90
"""The first number of the second chain, in the run that is swapped."""
KILLS = ("handled", "begun 2", "produced", "offsets_sent", "committing")
SUSPENSIONS = ("handled", "begun", "produced", "offsets_sent", "committing")
TOTAL = 240


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker that gives a member up after 4 s of silence."""
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka"), config=SHORT_SESSION) as server:
        yield server


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    yield from starter(tmp_path / "components")


@dataclass
class Tried:
    """A run of one chain, and its first curator."""

    name: str
    run: Run
    curator: Component

    def say(self, numbers: Iterable[int]) -> None:
        say(self.run, *(varied(self.run, number, self.revision(number)) for number in numbers))

    def concludes(self, count: int) -> None:
        until(lambda: concluded(self.run) == count, f"{count} numbers of {self.name} are concluded")

    def revision(self, number: int) -> int:
        return int(self.name == "swapped" and number >= SWAPPED_AT)


def suspend(start: Start, tried: list[Tried], point: str, numbers: range) -> None:
    """Suspend all curators at a point, wake them when others have taken over, and end them: the others are left."""
    standing = [one.curator for one in tried]
    for one in tried:
        one.curator.arm(f"curate.{point}")
        one.say(numbers[:-4])
        one.curator = curate(start, one.run, f"after-{point}")
    for curator in standing:
        until(lambda curator=curator: curator.stopped_at(f"curate.{point}"), f"{curator} stands at {point}")
    for one, curator in zip(tried, standing, strict=True):
        one.concludes(numbers[-4])
        curator.wake()
        one.say(numbers[-4:])
    for one, curator in zip(tried, standing, strict=True):
        one.concludes(numbers.stop)
        curator.process.terminate()


def varied(run: Run, number: int, revision: int) -> Outgoing:
    """A group of six, lengths, rewards, ages and ends as they come by its number."""
    draw = np.random.default_rng(number)
    head = number // 20
    trajectories = []
    for member in range(6):
        length = int(draw.integers(2, 14))
        version = max(0, head - int(draw.integers(0, 4)))
        why = "length" if draw.random() < 0.1 else "stop"
        sequence = Sequence(
            ids=np.concatenate([[5, 6], draw.integers(1, 19, length)]).astype(np.int32),
            logprobs=np.concatenate([[0, 0], -draw.random(length)]).astype(np.float32),
            version_runs=np.array([-1, 2, version, length], np.int32),
            spans=(Span("prompt", 2), Span("generated", length, finish_reason=why, sampling=Sampling())),
        )
        reward = float(draw.integers(0, 3)) / 2 if number % 5 else 1.0
        trajectories.append(Trajectory(f"sums:{number}:{member}", reward, {}, (sequence,)))
    failures = (Failure(),) if number % 7 == 0 else ()
    group = TrajectoryGroup(
        run_id=run.run_id,
        stream="sums",
        number=number,
        policy="solver",
        revision=revision,
        n_asked=6 + len(failures),
        trajectories=tuple(trajectories),
        failures=failures,
        head_version=head,
    )
    stamp = Stamp(run.run_id, "sums", number, revision=revision, policy="solver", head_version=head)
    partition = number % run.recipe.kafka.partitions
    return Outgoing(run.topics.trajectories("solver"), codec.encode(group), stamp.key, stamp.to_headers(), partition)


def made(kafka: EmbeddedKafka, store: ObjectStore, name: str, chain: Tables) -> Run:
    run = make_run(kafka.bootstrap, store, tiny_recipe(name, curate={"snapshot_every_s": 0.3, "chain": chain}))
    if chain is not CHAINS["swapped"]:
        return run
    later = tiny_recipe(name, curate={"snapshot_every_s": 0.3, "chain": CHAINS["sampling"]})
    revision = replace(read_revisions(run.address)[0], revision=1, recipe=later.to_json(), swapped=True)
    say(run, Outgoing(run.topics.recipe, codec.encode(revision), partition=0))
    return join(run.address)


def curated(run: Run) -> Iterator[Message]:
    return read_all(run.connection, [run.topics.curated("solver")])


def test_every_algorithm_is_in_one_of_the_chains() -> None:
    assert {one["use"] for chain in CHAINS.values() for one in chain} == set(ALGORITHMS)


@pytest.mark.faults
def test_curators_that_are_killed_and_suspended_write_what_an_undisturbed_one_would(
    kafka: EmbeddedKafka, store: ObjectStore, run_name: str, start: Start
) -> None:
    runs = {name: made(kafka, store, f"{run_name}-{name}", chain) for name, chain in CHAINS.items()}
    tried = [Tried(name, run, curate(start, run, "a")) for name, run in runs.items()]
    done = 0
    for part, point in enumerate(KILLS):
        for one in tried:
            one.curator.arm(f"curate.{point.partition(' ')[0]}", f"kill {point.partition(' ')[2] or 1}")
        end = done + TOTAL // (len(KILLS) + 2)
        for one in tried:
            one.say(range(done, end - 3 * (part % 2)))  # some numbers come late, after those of the next part
            one.say(range(max(0, done - 3), done))
        done = end
        for one in tried:
            until(lambda one=one: one.curator.restarted(), f"the curator of {one.name} dies at {point}")
    assert all(one.curator.process.poll() is None for one in tried)
    for one in tried:
        one.say(range(done - 3, done))
        one.concludes(done)

    firsts = {one.name: one.curator for one in tried}
    for part, point in enumerate(SUSPENSIONS):
        end = done + (TOTAL - done) // (len(SUSPENSIONS) - part)
        suspend(start, tried, point, range(done, end))
        done = end
    for one in tried:
        assert_curated_exactly_once(one.run)
        ended = firsts[one.name].said("chain.ended")
        assert {line["revision"] for line in ended} == ({0} if one.name == "swapped" else set()), one.name
        assert any(Stamp.from_headers(message.headers).use for message in curated(one.run)), f"{one.name} replays"
