import importlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest

from headrace.consumers.algorithms.chain import ALGORITHMS, Chain, ChainError, UnknownAlgorithm, load_chain
from headrace.consumers.algorithms.contract import Candidate, Drop, Keep, Rejection, Replay, Result, Stateless
from headrace.consumers.algorithms.pods import Pods
from headrace.consumers.curate.revision_chains import chain_of
from headrace.infra.errors import UsageError
from headrace.infra.recipe.settings import Recipe
from headrace.schemas.records import GroupUse, Sequence, Span, Trajectory, TrajectoryGroup

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
    **{use: {"m": 2} for use in ("pods", "best_and_worst", "random_m", "gfpo")},
}


def candidate(*rewards: float, version: int = 3) -> Candidate:
    one = Sequence(
        ids=np.arange(3, dtype=np.int32),
        logprobs=np.array([0, 0, -1], np.float32),
        version_runs=np.array([-1, 2, version, 1], np.int32),
        spans=(Span("prompt", 2), Span("generated", 1)),
    )
    members = tuple(Trajectory(f"sums:1:{i}", reward, sequences=(one,)) for i, reward in enumerate(rewards))
    return Candidate.of(TrajectoryGroup(stream="sums", number=1, trajectories=members, head_version=version))


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


def test_a_group_that_every_algorithm_keeps_is_kept() -> None:
    whole = candidate(1.0, 0.0)
    assert load_chain(DEFAULT).process(whole, 3) == (Keep(whole),)


@pytest.mark.parametrize(
    ("whole", "clock", "reason"),
    [
        (candidate(1.0, math.nan), 3, "invalid"),
        (candidate(1.0, 0.0), 5, "stale"),
        (candidate(1.0, 1.0), 3, "zero_variance"),
        (candidate(1.0, 1.0), 5, "stale"),
    ],
)
def test_the_first_algorithm_that_drops_gives_the_reason(whole: Candidate, clock: int, reason: str) -> None:
    [verdict] = load_chain(DEFAULT).process(whole, clock)
    assert isinstance(verdict, Drop)
    assert verdict.reason == reason


def test_a_group_that_lost_its_variance_on_the_way_is_dropped_by_a_second_look() -> None:
    look, shorter = ("drop_zero_variance", {}), ("length_bounds", {"longest": 1})
    long = Sequence(np.arange(4, dtype=np.int32), spans=(Span("prompt", 2), Span("generated", 2)))
    short = Sequence(np.arange(3, dtype=np.int32), spans=(Span("prompt", 2), Span("generated", 1)))
    told = ((1.0, short), (1.0, short), (0.0, long))
    members = tuple(Trajectory(f"sums:1:{i}", reward, {}, (one,)) for i, (reward, one) in enumerate(told))
    whole = Candidate.of(TrajectoryGroup(trajectories=members))
    assert isinstance(load_chain([look, shorter]).process(whole, 0)[0], Keep)
    for chain in ([look, shorter, look], [shorter, look]):
        [verdict] = load_chain(chain).process(whole, 0)
        assert isinstance(verdict, Drop)
        assert verdict.reason == "zero_variance"


def test_a_group_of_which_no_episode_came_back_ends_before_any_chain() -> None:
    empty = Candidate.of(TrajectoryGroup(reason="timeout", n_asked=4))
    for uses in ([], [("max_staleness", {"limit": 2})], [("pods", {"m": 2})], DEFAULT):
        [verdict] = load_chain(uses).process(empty, 3)
        assert verdict == Drop("timeout", "0 of 4 failed"), uses


def test_an_algorithm_sees_what_the_one_before_it_kept() -> None:
    [verdict] = load_chain(DEFAULT).process(candidate(1.0, math.nan, 0.0), 3)
    assert isinstance(verdict, Keep)
    assert verdict.candidate.kept == (0, 2)
    assert [(rejection.index, rejection.reason) for rejection in verdict.candidate.rejected] == [(1, "reward")]
    [verdict] = load_chain(DEFAULT).process(candidate(1.0, math.nan, 1.0), 3)
    assert isinstance(verdict, Drop)
    assert verdict.reason == "zero_variance"


def test_nothing_after_a_drop_sees_the_group() -> None:
    after = Counting()
    Chain([("drops", Counting(Drop("x"))), ("after", after)]).process(candidate(1.0, 0.0), 3)
    assert after.seen == 0


