"""Rewards and lengths of the groups that curators saw, and of evaluations: curves, their ends, tokens."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.ops.figures.run_figures import RewardPoint
from headrace.schemas.records import EvalResult, Outcome

LATE = frozenset({"expired", "surplus"})
REWARD_EDGE = 5
"""Number of versions at each end of a run whose rewards are averaged."""
MOST_EVALUATION_TOKENS = 2**53
"""Largest number of tokens of one evaluation; a result with more is skipped as wrong."""


class RewardsFold:
    """Takes in outcomes of curators and results of evaluations."""

    def __init__(self, policies: Iterable[str]) -> None:
        self.curated: Counter[str] = Counter()
        """Policy to the groups that curators read."""
        self.evals: list[EvalResult] = []
        self._curves: dict[str, defaultdict[int, _Mean]] = {policy: defaultdict(_Mean) for policy in policies}
        self._curated_tokens = 0
        self.late_tokens = 0
        """Tokens of groups that left the trainer's window because they were too old or the window was full."""

    def fold_untrained(self, outcome: Outcome) -> None:
        """Take in a trainer's outcome of an untrained group; an evicted replay wastes no tokens."""
        if outcome.verdict in LATE and not outcome.use:
            self.late_tokens += sum(outcome.lengths)

    def fold_outcome(self, outcome: Outcome) -> None:
        """Take in a curator's outcome of a group's first use."""
        self.curated[outcome.policy] += 1
        self._curated_tokens += sum(outcome.lengths)
        if outcome.rewards and outcome.policy in self._curves:
            self._curves[outcome.policy][outcome.head_version].add(outcome.rewards)

    def fold_evaluation(self, result: EvalResult) -> None:
        """Take in a result; a result with figures that are not numbers is skipped."""
        if _is_believable(result):
            self.evals.append(result)

    @property
    def tokens(self) -> int:
        """Tokens of groups that reached a curator and were not too late for the trainer, or reached the evaluator."""
        return self._curated_tokens - self.late_tokens + round(sum(map(_count_tokens, self.evals)))

    def points(self) -> dict[str, tuple[RewardPoint, ...]]:
        """Return policy to its curve."""
        return {
            policy: tuple(RewardPoint(version, m.value, m.groups, m.trajectories) for version, m in curve.items())
            for policy, curve in self._sort_curves().items()
        }

    def means_at_start(self) -> dict[str, float]:
        """Return policy to the mean over its first versions; a policy with only as many as the last is left out."""
        curves = self._sort_curves().items()
        return {
            p: _pool(list(curve.values())[:-REWARD_EDGE][:REWARD_EDGE])
            for p, curve in curves
            if len(curve) > REWARD_EDGE
        }

    def means_at_end(self) -> dict[str, float]:
        """Return policy to the mean over its last versions."""
        return {
            policy: _pool(list(curve.values())[-REWARD_EDGE:]) for policy, curve in self._sort_curves().items() if curve
        }

    def _sort_curves(self) -> dict[str, dict[int, _Mean]]:
        return {policy: dict(sorted(curve.items())) for policy, curve in self._curves.items()}


@dataclass(slots=True)
class _Mean:
    """Mean over all trajectories of the groups added."""

    total: float = 0.0
    count: int = 0
    groups: int = 0
    trajectories: int = 0
    """Number of trajectories, including those without a finite reward."""

    def add(self, rewards: tuple[float, ...]) -> None:
        finite = [reward for reward in rewards if math.isfinite(reward)]
        self.total += sum(finite)
        self.count += len(finite)
        self.groups += 1
        self.trajectories += len(rewards)

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else 0.0


def _is_believable(result: EvalResult) -> bool:
    """Return whether a result's figures are numbers: other values would make the sums over all results useless."""
    shares = (*((result.avg_at_k,) if result.has_reward else ()), *result.pass_at_k.values())
    return all(math.isfinite(share) for share in shares) and 0 <= _count_tokens(result) < MOST_EVALUATION_TOKENS


def _count_tokens(result: EvalResult) -> float:
    """Return how many tokens were generated for an evaluation."""
    played = result.problems * result.samples - result.failures if result.played < 0 else result.played
    return result.mean_length * played


def _pool(means: list[_Mean]) -> float:
    return sum(mean.total for mean in means) / max(1, sum(mean.count for mean in means))
