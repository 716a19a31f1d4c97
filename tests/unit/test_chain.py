import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from made_groups import candidate, dropped, kept
from made_recipes import sums_recipe

from headrace.consumers.algorithms.chain import (
    AlgorithmFailed,
    Chain,
    ChainError,
    UnknownAlgorithm,
    load_chain,
)
from headrace.consumers.algorithms.contract import Candidate, Drop, Keep, Rejection, Replay, Result, Stateless
from headrace.consumers.algorithms.pods import Pods
from headrace.consumers.curate.revision_chains import load_policy_chain
from headrace.infra.errors import UsageError
from headrace.schemas.records import GroupUse, TrajectoryGroup

DEFAULT: list[tuple[str, Mapping[str, Any]]] = [
    ("validate", {}),
    ("max_staleness", {"limit": 1}),
    ("drop_zero_variance", {}),
]

NEEDED: dict[str, Mapping[str, Any]] = {
    "max_staleness": {"limit": 1},
    "length_bounds": {"longest": 9},
    "gibberish": {"vocabulary": 200_000},
    "overlong": {"limit": 9},
    **{name: {"m": 2} for name in ("pods", "best_and_worst", "random_m", "gfpo")},
}


class Counting:
    """Remembers how many groups it saw, and answers with what it was given."""

    def __init__(self, *answers: Result, start: int = 0) -> None:
        self.seen = start
        self._answers = answers

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:
        self.seen += 1
        return self._answers or (Keep(candidate),)

    def snapshot(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.seen = state["seen"]


def test_the_first_algorithm_that_drops_gives_the_reason_and_those_after_it_see_nothing() -> None:
    for rewards, clock, reason in (
        ((1.0, math.nan), 3, "invalid"),
        ((1.0, 0.0), 5, "stale"),
        ((1.0, 1.0), 3, "zero_variance"),
        ((1.0, 1.0), 5, "stale"),
    ):
        assert dropped(load_chain(DEFAULT).process(candidate(*rewards), clock)) == reason
    after = Counting()
    Chain([("drops", Counting(Drop("x"))), ("after", after)]).process(candidate(1.0, 0.0), 3)
    assert after.seen == 0


def test_a_group_that_lost_its_variance_on_the_way_is_dropped_by_a_second_look() -> None:
    look, shorter = ("drop_zero_variance", {}), ("length_bounds", {"longest": 1})
    whole = candidate(1.0, 1.0, 0.0, lengths=(1, 1, 2))
    assert isinstance(load_chain([look, shorter]).process(whole, 0)[0], Keep)
    for chain in ([look, shorter, look], [shorter, look]):
        assert dropped(load_chain(chain).process(whole, 0)) == "zero_variance"


def test_a_group_of_which_no_episode_came_back_ends_before_any_chain() -> None:
    empty = Candidate.of(TrajectoryGroup(reason="timeout", n_asked=4))
    for named in ([], [("max_staleness", {"limit": 2})], [("pods", {"m": 2})], DEFAULT):
        [verdict] = load_chain(named).process(empty, 3)
        assert verdict == Drop("timeout", "0 of 4 failed"), named


def test_replays_come_beside_the_verdict_even_of_a_group_dropped_later() -> None:
    whole, again = candidate(1.0, 0.0), Replay(GroupUse("sums", 0, 1))
    replays = Counting(again, Keep(whole))
    assert Chain([("replay", replays)]).process(whole, 3) == (Keep(whole), again)
    assert Chain([("replay", replays), ("drops", Counting(Drop("x")))]).process(whole, 3) == (Drop("x"), again)


def test_an_algorithm_without_exactly_one_verdict_is_named() -> None:
    for answers in ((Replay(GroupUse()),), (Drop("a"), Drop("b"))):
        with pytest.raises(
            AlgorithmFailed, match=r"algorithm broken must return exactly one Keep or Drop for a group; got [02]"
        ):
            Chain([("broken", Counting(*answers))]).process(candidate(1.0, 0.0), 3)


class Returning(Stateless):
    """Returns what it was given, of whatever kind."""

    def __init__(self, found: Any) -> None:
        self.found = found

    def process(self, candidate: Candidate, clock: int) -> Any:
        return self.found


WHOLE = candidate(1.0, 0.0)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ((one for one in ()), "must return exactly one Keep or Drop for a group; got 0"),
        (Drop(None), "the reason of a Drop must be a text .*; got None"),  # type: ignore[arg-type]
        (Drop("x" * 65537), "the reason of a Drop must be a text of at most 65536 characters; got 'xxx"),
        (
            Keep(replace(WHOLE, rejected=(Rejection(0, "x" * 65537),))),
            "rejected must .* a reason of at most 65536 char",
        ),
        (Keep(None), "a Keep must have a Candidate; got NoneType"),  # type: ignore[arg-type]
        (Keep(replace(WHOLE, kept=(0, 2))), r"kept must be from 0 to 1, .* got \(0, 2\)"),
        (Keep(replace(WHOLE, kept=(0.5,))), "kept must hold the positions of trajectories"),  # type: ignore[arg-type]
        (Keep(replace(WHOLE, kept=None)), "kept must hold the positions of .* got None"),  # type: ignore[arg-type]
        (
            Keep(replace(WHOLE, rewards=(1.0,))),
            "rewards must have 2 numbers, one for each trajectory, .*; got 1",
        ),
        (Keep(replace(WHOLE, rewards=np.zeros((2, 1)))), "rewards must be numbers; got"),
        (WHOLE.group, "failed: TypeError"),
        (Keep(replace(WHOLE, rejected=(Rejection(2, "x"),))), r"rejected must .* got \(Rejection\(index=2"),
        (
            Keep(replace(WHOLE, min_version=2**63 - 1)),
            r"min_version must be a whole number from .* to 2\^62; got 92",
        ),
        (
            Keep(candidate(1.0, 0.0, number=9)),
            "the candidate of a Keep must be of the group that",
        ),
    ],
)
def test_what_an_algorithm_returns_wrong_fails_over_its_group_alone(found: Any, why: str) -> None:
    with pytest.raises(AlgorithmFailed, match=f"algorithm broken .*{why}"):
        Chain([("broken", Returning(found))]).process(WHOLE, 3)