def test_replays_come_beside_the_verdict_even_of_a_group_dropped_later() -> None:
    whole, again = candidate(1.0, 0.0), Replay(GroupUse("sums", 0, 1))
    replays = Counting(again, Keep(whole))
    assert Chain([("replay", replays)]).process(whole, 3) == (Keep(whole), again)
    assert Chain([("replay", replays), ("drops", Counting(Drop("x")))]).process(whole, 3) == (Drop("x"), again)


def test_an_empty_chain_keeps_everything() -> None:
    whole = candidate(1.0, 1.0)
    assert Chain([]).process(whole, 99) == (Keep(whole),)


@pytest.mark.parametrize("answers", [(Replay(GroupUse()),), (Drop("a"), Drop("b"))])
def test_an_algorithm_without_exactly_one_verdict_is_named(answers: tuple[Result, ...]) -> None:
    with pytest.raises(ChainError, match=r"algorithm broken returned [02] verdicts"):
        Chain([("broken", Counting(*answers))]).process(candidate(1.0, 0.0), 3)


def test_a_chain_goes_on_from_its_snapshot() -> None:
    first, second = Counting(start=3), Counting(start=5)
    chain = Chain([("a", first), ("b", second)])
    state = json.loads(json.dumps(chain.snapshot()))
    chain.process(candidate(1.0, 0.0), 3)
    assert (first.seen, second.seen) == (4, 6)
    chain.restore(state)
    assert (first.seen, second.seen) == (3, 5)


def test_the_shipped_chain_goes_on_from_its_snapshot() -> None:
    chain = load_chain(DEFAULT)
    load_chain(DEFAULT).restore(json.loads(json.dumps(chain.snapshot())))


def test_a_snapshot_of_another_chain_is_refused() -> None:
    with pytest.raises(ChainError, match="does not fit"):
        load_chain(DEFAULT[:2]).restore(load_chain(DEFAULT).snapshot())


@pytest.mark.parametrize("use", ALGORITHMS)
def test_every_shipped_algorithm_is_found(use: str) -> None:
    load_chain([(use, NEEDED.get(use, {}))])


@pytest.mark.parametrize("use", ALGORITHMS)
def test_every_shipped_algorithm_is_the_class_of_a_module_of_its_own_name(use: str) -> None:
    module, name = f"headrace.consumers.algorithms.{use}", "".join(word.capitalize() for word in use.split("_"))
    assert ALGORITHMS[use] == f"{module}:{name}"
    assert getattr(importlib.import_module(module), name).__module__ == module


def test_one_of_your_own_is_named_by_module_and_name() -> None:
    chain = load_chain([("headrace.consumers.algorithms.max_staleness:MaxStaleness", {"limit": 0})])
    assert isinstance(chain.process(candidate(1.0, 0.0), 4)[0], Drop)


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ("replay_latest", "max_staleness", "what it drops or changes would be replayed as it was; put the replay last"),
        ("replay_uniform", f"{__name__}:Drawing", "put the replay last"),
        ("replay_uniform", "replay_latest", "both would count the uses of one group; take one of them"),
        ("validate", "failures", "whether failed episodes count must be known before anything looks at the group"),
        ("drop_zero_variance", "failures", "must be known before"),
        ("overlong", "validate", "what is malformed must be known before anything looks at the group"),
        ("pods", "scale_rewards", "a subset is chosen by shaped rewards"),
        ("random_m", "overlong", "a subset is chosen by shaped rewards"),
        ("kimi_length", "length_bounds", "rewards would have been compared with those of members that it takes out"),
    ],
)
def test_an_order_that_makes_an_algorithm_wrong_is_refused(first: str, second: str, why: str) -> None:
    uses = [(use, NEEDED.get(use, {})) for use in (first, second)]
    with pytest.raises(UnknownAlgorithm, match=f"the chain's order: {second} cannot come after {first}: .*{why}"):
        load_chain(uses)


@pytest.mark.parametrize("first", ["headrace.consumers.algorithms.pods:Pods", f"{__name__}:Imported"])
def test_a_shipped_algorithm_keeps_its_place_whatever_it_is_called(first: str) -> None:
    with pytest.raises(UnknownAlgorithm, match="overlong cannot come after pods: a subset is chosen by shaped rewards"):
        load_chain([(first, {"m": 2}), ("headrace.consumers.algorithms.overlong:Overlong", {"limit": 9})])


def test_the_order_of_the_table_is_right() -> None:
    replays = [use for use in ALGORITHMS if use.startswith("replay")]
    for replay in replays:
        load_chain([(use, NEEDED.get(use, {})) for use in [*ALGORITHMS] if use not in replays or use == replay])


