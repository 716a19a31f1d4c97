"""Training metrics of a version: sums on the device over its optimizer steps, read once at the end."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch

from headrace.infra.recipe.settings import TrainerSettings
from headrace.schemas.records import Trajectory
from headrace.schemas.rewards import EQUAL
from headrace.schemas.version_records import LENGTH_MEAN, OFF_POLICY_GAP, REWARD_PART, TURNS_MEAN
from headrace.trainers.batches.groups import DecodedGroup
from headrace.trainers.losses import TrainedTokens, add_metrics, means
from headrace.trainers.losses.tokens import log_ratio

StepMetrics: TypeAlias = dict[str, float]

RATIO_EDGES = (0.5, 0.8, 0.95, 1.05, 1.25, 2.0)
"""Bin bounds of the histogram of pi_theta / pi_b."""
MOST_AGES = 64
"""Up to this age, in versions, every age has a share of the tokens, also 0, as recorded metrics have."""


MOST_PARTS, LONGEST_PART = 32, 64
"""Own parts of a reward with a mean: so many, by name, and only those with a name of at most so many characters."""


class StepSums:
    """Sums over the optimizer steps taken, and the number of skipped steps."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._norms: list[torch.Tensor] = []
        self._skipped = 0

    def add_step(self, sums: Mapping[str, torch.Tensor], loss: torch.Tensor, norm: torch.Tensor) -> None:
        """Add a step: its metrics as sums over tokens (see `trainers.losses.metrics`), loss, and gradient's norm."""
        self._sums = add_metrics(self._sums, {**sums, "loss": loss * sums["tokens"]})
        self._norms.append(norm)

    @property
    def steps(self) -> int:
        """Number of steps taken."""
        return len(self._norms)

    def skip(self) -> None:
        """Count a skipped step."""
        self._skipped += 1

    def skip_all(self) -> None:
        """Count all taken steps as skipped, because their results are not kept."""
        self._sums, self._norms, self._skipped = {}, [], self._skipped + self.steps

    def means(self) -> StepMetrics:
        """Return means over tokens, in one synchronisation.

        The entries of the gap are missing if no token came from the newest weights. A version without a step has only
        counts.
        """
        counts = {"optimizer_steps": float(len(self._norms)), "steps_skipped": float(self._skipped)}
        if not self._norms:
            return {"tokens": 0.0, **counts}
        norms = torch.stack(self._norms)
        found = means(self._sums) | {"grad_norm_mean": norms.mean(), "grad_norm_max": norms.max()}
        found["ess_share"] = found.pop("ess_ratio").square() / found.pop("ess_square")
        gap_share = found.pop("gap_tokens")
        found["logprob_gap_tokens"] = gap_share * found["tokens"]
        names = tuple(found)
        metrics = dict(zip(names, torch.stack([found[name].double() for name in names]).tolist(), strict=True))
        gaps = ("logprob_gap_mean", "logprob_gap_max", "logprob_gap_kl")
        if metrics["logprob_gap_tokens"]:
            share = metrics["logprob_gap_tokens"] / metrics["tokens"]
            metrics |= {name: metrics[name] / share for name in gaps if not name.endswith("_max")}
        else:
            metrics = {name: value for name, value in metrics.items() if name not in gaps}
        return {**metrics, **counts}


@torch.no_grad()
def ratio_sums(tokens: TrainedTokens) -> dict[str, torch.Tensor]:
    """Return metrics of rho = pi_theta / pi_b.

    They are: its square, for the effective sample size (sum w)^2 / sum w^2; a histogram; and the `off_policy_gap`, the
    distance to the sampling policy: KL(pi_b || pi_theta) in nats per token, as the mean of k3 = rho - 1 - log rho
    (Schulman, "Approximating KL divergence"), whatever pi_old the loss uses.
    """
    delta = log_ratio(tokens.logprobs.double(), tokens.behaviour_logprobs.double())
    ratio = delta.exp()
    edges = torch.tensor(RATIO_EDGES, dtype=ratio.dtype, device=ratio.device)
    bins = torch.arange(len(RATIO_EDGES) + 1, device=ratio.device)
    counts = (torch.bucketize(ratio, edges)[:, None] == bins).sum(0).double()
    bounds = ["0", *(f"{edge:g}" for edge in RATIO_EDGES), "inf"]
    names = [f"ratio_share_{low}_to_{high}" for low, high in pairwise(bounds)]
    return {
        "ess_ratio": ratio.sum(),
        "ess_square": ratio.square().sum(),
        OFF_POLICY_GAP: (ratio - 1 - delta).sum(),
        **dict(zip(names, counts, strict=True)),
    }


