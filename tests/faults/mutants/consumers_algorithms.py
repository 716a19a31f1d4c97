"""Protections of data algorithms, taken out one each."""

from __future__ import annotations

from mutants.mutant import Mutant

FILTERS = "tests/unit/test_filters.py::"
REPLAYS = "tests/unit/test_replay.py::"
DOWN_SAMPLING = "tests/unit/test_down_sampling.py::"

CONSUMERS_ALGORITHMS = (
    Mutant(
        "shaped-as-given",
        "shaped rewards are floats, whatever numbers a data algorithm gives",
        "consumers/algorithms/contract.py",
        "tuple(map(float, rewards)), self.kept, low",
        "tuple(rewards), self.kept, low",
        ("tests/unit/test_own_values.py::test_whole_numbers_are_shaped_rewards_and_one_verdict_needs_no_list",),
    ),
    Mutant(
        "shaped-variance",
        "shaping gives no variance to a group that is wrong throughout",
        "consumers/algorithms/drop_zero_variance.py",
        "rewards = sequence_rewards(candidate, unshaped)",
        "rewards = sequence_rewards(candidate, candidate.rewards)",
        ("tests/unit/test_shaping.py::test_a_penalty_gives_no_variance_to_a_group_that_is_wrong_throughout",),
    ),
    Mutant(
        "masked-uncounted",
        "what is left out of the loss still counts in its group's statistics",
        "consumers/algorithms/contract.py",
        "        if not counted:\n",
        "        if True:\n",
        (f"{FILTERS}test_a_truncated_completion_is_not_trained_on_and_still_counts",),
    ),
    Mutant(
        "hasty-look",
        "the look at a whole group lets nothing pass that the closer look finds",
        "consumers/algorithms/soundness.py",
        "if count <= 0 or not 0 <= runs[at] <= head_version:",
        "if count <= 0 or runs[at] > head_version:",
        (f"{FILTERS}test_the_look_at_a_whole_group_lets_nothing_pass_that_the_closer_look_finds",),
    ),
    Mutant(
        "rounded-ties",
        "of subsets of equal variance PODS takes the one of the smallest ids, whatever rounding says",
        "consumers/algorithms/pods.py",
        "near = ROUNDING * (ascending[-1] - ascending[0]) ** 2",
        "near = 0.0",
        (f"{DOWN_SAMPLING}test_rounding_does_not_decide_between_sets_of_equal_variance",),
    ),
    Mutant(
        "any-order",
        "a chain whose order makes an algorithm wrong is refused",
        "consumers/algorithms/chain.py",
        "    if wrong:\n",
        "    if False:\n",
        ("tests/unit/test_chain.py::test_an_order_that_makes_an_algorithm_wrong_is_refused",),
    ),
    Mutant(
        "stale-replay",
        "a replay has its own bound on staleness",
        "consumers/algorithms/replay.py",
        "        self.forget_stale(clock)\n        self._fresh += 1\n",
        "        self._fresh += 1\n",
        (f"{REPLAYS}test_nothing_is_replayed_beyond_its_own_staleness",),
    ),
    Mutant(
        "endless-replay",
        "the first training is one of a replay's uses",
        "consumers/algorithms/replay.py",
        "if one.uses >= self._max_uses:",
        "if one.uses > self._max_uses:",
        (f"{REPLAYS}test_the_first_training_is_one_of_the_uses",),
    ),
    Mutant(
        "boundless-replay",
        "what a replay remembers is bounded",
        "consumers/algorithms/replay.py",
        "if len(self._groups) == self._capacity:",
        "if False:",
        (f"{REPLAYS}test_memory_and_snapshot_are_bounded_by_capacity",),
    ),
    Mutant(
        "forgotten-draws",
        "a replay goes on from a snapshot with the draws that were left",
        "consumers/algorithms/draws.py",
        "        self._count = count\n",
        "        self._count = 0\n",
        (f"{REPLAYS}test_a_replay_goes_on_from_any_snapshot_as_if_nothing_had_been",),
    ),
    Mutant(
        "moved-slots",
        "a restored replay keeps the order of arrivals",
        "consumers/algorithms/replay.py",
        "        self._slots = OrderedDict(sorted(self._slots.items()))\n",
        "",
        (f"{REPLAYS}test_a_replay_goes_on_from_any_snapshot_as_if_nothing_had_been",),
    ),
)
