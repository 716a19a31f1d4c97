"""Which groups are trained on again, when, and what is remembered for that."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from made_groups import candidate, sequence

from headrace.consumers.algorithms.chain import AlgorithmFailed, load_chain
from headrace.consumers.algorithms.contract import Candidate, Keep, Replay
from headrace.consumers.algorithms.draws import BLOCK, PhiloxDraws
from headrace.consumers.algorithms.replay import ReplayMemory
from headrace.consumers.algorithms.replay_dots import ReplayDots
from headrace.consumers.algorithms.replay_latest import ReplayLatest
from headrace.consumers.algorithms.replay_prioritised import ReplayPrioritised
from headrace.consumers.algorithms.replay_recency import ReplayRecency
from headrace.consumers.algorithms.replay_uniform import ReplayUniform
from headrace.consumers.algorithms.sum_tree import SumTree
from headrace.schemas.records import GroupUse

KINDS = [ReplayLatest, ReplayUniform, ReplayDots, ReplayRecency, ReplayPrioritised]
FOREVER = {"max_uses": 10**6, "max_staleness": 10**6}


def step(
    replay: ReplayMemory, number: int, version: int = 3, clock: int | None = None, rewards: Any = (1.0, 0.0)
) -> list[Replay]:
    """Put one group through; return what is trained on again."""
    whole = candidate(*rewards, number=number, version=version)
    first, *again = replay.process(whole, version if clock is None else clock)
    assert first == Keep(whole)
    assert all(isinstance(result, Replay) for result in again)
    return again  # type: ignore[return-value]


def numbers(again: list[Replay]) -> list[tuple[int, int]]:
    return [(one.use.number, one.use.use) for one in again]


# --------------------------------------------------------------------------------------------------------------- credit


def test_replays_are_the_share_of_all_groups_that_is_asked_for() -> None:
    """After every fresh group replays are ratio / (1 - ratio) of the fresh ones, rounded down; the first has none."""
    for build, ratio in zip([*KINDS, ReplayLatest], (0.0, 0.1, 0.3, 0.5, 0.6, 0.7), strict=True):
        replay, replayed = build(ratio=ratio, **FOREVER), 0
        for number in range(200):
            replayed += len(step(replay, number))
            due = (number + 1) * round(ratio * 10) // round((1 - ratio) * 10)
            assert replayed == (due if number else 0), (build, number)
    replay = ReplayLatest(ratio=0.5, max_uses=2, max_staleness=0)
    given = [numbers(step(replay, number, version=version)) for number, version in enumerate((1, 2, 2, 2))]
    assert given == [[], [], [(1, 1)], [(2, 1)]], "a credit that nobody can use is kept"


def test_a_reward_that_does_not_count_leaves_priorities_numbers() -> None:
    replay = ReplayPrioritised(ratio=0.5, **FOREVER)
    again = [one for number in range(20) for one in step(replay, number, rewards=(math.nan, 1.0, 0.0))]
    assert len(again) == 20
    assert all(0 < one.weight <= 1 for one in again)
    with pytest.raises(ValueError, match="is rounded to 0"):
        ReplayPrioritised(epsilon=1e-40, alpha=10.0)


# ------------------------------------------------------------------------------------------------ uses, staleness, room


@pytest.mark.parametrize("build", KINDS)
def test_the_first_training_is_one_of_the_uses(build: Any) -> None:
    replay, uses = build(ratio=0.9, max_uses=3), Counter[int]()
    for number in range(50):
        for again in step(replay, number):
            uses[again.use.number] += 1
            assert again.use == GroupUse("sums", again.use.number, uses[again.use.number])
    assert uses == dict.fromkeys(range(49), 2)


@pytest.mark.parametrize("build", KINDS)
def test_nothing_is_replayed_beyond_its_own_staleness(build: Any) -> None:
    replay = build(ratio=0.8, max_uses=10**6, max_staleness=2)
    for number in range(60):
        clock = number // 4
        for again in step(replay, number, version=clock):
            assert clock - again.min_version <= 2
            assert (again.min_version, again.max_version) == (again.use.number // 4, again.use.number // 4)
            assert again.deadline_version == again.min_version + 2
    assert step(replay, 60, version=99) == []
    assert replay._groups[0].number == 60
    assert len(replay._groups) == 1


@pytest.mark.parametrize("build", KINDS)
def test_memory_and_snapshot_are_bounded_by_capacity(build: Any) -> None:
    replay = build(ratio=0.3, capacity=16, **FOREVER)
    for number in range(3000):
        step(replay, number, version=number // 100)
        if number >= 1000:
            held = (len(replay._groups), len(replay._slots), sum(map(len, replay._of_version.values())))
            assert held == (16, 16, 16), number
    assert min(one.number for one in replay._groups) == 3000 - 16, "the oldest arrival leaves first"
    assert len(json.dumps(replay.snapshot())) < 2000
    if isinstance(replay, ReplayPrioritised):
        assert len(replay._smallest) <= 4 * 16 + 65


# ------------------------------------------------------------------------------------------------------------ selectors


def test_latest_is_the_newest_arrival_until_its_uses_are_up() -> None:
    replay = ReplayLatest(ratio=0.6, max_uses=3)
    assert [numbers(step(replay, number)) for number in range(5)] == [
        [],
        [(0, 1), (0, 2)],
        [(1, 1), (1, 2)],
        [(2, 1), (2, 2)],
        [(3, 1)],
    ]


def drawn(replay: ReplayMemory, count: int) -> Counter[int]:
    """How often each slot is drawn; nothing is used up."""
    return Counter(replay._groups[replay.draw()].number for _ in range(count))


def test_recency_halves_with_every_half_life() -> None:
    """The golden weights of ages 0, 4, 8 with a half-life of 4: 1, 0.5, 0.25."""
    replay = ReplayRecency(ratio=0.0, half_life=4.0, **FOREVER)
    for number, version in enumerate((8, 4, 0)):
        step(replay, number, version=version, clock=8)
    weights = [replay._weights[slot] / replay._weights[0] for slot in range(3)]
    assert weights == pytest.approx([1, 0.5, 0.25])
    counts = drawn(replay, 20_000)
    assert [counts[number] / 20_000 for number in range(3)] == pytest.approx([4 / 7, 2 / 7, 1 / 7], abs=0.012)


def test_recency_holds_however_long_a_run_lasts() -> None:
    replay = ReplayRecency(ratio=0.5, half_life=0.5, max_staleness=4)
    for number in range(3000):
        for again in step(replay, number, version=number):
            assert number - again.min_version <= 4
    weights = [replay._weights[slot] for slot in range(len(replay._groups))]
    ages = [2999 - one.min_version for one in replay._groups]
    assert [weight / max(weights) for weight in weights] == pytest.approx([4.0 ** (min(ages) - age) for age in ages])


PRIORITIES = (0.5, 1.0, 2.0)


def prioritised(**changes: Any) -> ReplayPrioritised:
    """One that remembers three groups of the golden priorities."""
    remembered = ReplayPrioritised(ratio=0.0)
    for number in range(3):
        step(remembered, number)
    state = remembered.snapshot()
    for one, priority in zip(state["groups"], PRIORITIES, strict=True):
        one[-1] = priority
    replay = ReplayPrioritised(**{"ratio": 0.0, "alpha": 0.6, "beta": 0.4, **FOREVER, **changes})
    replay.restore(json.loads(json.dumps(state)))
    return replay


def test_priorities_give_the_golden_probabilities_and_weights() -> None:
    replay = prioritised()
    shares = [replay._weights[slot] / replay._weights.total for slot in range(3)]
    assert shares == pytest.approx([0.20777, 0.31491, 0.47732], abs=1e-5)
    assert [replay.weight(slot, 0) for slot in range(3)] == pytest.approx([1, 0.84675, 0.71698], abs=1e-5)
    counts = drawn(replay, 20_000)
    assert [counts[number] / 20_000 for number in range(3)] == pytest.approx(shares, abs=0.012)


def test_beta_rises_to_1_over_so_many_versions() -> None:
    replay = prioritised(anneal_versions=100)
    for clock, beta in ((-1, 0.4), (0, 0.4), (50, 0.7), (100, 1.0), (500, 1.0)):
        assert replay.weight(2, clock) == pytest.approx((0.20777 / 0.47732) ** beta, abs=1e-4)


def test_a_priority_is_the_mean_advantage_of_shaped_rewards() -> None:
    replay = ReplayPrioritised(epsilon=0.25)
    golden = (2 * 1.62015 + 6 * 0.54005) / 8
    assert replay.priority(candidate(1, 0, 0, 0, 1, 0, 0, 0)) == pytest.approx(golden + 0.25, abs=1e-5)
    assert replay.priority(candidate(1.0, 1.0)) == 0.25
    whole = candidate(1.0, 1.0)
    assert replay.priority(dataclasses.replace(whole, rewards=(1.0, 0.5))) == pytest.approx(
        0.25 + math.sqrt(0.5), abs=1e-3
    )
    own = candidate(1.0, 1.0, sequences=(sequence(reward=0.0), sequence()))
    assert replay.priority(own) == pytest.approx(0.25 + math.sqrt(0.5), abs=1e-3)


def test_a_group_whose_priority_cannot_be_worked_out_takes_no_replay_along() -> None:
    """A reward of 1e200 is finite, and its square is not."""
    chain = load_chain([("validate", {}), ("replay_prioritised", {"ratio": 0.5, **FOREVER})])
    uses: Counter[int] = Counter()
    for number in range(40):
        rewards = (1e200, 0.0) if number % 8 == 3 else (1.0, 0.0)
        try:
            _, *again = chain.process(candidate(*rewards, number=number), 3)
        except AlgorithmFailed:
            assert rewards == (1e200, 0.0)
            continue
        due = 0 if number == 0 else 2 if number == 1 or number % 8 == 4 else 1
        assert len(again) == due, "what was due comes with the next"
        for one in again:
            assert isinstance(one, Replay)
            uses[one.use.number] += 1
            assert one.use.use == uses[one.use.number]


def test_a_replay_carries_its_weight_and_others_carry_1() -> None:
    """Each group has one training left, and so leaves its slot to the next smallest."""
    again = step(prioritised(ratio=0.9, max_uses=2), 10)
    priority = dict(enumerate(PRIORITIES))
    for one in again:
        smallest = min(priority.values())
        assert one.weight == pytest.approx((smallest / priority.pop(one.use.number)) ** (0.6 * 0.4))
    assert not priority
    uniform = ReplayUniform(ratio=0.5)
    assert {one.weight for number in range(9) for one in step(uniform, number)} == {1.0}


def test_dots_remembers_what_is_neither_solved_nor_beyond() -> None:
    replay = ReplayDots(ratio=0.0)
    for number, rewards in enumerate(((1.0, 1.0), (1.0, 0.0), (0.0, 0.0), (0.5, 0.5))):
        step(replay, number, rewards=rewards)
    assert [one.number for one in replay._groups] == [1, 3]
    assert (replay._capacity, ReplayDots()._credit) == (512, 1.0)


# --------------------------------------------------------------------------------------------------- order, determinism


def test_what_the_chain_dropped_is_never_replayed() -> None:
    chain = load_chain([("drop_zero_variance", {}), ("replay_uniform", {"ratio": 0.8})])
    for number in range(40):
        results = chain.process(candidate(1.0, float(number % 2), number=number), 3)
        assert all(one.use.number % 2 == 0 for one in results if isinstance(one, Replay))


def test_the_seed_decides_what_is_drawn() -> None:
    def run(build: Any, seed: int) -> list[Any]:
        replay = build(ratio=0.5, seed=seed, **FOREVER)
        return [numbers(step(replay, number)) for number in range(60)]

    for build in (ReplayUniform, ReplayRecency, ReplayPrioritised):
        assert run(build, 1) == run(build, 1) != run(build, 2)


def stream(length: int) -> list[tuple[Candidate, int]]:
    """Groups whose versions lag, jump and come back, with various rewards, and the clock beside them."""
    draw, clock, made = np.random.default_rng(length), 0, []
    for number in range(length):
        clock += int(draw.integers(0, 12) == 0) * int(draw.integers(1, 4))
        version = max(0, clock - int(draw.integers(0, 5)))
        rewards = draw.integers(0, 3, 4).astype(float).tolist()
        made.append((candidate(*rewards, number=number, version=version), clock))
    return made


STREAM = stream(150)
SETTINGS = [
    {"ratio": 0.6, "capacity": 12, "max_uses": 3, "max_staleness": 4},
    {"ratio": 0.7, "capacity": 40, **FOREVER},
]


@pytest.mark.parametrize("build", KINDS)
@settings(max_examples=25, deadline=None, phases=[Phase.generate])
@given(cut=st.integers(0, 150), given_settings=st.sampled_from(SETTINGS))
def test_a_replay_goes_on_from_any_snapshot_as_if_nothing_had_been(
    build: Any, cut: int, given_settings: dict[str, Any]
) -> None:
    whole = build(**given_settings)
    outputs = [tuple(whole.process(*one)) for one in STREAM]
    before, after = build(**given_settings), build(**given_settings)
    assert [tuple(before.process(*one)) for one in STREAM[:cut]] == outputs[:cut]
    after.restore(json.loads(json.dumps(before.snapshot())))
    assert [tuple(after.process(*one)) for one in STREAM[cut:]] == outputs[cut:]
    assert after.snapshot() == whole.snapshot()


# -------------------------------------------------------------------------------------------------- draws and sum trees


def test_draws_depend_on_seed_stream_and_index_alone() -> None:
    draws = PhiloxDraws(3, "a")
    first = [draws.next() for _ in range(3 * BLOCK)]
    assert len(set(first)) == 3 * BLOCK
    assert all(0 <= one < 1 for one in first)
    for count in (0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 7):
        draws.count = count
        assert [draws.next() for _ in range(9)] == first[count : count + 9]
    assert PhiloxDraws(4, "a").next() != first[0] != PhiloxDraws(3, "b").next()


def test_draws_stay_what_they_are_from_release_to_release() -> None:
    """Or a run could not be replayed by a later build."""
    draws = PhiloxDraws(1, "replay_uniform")
    assert [draws.next() for _ in range(3)] == [0.09749568741354764, 0.644666782496976, 0.12560654083677303]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=60), st.floats(0, 1, exclude_max=True))
def test_a_sum_tree_finds_the_slot_that_a_running_sum_finds(changes: list[tuple[int, int]], share: float) -> None:
    tree, plain = SumTree(), [0] * 31
    for slot, weight in changes:
        tree[slot] = float(weight)
        plain[slot] = weight
    assert tree.total == sum(plain)
    if any(plain):
        ends = np.cumsum(plain)
        assert tree.find(share) == int(np.searchsorted(ends, share * sum(plain), side="right"))
        assert SumTree(map(float, plain)).find(share) == tree.find(share)