@torch.no_grad()
def gap_sums(tokens: TrainedTokens, version: int) -> dict[str, torch.Tensor]:
    """Return the gap between engine and trainer on tokens of `version`, while the trainer has the same weights.

    It has the mean and largest difference of log-probabilities, and KL(engine || trainer) by k3 (Schulman).
    """
    assert tokens.versions is not None  # noqa: S101 - the learner's tokens have them
    same = tokens.versions == version
    delta = (tokens.logprobs - tokens.behaviour_logprobs).double()
    delta = torch.where(same, delta, torch.zeros_like(delta))
    return {
        "gap_tokens": same.sum().double(),
        "logprob_gap_mean": delta.abs().sum(),
        "logprob_gap_max": delta.abs().max(),
        "logprob_gap_kl": (torch.expm1(delta) - delta).sum(),
    }


def staleness_metrics(histogram: Sequence[int]) -> StepMetrics:
    """Return mean, largest and shares of the tokens' ages, from the histogram int[max + 1] by age in versions.

    Ages above MOST_AGES without a token have no share: one token of age 5,000 would write 5,000 numbers.
    """
    total = sum(histogram)
    shares = {
        f"staleness_share_{age}": tokens / total for age, tokens in enumerate(histogram) if tokens or age <= MOST_AGES
    }
    mean = sum(age * tokens for age, tokens in enumerate(histogram)) / total
    return {"staleness_mean": mean, "staleness_max": float(len(histogram) - 1), **shares}


def sampling_version(settings: TrainerSettings, groups: Sequence[DecodedGroup], version: int) -> int:
    """Return the version from which the staleness of `version`'s groups is counted: the one before it.

    In a shadow it is the newest version known to a worker that played one of them, because a shadow's versions do not
    sample.
    """
    return max(g.trajectory_group.head_version for g in groups) if settings.is_shadow else version - 1


def group_metrics(groups: Sequence[DecodedGroup], base_version: int) -> dict[str, float]:
    """Return metrics of a batch's groups.

    They are: rewards and their own parts; length and turns of trajectories; the staleness of the oldest tokens in
    versions; the share of groups that teach nothing; the share of replays and, if there are any, their mean and largest
    age in versions.
    """
    rewards = np.concatenate([[t.reward for t in g.trajectory_group.trajectories] for g in groups])
    each = [max(0, base_version - g.curated.min_version) for g in groups]
    ages, replayed = Counter(each), [age for age, g in zip(each, groups, strict=True) if g.curated.use]
    shares = {f"staleness_{age}": count / len(groups) for age, count in sorted(ages.items())}
    finite = rewards[np.isfinite(rewards)]
    return {
        "reward_mean": float(finite.mean()) if finite.size else 0.0,
        **_measure_answers([t for g in groups for t in g.trajectory_group.trajectories]),
        "groups": float(len(groups)),
        "zero_variance_share": float(np.mean([_has_one_reward(g) for g in groups])),
        "truncated_share": float(np.mean([_is_truncated(t) for g in groups for t in g.trajectory_group.trajectories])),
        **shares,
        "replay_share": len(replayed) / len(groups),
        **({"replay_age_mean": float(np.mean(replayed)), "replay_age_max": float(max(replayed))} if replayed else {}),
    }


def _measure_answers(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the mean generated tokens and turns of trajectories, and the mean of each own part of their rewards."""
    answers = [
        [span.length for sequence in one.sequences for span in sequence.spans if span.kind == "generated"]
        for one in trajectories
    ]
    found = {
        LENGTH_MEAN: sum(map(sum, answers)) / max(1, len(answers)),
        TURNS_MEAN: sum(map(len, answers)) / max(1, len(answers)),
    }
    names = {name for one in trajectories for name in one.reward_parts if len(name) <= LONGEST_PART}
    for name in sorted(names)[:MOST_PARTS]:
        values = [one.reward_parts[name] for one in trajectories if name in one.reward_parts]
        if finite := [value for value in values if math.isfinite(value)]:
            found[REWARD_PART + name] = sum(finite) / len(finite)
    return found


def _has_one_reward(group: DecodedGroup) -> bool:
    rewards = np.array(group.curated.rewards)
    kept = rewards[np.isfinite(rewards)]
    return not kept.size or bool(np.ptp(kept) <= EQUAL)


def _is_truncated(trajectory: Trajectory) -> bool:
    return any(span.finish_reason == "length" for sequence in trajectory.sequences for span in sequence.spans)