def test_an_algorithm_that_calls_exit_fails_over_its_group_alone() -> None:
    class Exiting(Returning):
        def process(self, candidate: Candidate, clock: int) -> list[Result]:
            sys.exit("no such label")

    with pytest.raises(AlgorithmFailed, match="algorithm leaving failed: SystemExit: no such label"):
        Chain([("leaving", Exiting(None))]).process(WHOLE, 3)


def test_numbers_and_lists_of_numpy_become_those_of_a_record() -> None:
    gone = Rejection(cast("int", np.int64(1)), "x")
    for kept_, rewards in (
        (np.array([0]), np.array([0.5, math.nan], np.float32)),
        ([np.int64(0)], [np.float64(0.5), np.float32(math.nan)]),
        ([0], [np.float32(0.5), math.nan]),
        ((0,), (np.float64(0.5), math.nan)),
    ):
        low, high = np.int64(2), np.int32(3)
        made = Candidate(WHOLE.group, cast("Any", rewards), cast("Any", kept_), cast("Any", low), cast("Any", high))
        found = kept(Chain([("own", Returning(Keep(replace(made, rejected=cast("Any", [gone])))))]).process(WHOLE, 3))
        assert repr((found.kept, found.rewards, found.min_version, found.max_version, found.rejected)) == repr(
            ((0,), (0.5, math.nan), 2, 3, (Rejection(1, "x"),))
        )


