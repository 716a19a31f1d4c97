"""Rewards and lengths of the groups that curators saw, and of evaluations: curves, their ends, tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.ledger.ledger import WHERE_LATE, Ledger
from headrace.ops.figures.run_figures import RewardPoint
from headrace.schemas import codec
from headrace.schemas.records import EvalResult

REWARD_EDGE = 5
"""Number of versions at each end of a run whose rewards are averaged."""
MOST_EVALUATION_TOKENS = 2**53
"""Largest number of tokens of one evaluation; a result with more is skipped as wrong."""


@dataclass(frozen=True, slots=True)
class _Mean:
    """Mean over all trajectories with a finite reward, of the groups of one version."""

    total: float
    count: int
    groups: int
    trajectories: int
    """Number of trajectories, including those without a finite reward."""

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else 0.0


class Rewards:
    """Rewards and tokens of the groups that curators saw, and of evaluations, as they are in the ledger now."""

    def __init__(self, ledger: Ledger, policies: Iterable[str]) -> None:
        sums = "sum(groups), total(tokens)"
        seen = ledger.query(f"SELECT variant, {sums} FROM decided WHERE variant NOT LIKE '%.%' GROUP BY variant")
        self.curated: dict[str, int] = {policy: groups for policy, groups, _ in seen}
        """Policy to the groups that curators read."""
        self._curated_tokens: int = round(sum(tokens for *_, tokens in seen))
        [(late,)] = ledger.query(f"SELECT total(tokens) FROM outcome WHERE {WHERE_LATE} AND variant NOT LIKE '%.%'")
        self.late_tokens: int = round(late)
        """Tokens of groups that left the trainer's window because they were too old or the window was full; an evicted
        replay wastes none."""
        results = (
            codec.decode(value, EvalResult) for (value,) in ledger.query("SELECT value FROM evaluation ORDER BY id")
        )
        self.evals = [result for result in results if _is_believable(result)]
        """Results of evaluations, without those whose figures are not numbers."""
        self._curves = {policy: _find_curve(ledger, policy) for policy in policies}

    @property
    def tokens(self) -> int:
        """Tokens of groups that reached a curator and were not too late for the trainer, or reached the evaluator."""
        return self._curated_tokens - self.late_tokens + round(sum(map(_count_tokens, self.evals)))

    def points(self) -> dict[str, tuple[RewardPoint, ...]]:
        """Return policy to its curve."""
        return {
            policy: tuple(RewardPoint(version, m.value, m.groups, m.trajectories) for version, m in curve.items())
            for policy, curve in self._curves.items()
        }

    def means_at_start(self) -> dict[str, float]:
        """Return policy to the mean over its first versions; a policy with only as many as the last is left out."""
        return {
            p: _pool(list(curve.values())[:-REWARD_EDGE][:REWARD_EDGE])
            for p, curve in self._curves.items()
            if len(curve) > REWARD_EDGE
        }

    def means_at_end(self) -> dict[str, float]:
        """Return policy to the mean over its last versions."""
        return {policy: _pool(list(curve.values())[-REWARD_EDGE:]) for policy, curve in self._curves.items() if curve}


def _find_curve(ledger: Ledger, policy: str) -> dict[int, _Mean]:
    rows = ledger.query(
        "SELECT head_version, total(reward_total), sum(reward_count), sum(rewarded), sum(samples) FROM decided"
        " WHERE variant = ? GROUP BY head_version HAVING sum(rewarded) ORDER BY head_version",
        policy,
    )
    return {version: _Mean(*sums) for version, *sums in rows}


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
