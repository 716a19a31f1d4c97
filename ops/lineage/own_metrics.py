"""Which metrics of a version come from a user's own code: from a loss, or as parts of rewards."""

from __future__ import annotations

import re
from collections.abc import Mapping

from headrace.schemas.version_records import LENGTH_MEAN, REWARD_PART, TURNS_MEAN

SHIPPED = frozenset({
    *("loss", "tokens", "learning_rate", "optimizer_steps", "steps_skipped", "grad_norm_mean", "grad_norm_max"),
    *("entropy", "entropy_first", "reference_kl", "rejected_fraction", "masked_fraction", "router_imbalance"),
    *("ratio_mean", "ratio_max", "kl_k1", "kl_k3", "clip_fraction", "clip_fraction_low", "clip_fraction_high"),
    *("m2", "m2_log_low", "m2_log_high", "off_policy_gap", "ess_share", "ess_ratio", "ess_square"),
    *("logprob_gap_mean", "logprob_gap_max", "logprob_gap_kl", "logprob_gap_tokens"),
    *("reward_mean", LENGTH_MEAN, TURNS_MEAN, "groups", "zero_variance_share", "truncated_share"),
    *("replay_share", "replay_age_mean", "replay_age_max"),
    *("step_s", "blocked_s", "wait_s", "held_up_s", "log_share"),
})  # fmt: skip
FAMILIES = re.compile(
    r"ratio_share_\S+_to_\S+|staleness_(share_)?\d+|staleness_(mean|max)|seconds_\w+"
    rf"|{REWARD_PART}.*|weight_(mean|max|used_mean|square_mean|ess|chi2|kl_k1|kl_k3|perplexity_ratio)",
    re.DOTALL,
)
"""Pattern of metric names that stand for several metrics each."""


def select_own_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that only a user's own loss can have measured, sorted by name."""
    return {name: metrics[name] for name in sorted(metrics) if name not in SHIPPED and not FAMILIES.fullmatch(name)}


def select_answer_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a version about its trajectories: their length, their turns, the parts of their rewards."""
    names = (LENGTH_MEAN, TURNS_MEAN, *sorted(name for name in metrics if name.startswith(REWARD_PART)))
    return {name: metrics[name] for name in names if name in metrics}