def test_the_numbers_of_a_replay_become_those_of_a_record_or_it_is_refused() -> None:
    four: Any = np.int64(4)
    given = Replay(GroupUse("sums", four, four), four, four, four, cast("Any", np.float32(0.5)))
    _, again = Chain([("own", Returning([given, Keep(WHOLE)]))]).process(WHOLE, 3)
    assert repr(again) == repr(Replay(GroupUse("sums", 4, 4), 4, 4, 4, 0.5))
    for wrong in (
        replace(given, use=cast("Any", ("sums", 4))),
        replace(given, weight=cast("Any", "1")),
        replace(given, weight=10**400),
        replace(given, min_version=10**5000),
        replace(given, deadline_version=2**63),
        replace(given, min_version=-(2**63)),
    ):
        with pytest.raises(AlgorithmFailed, match=r"own returned a result that cannot be used: .* of a Replay must be"):
            Chain([("own", Returning([Keep(WHOLE), wrong]))]).process(WHOLE, 3)


def test_a_chain_goes_on_from_its_snapshot() -> None:
    first, second = Counting(start=3), Counting(start=5)
    chain = Chain([("a", first), ("b", second)])
    state = json.loads(json.dumps(chain.snapshot()))
    chain.process(candidate(1.0, 0.0), 3)
    assert (first.seen, second.seen) == (4, 6)
    chain.restore(state)
    assert (first.seen, second.seen) == (3, 5)


def test_a_snapshot_of_another_chain_is_refused() -> None:
    with pytest.raises(ChainError, match="but this chain has"):
        load_chain(DEFAULT[:2]).restore(load_chain(DEFAULT).snapshot())


def test_an_order_that_makes_an_algorithm_wrong_is_refused() -> None:
    for first, second, why in (
        ("replay_latest", "max_staleness", "put replay_latest last"),
        ("replay_uniform", f"{__name__}:Drawing", "put replay_uniform last"),
        ("replay_uniform", "replay_latest", "keep one of the two"),
        ("validate", "failures", "whether failed episodes count must be known"),
        ("drop_zero_variance", "failures", "must be known before"),
        ("overlong", "validate", "what is malformed must be known"),
        ("pods", "scale_rewards", "rewards must be shaped before pods chooses"),
        ("random_m", "overlong", "rewards must be shaped before random_m chooses"),
        ("kimi_length", "length_bounds", "the rewards of trajectories that length_bounds takes out"),
    ):
        with pytest.raises(
            UnknownAlgorithm, match=f"the order of the chain is wrong: {second} cannot come after {first}: .*{why}"
        ):
            load_chain([(name, NEEDED.get(name, {})) for name in (first, second)])


def test_a_shipped_algorithm_keeps_its_position_whatever_it_is_called() -> None:
    for first in ("headrace.consumers.algorithms.pods:Pods", f"{__name__}:Imported"):
        with pytest.raises(UnknownAlgorithm, match="overlong cannot come after pods"):
            load_chain([(first, {"m": 2}), ("headrace.consumers.algorithms.overlong:Overlong", {"limit": 9})])


Imported = Pods


class Drawing(Stateless):
    def __init__(self, *, seed: int) -> None:
        self.seed = seed

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:
        return [Drop(str(self.seed))]