Imported = Pods


class Drawing(Stateless):
    def __init__(self, *, seed: int) -> None:
        self.seed = seed

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:
        return [Drop(str(self.seed))]


class Unresolved(Drawing):
    def __init__(self, names: "NowhereImported" = None, *, seed: int = 1) -> None:  # type: ignore[name-defined]  # noqa: F821
        super().__init__(seed=seed)


def test_annotations_that_only_a_type_checker_resolves_are_left_to_it() -> None:
    assert load_chain([(f"{__name__}:Unresolved", {"names": ["a"]})]).process(candidate(1.0), 3) == (Drop("1"),)


@pytest.mark.parametrize(("settings", "seed"), [({}, 7), ({"seed": 3}, 3)])
def test_an_algorithm_that_takes_a_seed_gets_the_recipes(settings: dict[str, Any], seed: int) -> None:
    chain = load_chain([(f"{__name__}:Drawing", settings)], seed=7)
    assert chain.process(candidate(1.0, 0.0), 3) == (Drop(str(seed)),)


@pytest.mark.parametrize(
    ("use", "settings", "sentence"),
    [
        ("max_stalenes", {}, "algorithm 2 of the chain, max_stalenes: no 'max_stalenes'; take one of max_staleness, "),
        ("max_staleness", {}, "max_staleness: missing a required argument: 'limit'; it takes limit"),
        ("max_staleness", {"limit": 1, "limits": 2}, "max_staleness: no option 'limits'; it takes limit"),
        ("pods", {"k": 4}, "pods: no option 'k'; it takes m"),
        ("max_staleness", {"limit": -1}, "max_staleness: limit is a number of versions, 0 or more; got -1"),
        ("max_staleness", {"limit": "two"}, "max_staleness: limit must be a whole number, got 'two'"),
        ("max_staleness", {"limit": True}, "max_staleness: limit must be a whole number, got True"),
        ("max_staleness", {"limit": 1.0}, "max_staleness: limit must be a whole number, got 1.0"),
        ("pods", {"m": 1}, "pods: m is 2 or more; got 1"),
        ("repetition", {"monitor": 1}, "repetition: monitor must be true or false, got 1"),
        ("replay_uniform", {"ratio": 1}, "replay_uniform: ratio is a share of all groups, from 0 to below 1; got 1"),
        (
            "headrace.consumers.algorithms.contract:Stateless",
            {},
            "Stateless: it has no process; see docs/data-algorithms.md",
        ),
        ("headrace.consumers.algorithms.sizes:SMALLEST_GROUP", {}, "is no function and no class but 2"),
        ("builtins:object", {}, "it has no process and no snapshot and no restore"),
        ("builtins:dict", {}, "no signature found for builtin type"),
        ("no_such_module:Name", {}, "there is no module no_such_module"),
        (
            "headrace.consumers.algorithms.validate:Nothing",
            {},
            "module headrace.consumers.algorithms.validate has no 'Nothing'",
        ),
        ("", {}, "take one of "),
    ],
)
def test_a_name_or_setting_that_cannot_be_is_the_users_error(use: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnknownAlgorithm, match=sentence) as raised:
        load_chain([("validate", {}), (use, settings)])
    assert isinstance(raised.value, UsageError)


@pytest.mark.parametrize(("own", "seed"), [({}, 41), ({"seed": 3}, 3)])
def test_a_recipes_chain_draws_by_the_recipes_seed_and_ages_by_its_trainers_bound(own: Any, seed: int) -> None:
    chain = ["max_staleness", {"use": f"{__name__}:Drawing", **own}]
    recipe = Recipe.model_validate(
        {
            "name": "t",
            "seed": 41,
            "policies": {"solver": {"path": "/models/any"}},
            "workflows": {"sums": {"env": {"use": "arithmetic"}, "policies": {"solver": "solver"}}},
            "trainer": {"max_staleness": 2},
            "curate": {"chain": chain},
        }
    )
    made = chain_of(recipe, "solver")
    assert made.process(candidate(1.0, 0.0), 5) == (Drop(str(seed)),)
    assert made.process(candidate(1.0, 0.0), 6) == (Drop("stale", "version 3 is 3 behind 6, limit 2"),)


def test_a_rejection_is_equal_to_its_like() -> None:
    assert Rejection(1, "x") == Rejection(1, "x", "")
