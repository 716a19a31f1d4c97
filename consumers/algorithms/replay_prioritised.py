"""Replays random groups, with more probability for groups that teach more."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from typing import Any

from headrace.consumers.algorithms.contract import Candidate
from headrace.consumers.algorithms.draws import PhiloxDraws
from headrace.consumers.algorithms.group_statistics import standardise
from headrace.consumers.algorithms.replay import ReplayMemory
from headrace.consumers.algorithms.sum_tree import SumTree
from headrace.infra.recipe.ranges import above, at_least, within

LARGEST_ALPHA = 10
"""Largest exponent: with a larger one, small priorities would underflow."""


class ReplayPrioritised(ReplayMemory):
    """Draw group i with P_i = p_i ** alpha / sum_j p_j ** alpha, p_i = mean |A| + epsilon over its kept members.

    A is the group-normalised advantage (2402.03300) from shaped rewards, computed once when the group arrives. The
    importance weight of a replay is (1 / (N P_i)) ** beta, divided by the largest weight of the N eligible groups,
    which gives (P_min / P_i) ** beta. `beta` rises linearly to 1 over the first `anneal_versions` versions of the
    clock; with 0 it is constant. `ReplayMemory` says when a replay is due. Source: prioritized experience replay (arXiv
    1511.05952).
    """

    def __init__(  # noqa: PLR0913 - settings by name
        self,
        *,
        ratio: float = 0.3,
        capacity: int = 10_000,
        max_uses: int = 4,
        max_staleness: int = 8,
        alpha: float = 0.6,
        beta: float = 0.4,
        anneal_versions: int = 0,
        epsilon: float = 1e-6,
        seed: int = 1,
    ) -> None:
        at_least(0, anneal_versions=anneal_versions)
        above(0, epsilon=epsilon)
        within(0, LARGEST_ALPHA, alpha=alpha)
        within(0, 1, beta=beta)
        if epsilon**alpha == 0:
            raise ValueError(
                f"epsilon ** alpha must be above 0, but is rounded to 0 for epsilon = {epsilon} and alpha = {alpha}: "
                "raise epsilon or lower alpha"
            )
        self._alpha = alpha
        self._beta = beta
        self._anneal_versions = anneal_versions
        self._epsilon = epsilon
        self._draws = PhiloxDraws(seed, "replay_prioritised")
        self._weights = SumTree()
        self._smallest: list[tuple[float, int]] = []
        """Heap of (p ** alpha, arrival); some entries are of forgotten groups."""
        super().__init__(ratio, capacity, max_uses, max_staleness)

    def priority(self, candidate: Candidate) -> float:
        """Return p_i of a group."""
        advantages = standardise(_mean_rewards(candidate))
        counted = [abs(advantages[index]) for index in candidate.kept if math.isfinite(advantages[index])]
        return (math.fsum(counted) / len(counted) if counted else 0.0) + self._epsilon

    def note_slot(self, slot: int) -> None:
        """Update the weight of a slot's group."""
        if slot >= len(self._groups):
            self._weights[slot] = 0.0
            return
        one = self._groups[slot]
        self._weights[slot] = one.priority**self._alpha
        heapq.heappush(self._smallest, (self._weights[slot], one.arrival))
        if len(self._smallest) > 4 * len(self._groups) + 64:
            self._smallest = [(self._weights[s], arrival) for arrival, s in self._slots.items()]
            heapq.heapify(self._smallest)

    def draw(self) -> int:
        """Draw a slot with probability proportional to its weight."""
        return self._weights.find(self._draws.next())

    def weight(self, slot: int, clock: int) -> float:
        """Return (P_min / P_i) ** beta."""
        while self._smallest[0][1] not in self._slots:
            heapq.heappop(self._smallest)
        risen = min(1.0, max(0, clock) / self._anneal_versions) if self._anneal_versions else 0.0
        beta = self._beta + (1 - self._beta) * risen
        return math.pow(self._smallest[0][0] / self._weights[slot], beta)

    def snapshot(self) -> dict[str, Any]:
        """Return the base state and the number of draws."""
        return {**super().snapshot(), "draws": self._draws.count}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a snapshot."""
        self._draws.count, self._weights, self._smallest = state["draws"], SumTree(), []
        super().restore(state)


def _mean_rewards(candidate: Candidate) -> list[float]:
    """Return the shaped rewards; for a member whose sequences have their own rewards, their mean."""
    rewards = list(candidate.rewards)
    for index, member in enumerate(candidate.group.trajectories):
        for sequence in member.sequences:
            if sequence.reward is not None and not math.isnan(rewards[index]):
                own = [rewards[index] if one.reward is None else one.reward for one in member.sequences]
                rewards[index] = math.fsum(own) / len(own)
                break
    return rewards