def test_a_name_or_setting_that_cannot_be_is_the_users_error() -> None:
    ours = "headrace.consumers.algorithms"
    for name, settings, sentence in (
        (
            "max_stalenes",
            {},
            "algorithm 1 of the chain, max_stalenes: 'max_stalenes' is not known; take one of max_staleness, ",
        ),
        ("max_staleness", {}, "max_staleness: missing a required argument: 'limit'; the algorithm takes limit"),
        ("pods", {"k": 4}, "pods: no option 'k'; the options are m"),
        ("max_staleness", {"limit": -1}, "max_staleness: limit, a number of versions, must be 0 or more; got -1"),
        ("max_staleness", {"limit": True}, "limit must be an integer, got True"),
        ("repetition", {"monitor": 1}, "monitor must be true or false, got 1"),
        ("failures", {"policy": "drop"}, "policy must be one of drop_group, keep_survivors, count_as_zero; got 'drop'"),
        ("drop_zero_variance", {"epsilon": math.inf}, "epsilon must be a finite number; got inf"),
        ("length_bounds", {"shortest": 5, "longest": 4}, "longest must be at least shortest, which is 5; got 4"),
        ("repetition", {"run": 0}, "run must be 1 or more; got 0"),
        ("gibberish", {"vocabulary": 100}, "rare_id must be below 99, the last id of a vocabulary of 100; got 100000"),
        ("scale_rewards", {"scale": 0.0}, "scale must not be 0, as all rewards would be equal"),
        ("overlong", {"limit": 10, "buffer": 11}, "buffer must be at most limit, which is 10; got 11"),
        *(
            (name, {"m": 1}, f"{name}: m must be 2 or more; got 1")
            for name in ("pods", "best_and_worst", "random_m", "gfpo")
        ),
        (
            "replay_uniform",
            {"ratio": 1},
            "replay_uniform: ratio, a share of all groups, must be from 0 to below 1; got 1",
        ),
        ("replay_uniform", {"capacity": 10**6}, "capacity must be at most 20,000"),
        ("replay_uniform", {"max_staleness": 2**63 - 1}, "max_staleness must be from 0 to 4611686018427387904; got 92"),
        ("replay_recency", {"half_life": 0.0}, "half_life must be above 0; got 0.0"),
        (f"{ours}.contract:Stateless", {}, r", lacks process: .*\(see docs/own-data-algorithm.md\)"),
        (f"{ours}.sizes:SMALLEST_GROUP", {}, "is neither a function nor a class but 2"),
        ("builtins:dict", {}, "no signature found for builtin type"),
        (f"{ours}.validate:Nothing", {}, f"module {ours}.validate has no 'Nothing'"),
        ("", {}, "take one of "),
    ):
        with pytest.raises(UnknownAlgorithm, match=sentence) as raised:
            load_chain([(name, settings)])
        assert isinstance(raised.value, UsageError)


def test_a_recipes_chain_draws_by_the_recipes_seed_and_ages_by_its_trainers_bound() -> None:
    for own, seed in ({}, 41), ({"seed": 3}, 3):
        recipe = sums_recipe(
            seed=41,
            trainer={"max_staleness": 2},
            curate={"chain": ["max_staleness", {"use": f"{__name__}:Drawing", **own}]},
        )
        made = load_policy_chain(recipe, "solver")
        assert made.process(candidate(1.0, 0.0), 5) == (Drop(str(seed)),)
        assert made.process(candidate(1.0, 0.0), 6) == (
            Drop("stale", "the oldest token is of weight version 3, 3 versions behind version 6; the limit is 2"),
        )


class Remembering(Stateless):
    """Has the state that it was given."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def process(self, candidate: Candidate, clock: int) -> Any:
        return Keep(candidate)

    def snapshot(self) -> Any:
        return self.state

    def restore(self, state: Any) -> None:
        self.state = state


class Updating(Remembering):
    """Adds the texts to the numbers, which a restarted one has not."""

    def restore(self, state: Any) -> None:
        self.state.update(state)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"n": np.int64(3)}, "algorithm own would not .* must be plain JSON: Object of type int64 is not JSON"),
        ({"n": {3}}, "must be plain JSON: Object of type set is not JSON"),
        ({"n": {(1, 2): 3}}, "must be plain JSON: keys must be str"),
        (
            {"kept": [{7: 1}]},
            r"algorithm own would not get its state back after a restart: its snapshot has keys .* such as 7\.",
        ),
        ({"kept": {"a": ({True: 1},)}}, r"keys that are not strings, such as True\."),
    ],
)
def test_a_state_that_would_come_back_as_another_one_names_its_algorithm(state: Any, why: str) -> None:
    with pytest.raises(ChainError, match=why):
        Chain([("own", Remembering(state))]).snapshot()


def test_a_restore_that_adds_to_a_state_is_not_taken_for_one_that_replaces_it() -> None:
    with pytest.raises(ChainError, match="keys that are not strings, such as 3"):
        Chain([("own", Updating({3: 1}))]).snapshot()
