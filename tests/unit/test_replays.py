"""A chain that has groups trained on again: what the curator writes of it, and what it refuses."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from test_curation import RECIPE, group, message, read

from headrace.consumers.algorithms.chain import Chain, ChainError
from headrace.consumers.algorithms.contract import Candidate, Keep, Replay, Result
from headrace.consumers.algorithms.replay import LARGEST_CAPACITY, HeldGroup
from headrace.consumers.algorithms.replay_prioritised import ReplayPrioritised
from headrace.consumers.curate import replayable_groups
from headrace.consumers.curate.context import CuratorContext
from headrace.consumers.curate.curator import CuratorPartition
from headrace.infra.kafka.clients import MESSAGE_BYTES, Outgoing
from headrace.infra.recipe.settings import Recipe
from headrace.schemas.headers import Stamp
from headrace.schemas.records import CuratedGroup, GroupUse, Outcome
from headrace.schemas.topics import Topics

BOUND = 20


class EveryThird:
    """Keeps all; beside every third group it asks for each earlier one, twice at most; it remembers eight."""

    def __init__(self) -> None:
        self.seen = 0
        self.remembered: list[list[Any]] = []

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:
        self.seen += 1
        results: list[Result] = [Keep(candidate)]
        for one in self.remembered if self.seen % 3 == 0 else ():
            stream, number, low, used = one
            results.append(Replay(GroupUse(stream, number, used + 1), low + BOUND, low, low, 1 / (used + 1)))
            one[3] = used + 1
        self.remembered.append([candidate.group.stream, candidate.group.number, candidate.min_version, 0])
        self.remembered = [one for one in self.remembered if one[3] < 2][-8:]
        return results

    def holds(self) -> Iterable[tuple[str, int]]:
        return [(stream, number) for stream, number, *_ in self.remembered]

    def snapshot(self) -> dict[str, Any]:
        return {"seen": self.seen, "remembered": self.remembered}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.seen, self.remembered = state["seen"], [list(one) for one in state["remembered"]]


class Asks(EveryThird):
    """Keeps all; beside the second group it asks for what it was told to."""

    def __init__(self, number: int, use_: int, weight: float = 1.0) -> None:
        super().__init__()
        self._again = Replay(GroupUse("sums", number, use_), weight=weight)

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:
        self.seen += 1
        return [Keep(candidate)] if self.seen != 2 else [Keep(candidate), self._again]


def recipe(*chain: object) -> Recipe:
    return Recipe.model_validate({**RECIPE.model_dump(), "curate": {"chain": chain}})


def partition(*chain: object) -> CuratorPartition:
    made = recipe(*chain or ("drop_zero_variance", "test_replays:EveryThird"))
    context = CuratorContext("run-1", "solver", Topics("t"), lambda _: made, pytest.fail)
    return CuratorPartition(context, ("t.trajectories.solver", 0), 4)


def curated(state: CuratorPartition, numbers: Iterable[int], **more: Any) -> list[Outgoing]:
    return [record for number in numbers for record in state.handle(message(group(4 * number, **more)))]


def test_a_replay_follows_the_verdict_and_names_its_first_use_without_its_bytes() -> None:
    state = partition()
    curated(state, [0])
    curated(state, [2], rewards=(1.0, 1.0))
    curated(state, [3])
    outgoing = curated(state, [1], version=5)
    kept, fresh, again, replayed, *others = read(outgoing)
    assert isinstance(kept, Outcome)
    assert isinstance(fresh, CuratedGroup)
    assert isinstance(again, Outcome)
    assert isinstance(replayed, CuratedGroup)
    assert len(others) == 2
    assert (kept.number, kept.use, fresh.number, fresh.use) == (4, 0, 4, 0)
    assert (again.number, again.use, again.level, again.verdict, again.component) == (0, 1, "group", "kept", "curate")
    assert (replayed.number, replayed.use, replayed.group) == (0, 1, b"")
    assert (replayed.min_version, replayed.deadline_version, replayed.weight) == (3, 3 + BOUND, 1.0)
    stamps = [Stamp.from_headers(record.headers) for record in outgoing]
    assert [(stamp.number, stamp.use) for stamp in stamps] == [(4, 0), (4, 0), (0, 1), (0, 1), (12, 1), (12, 1)]
    assert (stamps[3].head_version, stamps[3].min_version, stamps[3].max_version) == (3, 3, 3)
    assert {record.partition for record in outgoing} == {0}


def test_a_replay_says_how_many_curated_records_ago_its_first_use_was_written() -> None:
    state = partition()
    sent = [message(group(4 * n, rewards=(1.0, float(n % 3 == 2)))) for n in range(40)]
    records = [one for m in sent for one in read(list(state.handle(m))) if isinstance(one, CuratedGroup)]
    replays = [(index, one) for index, one in enumerate(records) if one.use]
    assert len(replays) > 10
    for index, one in replays:
        first = records[index - one.first_back]
        assert (first.number, first.use) == (one.number, 0)


def test_the_same_records_give_the_same_replays_whether_live_or_restored_half_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replayable_groups, "ROOM", 3)
    live = partition()
    whole = curated(live, range(60))
    assert sum(Stamp.from_headers(record.headers).use == 2 for record in whole) > 10
    for cut in range(1, 60, 7):
        first, second = partition(), partition()
        halves = curated(first, range(cut))
        second.restore(first.snapshot())
        assert [*halves, *curated(second, range(cut, 60))] == whole
    assert second.snapshot() == live.snapshot()


def test_what_a_chain_holds_no_more_is_forgotten_but_not_before_its_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    for room, most in ((0, 2 * 8), (-1000, 8)):  # now and then, and at every group
        monkeypatch.setattr(replayable_groups, "ROOM", room)
        state, sizes = partition(), []
        for number in range(200):
            curated(state, [number])
            sizes.append(len(state._replayable._groups[0]))
        assert 4 < max(sizes) <= most


def revisions(*chains: object) -> CuratorPartition:
    made = [recipe(chain) for chain in chains]
    context = CuratorContext("run-1", "solver", Topics("t"), made.__getitem__, pytest.fail)
    return CuratorPartition(context, ("t.trajectories.solver", 0), 4)


@pytest.mark.parametrize(
    "use_", ["replay_latest", "replay_uniform", "replay_dots", "replay_recency", "replay_prioritised"]
)
def test_a_snapshot_at_any_time_changes_nothing_of_what_follows(use_: str) -> None:
    """Though what is stale by then leaves the memory at once, and not with the next group."""
    replay = {"use": use_, "ratio": 0.6, "max_uses": 3, "max_staleness": 3}
    rested, looked_at = (revisions(replay, {**replay, "ratio": 0.5}) for _ in range(2))
    replays = 0
    for number in range(120):
        head = number // 3
        sent = {"version": max(0, head - number % 4), "revision": int(number % 23 > 11), "head_version": head}
        outgoing = curated(rested, [number], **sent)
        assert curated(looked_at, [number], **sent) == outgoing
        looked_at.snapshot()
        replays += sum(Stamp.from_headers(record.headers).use > 0 for record in outgoing)
    assert replays > 100


def test_a_chain_of_an_old_revision_forgets_what_is_stale_though_no_group_comes_through_it() -> None:
    replay = {"use": "replay_uniform", "ratio": 0.1, "max_staleness": 3}
    state = revisions(replay, {**replay, "ratio": 0.2})
    curated(state, range(50), version=5)
    full = len(state.snapshot())
    curated(state, [60], version=8, revision=1)  # 50 may still come: the old chain stays
    assert len(state.snapshot()) > full
    curated(state, [61], version=9, revision=1)
    assert len(state.snapshot()) < full / 4


def test_the_name_of_a_stream_stands_in_a_snapshot_as_often_with_many_groups_as_with_one() -> None:
    stream = "s" * 900
    state = partition({"use": "replay_uniform", "ratio": 0.1})
    times = []
    for number in range(20):
        curated(state, [number], stream=stream)
        times.append(state.snapshot().count(stream.encode()))
    assert times == [4] * 20


def test_three_revisions_full_of_replays_fit_into_one_snapshot() -> None:
    """Reckoned from the first tenth of each, with numbers as large as those of a long run."""
    known, chains = replayable_groups.ReplayableGroups("run-1", "solver"), {}
    for revision in range(1000, 1003):
        algorithm = ReplayPrioritised(ratio=0.0, capacity=LARGEST_CAPACITY)
        for number in range(10_000_000, 10_000_000 + LARGEST_CAPACITY // 10):
            algorithm._insert(HeldGroup("sums", number, 10_000, 10_001, 3, number, math.sqrt(number % 97)))
            stamp = Stamp("run-1", "sums", number, attempt=3, revision=revision, head_version=10_001)
            known.add(stamp, revision)
        chains[revision] = Chain([("replay_prioritised", algorithm)])
    state = [known.snapshot(chains), [chain.snapshot() for chain in chains.values()]]
    assert 4 << 20 < 10 * len(json.dumps(state, separators=(",", ":"))) < MESSAGE_BYTES - (2 << 20)


def test_what_is_no_next_use_of_a_group_that_was_kept_is_refused() -> None:
    for number, use, weight, rewards, words in (
        (8, 1, 1.0, (1.0, 0.0), "never kept that group"),
        (4, 1, 1.0, (1.0, 1.0), "never kept that group"),
        (4, 2, 1.0, (1.0, 0.0), "but the next use of that group is 1"),
        (4, 0, 1.0, (1.0, 0.0), "but the next use of that group is 1"),
        (4, 1, 0.0, (1.0, 0.0), "weight 0"),
        (4, 1, float("nan"), (1.0, 0.0), "weight nan"),
    ):
        asks = {"use": "test_replays:Asks", "number": number, "use_": use, "weight": weight}
        state = partition(asks, "drop_zero_variance")
        curated(state, [1], rewards=rewards)
        with pytest.raises(ChainError, match=words):
            curated(state, [0])
