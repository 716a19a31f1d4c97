"""Held-out reward by version, as mean over workflows, and the version with the highest one."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from headrace.schemas.records import EvalResult


@dataclass(frozen=True, slots=True)
class BestVersion:
    """A version, and its held-out reward."""

    version: int
    reward: float
    """Held-out reward, mean over workflows."""


def average_over_workflows(results: Iterable[EvalResult]) -> dict[int, float]:
    """Return, by version of one policy in ascending order, the mean of its held-out rewards over workflows.

    The workflows are those of the two newest evaluated versions, as a later recipe may have dropped a workflow. Only
    versions count that were evaluated in all of them: means over different workflows cannot be compared.
    """
    rewards: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for result in results:
        if result.has_reward and math.isfinite(result.avg_at_k):
            rewards[result.version][result.workflow] = result.avg_at_k
    workflows = {workflow for version in sorted(rewards)[-2:] for workflow in rewards[version]}
    return {
        version: fmean(found[workflow] for workflow in workflows)
        for version, found in sorted(rewards.items())
        if workflows <= found.keys()
    }


def find_best_version(results: Iterable[EvalResult]) -> BestVersion | None:
    """Return the version of one policy with the highest held-out reward; None if none was evaluated.

    Of equally good versions it is the earliest, which has moved the least from its start.
    """
    means = average_over_workflows(results)
    if not means:
        return None
    best = min(means, key=lambda version: (-means[version], version))
    return BestVersion(best, means[best])
